"""`octavo chat` over an engine without a model."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from octavo.cli import chat, local_engine, main
from tests.server.fakes import FakeEngine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> None:
    def build(*_: Any, **__: Any) -> Any:
        return engine.engine

    monkeypatch.setattr(local_engine, "build_engine", build)


def test_a_base_model_is_refused_before_the_first_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else each question would be answered by an error about an HTTP path."""
    use(monkeypatch, FakeEngine(has_chat_template=False))
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    with pytest.raises(SystemExit) as stopped:
        main.main(["chat", "base.gguf"])
    captured = capsys.readouterr()
    assert stopped.value.code == 1
    assert "octavo generate base.gguf" in captured.err and "ready" not in captured.err


def test_the_speed_shown_leaves_out_the_time_to_the_first_token() -> None:
    assert chat._speed(11, 5.0, 0.5) == "[11 tokens, first after 5.00 s, then 20.0 tokens/s]"
    assert chat._speed(1, 0.25, 0.0) == "[1 token, first after 0.25 s]"


def test_a_terminal_sees_the_speed_and_a_pipe_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stdin, shown in ((Terminal(), True), (io.StringIO("w\n"), False)):
        use(monkeypatch, FakeEngine())
        monkeypatch.setattr(sys, "stdin", stdin)
        lines = iter(["w"])
        monkeypatch.setattr("builtins.input", lambda _: next(lines, "/exit"))  # noqa: B023
        with pytest.raises(SystemExit):
            main.main(["chat", "m"])
        captured = capsys.readouterr()
        assert captured.out == "xyz\n"
        assert ("first after" in captured.err) is shown


THINKING = "{% for m in messages %}{{ m.get('reasoning_content', '') }}{{ m.content }}{% endfor %}<think>{# </think> #}"


def test_reasoning_is_dimmed_for_who_watches_and_left_out_of_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the conversation as what it was."""
    for stdout, shown in ((Terminal(), "\x1b[2mIt rains.\x1b[0m\n\nTake a coat.\n"), (io.StringIO(), "Take a coat.\n")):
        engine = FakeEngine(chat_template=THINKING)
        engine.executor.says = "It rains.</think>\n\nTake a coat."
        use(monkeypatch, engine)
        monkeypatch.setattr(sys, "stdin", io.StringIO("Coat?\nSure?\n"))
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit):
            main.main(["chat", "m"])
        told = stdout.getvalue().replace("\x1b[0m\x1b[2m", "")
        assert told == shown * 2


def test_what_was_reasoned_is_history(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(chat_template=THINKING)
    engine.executor.says = "Hm.</think>Yes."
    use(monkeypatch, engine)
    rendered: list[str] = []
    render = engine.engine.input.render
    monkeypatch.setattr(
        engine.engine.input,
        "render",
        lambda *given, **kwargs: rendered.append(render(*given, **kwargs)) or rendered[-1],
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("A?\nB?\n"))
    with pytest.raises(SystemExit):
        main.main(["chat", "m"])
    assert rendered == ["A?<think>", "A?Hm.Yes.B?<think>"]
