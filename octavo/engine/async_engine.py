"""The engine as asyncio sees it: submit, stream, abort. The work happens on the engine thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.input import InputProcessor
from octavo.engine.thread import EngineThread
from octavo.errors import EngineDeadError, EngineError, InvalidValueError, ShuttingDownError
from octavo.request import OutputDelta, Request, merged
from octavo.tokenizer.tokenizer import Tokenizer

# After an abort, and when the thread is asked to end, a step that is under way must come back within this time.
STEP_GRACE_S = 10.0


class AsyncEngine:
    """Streams the answers of many requests at once. Belongs to one event loop at a time.

    A step's deltas cross from the engine thread to the loop in one piece, however many requests it ran. What a slow
    consumer has not fetched waits for it, merged into one delta; the engine never waits.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = EngineThread(engine.core, self._deliver)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, _Stream] = {}
        self._unfinished: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._started = False
        self._accepting = True

    @property
    def config(self) -> EngineConfig:
        return self._engine.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def input(self) -> InputProcessor:
        return self._engine.input

    @property
    def healthy(self) -> bool:
        """Whether requests are served: started, not shut down, and the backend works."""
        return self._started and self._thread.healthy

    @property
    def num_unfinished(self) -> int:
        """Requests submitted whose last delta has not come back yet."""
        return len(self._unfinished)

    def check_queue(self, num_new_tokens: int) -> None:
        """Raises `QueueFullError` if requests with so many prompt tokens would be refused now."""
        pending = self._thread
        self._engine.core.check_queue(num_new_tokens, pending.num_pending_requests, pending.num_pending_tokens)

    def start(self) -> None:
        """Starts the engine thread."""
        self._started = True
        self._thread.start()

    async def generate(self, request: Request) -> AsyncGenerator[OutputDelta, None]:
        """Submits the request and yields its deltas; the last one has a finish reason, whatever happens.

        Closing the generator, or cancelling the task that waits for it, aborts the request within one step. Raises
        `ShuttingDownError`, `EngineDeadError`, or `InvalidValueError` if the request id is in use, before the first
        delta; later failures arrive as a delta with `error`.
        """
        stream = self._submit(request)
        try:
            while not stream.ended:
                yield await stream.next()
        finally:
            del self._streams[request.request_id]
            if not stream.ended:
                self.abort(request.request_id)

    def abort(self, request_id: str) -> None:
        """Ends a request within one step; its stream gets a last delta with finish reason "abort"."""
        if request_id in self._unfinished:
            self._thread.abort((request_id,))

    async def reset_prefixes(self) -> int:
        """Forgets every known prefix; returns how many blocks that were. Raises `ShuttingDownError`."""
        return await asyncio.wrap_future(self._thread.reset_prefixes())

    async def shutdown(self, timeout_s: float) -> None:
        """Takes no more requests, lets those that run finish for up to `timeout_s`, then aborts them and stops."""
        self._accepting = False
        if not self._started:
            return
        await self._wait_idle(timeout_s)
        self._thread.abort(tuple(self._unfinished))
        await self._wait_idle(STEP_GRACE_S)
        if await asyncio.to_thread(self._thread.stop, STEP_GRACE_S) and self._started:
            self._started = False
            self._engine.core.close()

    def _submit(self, request: Request) -> _Stream:
        self._check_accepting()
        self._bind_loop()
        if request.request_id in self._unfinished or request.request_id in self._streams:
            raise InvalidValueError(f"request_id {request.request_id!r} is in use", param="request_id")
        stream = self._streams[request.request_id] = _Stream()
        self._unfinished.add(request.request_id)
        self._idle.clear()
        self._thread.submit((request,))
        return stream

    def _check_accepting(self) -> None:
        if not self._accepting:
            raise ShuttingDownError("the engine is shutting down and takes no more requests")
        if not self._started:
            raise EngineError("the engine has not been started")
        if not self._thread.healthy:
            raise EngineDeadError("the backend is broken and the engine has stopped")

    def _bind_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._unfinished and self._loop is not None and not self._loop.is_closed():
            raise EngineError("the engine has requests in another event loop")
        self._loop = loop
        self._unfinished.clear()
        self._idle = asyncio.Event()

    async def _wait_idle(self, timeout_s: float) -> None:
        """Until no request is unfinished, or the time is over."""
        if self._unfinished:
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except TimeoutError:
                return

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        """On the engine thread: hands a step's deltas to the event loop."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._dispatch, deltas)
        except RuntimeError:  # the loop is closed: nobody will ever read these streams
            self._thread.abort([delta.request_id for delta in deltas if not delta.finished])

    def _dispatch(self, deltas: list[OutputDelta]) -> None:
        """On the event loop: to each stream what is its own."""
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.push(delta)
            if delta.finished:
                self._unfinished.discard(delta.request_id)
        if not self._unfinished:
            self._idle.set()


class _Stream:
    """The deltas of one request on their way to its consumer. `ended` once the consumer has the last one."""

    __slots__ = ("_arrived", "_pending", "ended")

    def __init__(self) -> None:
        self._pending: list[OutputDelta] = []
        self._arrived = asyncio.Event()
        self.ended = False

    def push(self, delta: OutputDelta) -> None:
        self._pending.append(delta)
        self._arrived.set()

    async def next(self) -> OutputDelta:
        """All that has arrived since the last call, as one delta."""
        await self._arrived.wait()
        self._arrived.clear()
        delta = merged(self._pending)
        self._pending = []
        self.ended = delta.finished
        return delta
