"""`octavo chat` over an engine without a model."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from octavo.chat.format import ChatParsers
from octavo.cli import chat, generate, local_engine, main
from octavo.config import EngineArgs
from octavo.sampling_params import SamplingParams
from tests.engine.fake_engine import Recorder
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


def test_the_markers_of_reasoning_can_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A template that opens no reasoning, and says nothing of it, may still belong to a model that reasons."""
    for flags, shown in (([], "[THINK]Hm.[/THINK]Yes.\n"), (["--reasoning-parser", "mistral"], "Yes.\n")):
        engine = FakeEngine()
        engine.executor.says = "[THINK]Hm.[/THINK]Yes."
        use(monkeypatch, engine)
        monkeypatch.setattr(sys, "stdin", io.StringIO("A?\n"))
        with pytest.raises(SystemExit):
            main.main(["chat", "m", *flags])
        assert capsys.readouterr().out == shown


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


def interrupted(spoken: list[str]) -> Callable[..., None]:
    """Prints into `spoken`, and is interrupted when it has to print the first "b"."""

    def tell(text: str = "", *, file: Any = None, **_: Any) -> None:
        if file is not sys.stderr:
            spoken.append(re.sub("\x1b.[0-9]*m", "", text))
            if "b" in text and "".join(spoken).count("b") == 1:
                raise KeyboardInterrupt

    return tell


@pytest.mark.parametrize(
    ("template", "says", "stop"),
    [(None, "ab" + "S" * 200, ("SSSSx",)), (THINKING, "ab" + "<" * 200, ())],
    ids=["stop-string", "marker"],
)
def test_ctrl_c_shows_all_that_was_said(
    monkeypatch: pytest.MonkeyPatch, template: str | None, says: str, stop: tuple[str, ...]
) -> None:
    """What could have become a stop string, or the end of the reasoning, is held back until it is sure not to."""
    stats, spoken = Recorder(), list[str]()
    fake = FakeEngine(stats, chat_template=template)
    fake.executor.step_s, fake.executor.says = 0.005, says
    use(monkeypatch, fake)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(chat, "print", interrupted(spoken), raising=False)
    with local_engine.LocalEngine(EngineArgs("m")) as local:
        sampling = SamplingParams(max_tokens=200, stop=stop)
        chat.Conversation(local, local.chat_preparer(ChatParsers()), sampling, system=None).answer("?")
    length = stats.requests[0].num_output_tokens
    assert 2 <= length < 200 and "".join(spoken) == says[:length]


def test_ctrl_c_shows_all_that_was_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    stats, spoken = Recorder(), list[str]()
    fake = FakeEngine(stats)
    fake.executor.step_s, fake.executor.says = 0.005, "ab" + "S" * 200
    use(monkeypatch, fake)
    monkeypatch.setattr(generate, "print", interrupted(spoken), raising=False)
    with pytest.raises(SystemExit) as stopped:
        main.main(["generate", "m", "?", "--stop", "SSSSx", "--max-tokens", "200"])
    length = stats.requests[0].num_output_tokens
    assert stopped.value.code == 130 and 2 <= length < 200
    assert "".join(spoken) == fake.executor.says[:length]
