"""An engine in this process, for verbs that follow one answer at a time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from octavo.chat.format import ChatParsers
from octavo.chat.preparation import ChatPreparer
from octavo.cli.progress import ProgressReport
from octavo.config import EngineArgs
from octavo.engine.build import build_engine
from octavo.engine.input import InputProcessor
from octavo.engine.thread import EngineThread
from octavo.request import OutputDelta, Request


class LocalEngine:
    """Loads the model; `close()`, or the end of a `with` block, gives everything back."""

    def __init__(self, args: EngineArgs) -> None:
        with ProgressReport() as progress:
            self._engine = build_engine(args, progress=progress)
        self._arrived: SimpleQueue[OutputDelta] = SimpleQueue()
        self._streamed_id: str | None = None  # of the request whose stream is open, or was left before its end
        self._thread = EngineThread(self._engine.core, self._deliver)
        self._thread.start()

    @property
    def input(self) -> InputProcessor:
        return self._engine.input

    @property
    def has_chat_template(self) -> bool:
        return self._engine.tokenizer.has_chat_template

    def chat_preparer(self, parsers: ChatParsers) -> ChatPreparer:
        """For chats as the model's template has them."""
        tokenizer = self._engine.tokenizer
        return ChatPreparer(self._engine.input, tokenizer, parsers.format_under(tokenizer.chat_template))

    def stream(self, request: Request) -> Generator[OutputDelta, None, None]:
        """The answer as it comes; closing the generator stops it. One at a time. Raises what the answer ended with."""
        self._thread.submit((request,))
        self._streamed_id = request.request_id
        try:
            for delta in self._deltas():
                if delta.error is not None:
                    raise delta.error
                yield delta
        finally:
            if self._streamed_id is not None:
                self._thread.abort((request.request_id,))

    def rest(self) -> str:
        """What the answer that was stopped last still had to say: text on its way, and text held back."""
        return "".join([delta.text for delta in self._deltas()])

    def _deltas(self) -> Generator[OutputDelta, None, None]:
        """Those of the streamed request that are still to come; others are what an answer stopped before had to say."""
        while self._streamed_id is not None:
            delta = self._arrived.get()
            if delta.request_id == self._streamed_id:
                if delta.finished:
                    self._streamed_id = None
                yield delta

    def answers(self, requests: Sequence[Request]) -> Generator[str, None, None]:
        """The whole texts of requests that run together, in their order. Raises what one of them ended with."""
        self._thread.submit(requests)
        texts = {request.request_id: "" for request in requests}
        unfinished = set(texts)
        try:
            for request_id in texts:
                while request_id in unfinished:
                    delta = self._arrived.get()
                    if delta.request_id not in unfinished:
                        continue
                    texts[delta.request_id] += delta.text
                    if delta.finished:
                        unfinished.remove(delta.request_id)
                    if delta.error is not None:
                        raise delta.error
                yield texts[request_id]
        finally:
            self._thread.abort(tuple(unfinished))

    def close(self) -> None:
        self._thread.stop()
        self._engine.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        for delta in deltas:
            self._arrived.put(delta)
