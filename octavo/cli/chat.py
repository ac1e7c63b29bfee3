"""octavo chat"""

from __future__ import annotations

import sys
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.chat.reader import ChatPart, ChoiceReader, Reasoning, put_together
from octavo.cli.flags import EngineFlags, Model, SamplingFlags, fresh_seed, model_or_default
from octavo.cli.parser_flags import ReasoningParser
from octavo.errors import RequestError, UnsupportedModelError
from octavo.sampling_params import SamplingParams
from octavo.tools.reader import Content

if TYPE_CHECKING:
    from octavo.chat.preparation import ChatPreparer, ChatQuestion
    from octavo.cli.local_engine import LocalEngine

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"

_HELP = """\
/clear   forget the conversation
/exit    leave (so does Ctrl-D)
/help    this text
Ctrl-C   stops an answer"""


def chat(
    *,
    engine: EngineFlags,
    sampling: SamplingFlags,
    model: Model = None,
    system: Annotated[str | None, typer.Option(help="System message.", show_default=False)] = None,
    reasoning_parser: ReasoningParser = None,
) -> None:
    """Talk with a model; piped lines are answered one after the other. It must have a chat template."""
    from octavo.chat.format import ChatParsers
    from octavo.cli.local_engine import LocalEngine

    params = sampling.params()
    parsers = ChatParsers(reasoning=reasoning_parser)
    reference = model_or_default(model)
    if sys.stdin.isatty():
        print(f"Loading {reference} ...", file=sys.stderr)
    with LocalEngine(engine.args(reference, default_seed=fresh_seed())) as local:
        if not local.has_chat_template:
            raise UnsupportedModelError(
                f"{reference} has no chat template: it only continues text, as in: octavo generate {reference} TEXT"
            )
        conversation = Conversation(local, local.chat_preparer(parsers), params, system)
        if sys.stdin.isatty():
            with suppress(ImportError):
                import readline  # noqa: F401 - gives input() line editing and a history
            print(f"{reference} is ready. /help lists what else you can type.", file=sys.stderr)
        while (line := _next_line()) is not None:
            _take(line.strip(), conversation)
            if line.strip() == "/exit":
                break


class Conversation:
    """The turns so far, and the model that answers."""

    def __init__(self, engine: LocalEngine, preparer: ChatPreparer, params: SamplingParams, system: str | None) -> None:
        self._engine = engine
        self._preparer = preparer
        self._params = params
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[dict[str, str]] = []

    def clear(self) -> None:
        self._turns = []

    def answer(self, text: str) -> None:
        """Prints the answer as it comes. Ctrl-C stops it; what was said so far stays in the conversation."""
        question = {"role": "user", "content": text}
        chat = self._preparer.prepare(self._asking(question), self._params)
        told = _ToldAnswer(chat.plan.reader())
        began, num_tokens = time.monotonic(), 0
        first: float | None = None
        try:
            with closing(self._engine.stream(chat.request)) as deltas:
                for delta in deltas:
                    first = first or time.monotonic()
                    num_tokens = delta.num_output_tokens
                    told.append(delta.text)
            told.finish()
        except KeyboardInterrupt:
            told.append(self._engine.rest())
            told.finish()
            print(" [stopped]", end="", file=sys.stderr)
        print()
        self._turns += [question, told.turn()]
        if sys.stdin.isatty() and first is not None:
            print(_speed(num_tokens, first - began, time.monotonic() - first), file=sys.stderr)

    def _asking(self, question: dict[str, str]) -> ChatQuestion:
        from octavo.chat.preparation import ChatQuestion

        return ChatQuestion([*self._system, *self._turns, question])


class _ToldAnswer:
    """An answer on its way to stdout: its reasoning dimmed, and only where somebody watches."""

    def __init__(self, reader: ChoiceReader) -> None:
        self._reader = reader
        self._parts: list[ChatPart] = []
        self._dims = sys.stdout.isatty()
        self._reasoned = False

    def append(self, text: str) -> None:
        self._tell(self._reader.append(text))

    def finish(self) -> None:
        self._tell(self._reader.flush())

    def turn(self) -> dict[str, str]:
        """The answer as a message of the conversation."""
        parts = put_together(self._parts)
        reasoning = {"reasoning_content": parts.reasoning} if parts.reasoning else {}
        return {"role": "assistant", "content": parts.content, **reasoning}

    def _tell(self, parts: list[ChatPart]) -> None:
        self._parts += parts
        for part in parts:
            if isinstance(part, Reasoning):
                self._tell_reasoning(part.text)
            elif isinstance(part, Content):
                self._tell_content(part.text)

    def _tell_reasoning(self, text: str) -> None:
        self._reasoned = self._dims
        if self._dims:
            print(f"{_DIM}{text}{_PLAIN}", end="", flush=True)

    def _tell_content(self, text: str) -> None:
        if self._reasoned:
            print("\n")
        self._reasoned = False
        print(text, end="", flush=True)


def _speed(num_tokens: int, first_s: float, others_s: float) -> str:
    """What the answer took: time to its first token, and the rate of the others."""
    if num_tokens < 2:
        return f"[{num_tokens} token, first after {first_s:.2f} s]"
    return f"[{num_tokens} tokens, first after {first_s:.2f} s, then {(num_tokens - 1) / others_s:.1f} tokens/s]"


def _take(line: str, conversation: Conversation) -> None:
    """One line typed: a command or a question."""
    if line == "/clear":
        conversation.clear()
        print("Forgotten.", file=sys.stderr)
    elif line == "/help":
        print(_HELP, file=sys.stderr)
    elif line.startswith("/") and line != "/exit":
        print(f"There is no {line.split()[0]}; /help lists what there is.", file=sys.stderr)
    elif line and line != "/exit":
        try:
            conversation.answer(line)
        except RequestError as error:
            if not sys.stdin.isatty():
                raise
            print(f"octavo: {error} (/clear forgets the conversation)", file=sys.stderr)


def _next_line() -> str | None:
    """The next line of stdin, None at its end."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line or None
    while True:
        try:
            return input("> ")
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print("\nCtrl-D or /exit leaves.", file=sys.stderr)
