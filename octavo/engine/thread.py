"""The engine's thread: takes orders between steps, steps while there are requests, sleeps otherwise."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from octavo.engine.core import EngineCore
from octavo.errors import EngineError, OctavoError, ShuttingDownError
from octavo.request import OutputDelta, Request, RequestTimes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class _Abort:
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ResetPrefixes:
    done: Future[int]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_EXIT_TIMEOUT_S = 10.0

_Order = _Submit | _Abort | _ResetPrefixes | _Stop


class _Pending:
    """Counts of what has been handed over; changed under the lock of the orders."""

    __slots__ = ("num_requests", "num_tokens")

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0

    def add(self, requests: Sequence[Request], sign: int) -> None:
        self.num_requests += sign * len(requests)
        self.num_tokens += sign * sum(len(request.prompt_token_ids) for request in requests)


class EngineThread:
    """Runs an `EngineCore` on a thread of its own. All methods may be called from any thread.

    `deliver` is called on the engine thread with the deltas of each step, and of orders that end a request; it must be
    quick and must not raise. Every submitted request gets exactly one delta with a finish reason: also one that is
    refused, one that is aborted, and those that are left when the engine dies or stops.
    """

    def __init__(self, core: EngineCore, deliver: Callable[[list[OutputDelta]], None]) -> None:
        self._core = core
        self._deliver = deliver
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._order_lock = threading.Lock()
        self._pending = _Pending()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()
        # A process that ends without `stop` frees the backend at exit: not under a thread that uses it.
        atexit.register(self.stop, _EXIT_TIMEOUT_S)

    @property
    def healthy(self) -> bool:
        return self._core.healthy and self._thread.is_alive()

    def submit(self, requests: Sequence[Request]) -> None:
        """Hands over requests; those of one call enter between the same two steps.

        Raises `ShuttingDownError` once `stop` has been called.
        """
        with self._order_lock:
            if self._stopping:
                raise ShuttingDownError("the engine is shutting down and takes no more requests")
            self._pending.add(requests, 1)
            self._orders.put(_Submit(tuple(requests)))

    @property
    def num_pending_requests(self) -> int:
        """Requests handed over that the engine has not taken in yet."""
        return self._pending.num_requests

    @property
    def num_pending_tokens(self) -> int:
        """Their prompt tokens."""
        return self._pending.num_tokens

    def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests before the next step; unknown ids are ignored."""
        self._orders.put(_Abort(tuple(request_ids)))

    def reset_prefixes(self) -> Future[int]:
        """Forgets every known prefix before the next step; the result is how many blocks that were.

        Raises `ShuttingDownError` once `stop` has been called.
        """
        done: Future[int] = Future()
        with self._order_lock:
            if self._stopping:
                raise ShuttingDownError("the engine is shutting down")
            self._orders.put(_ResetPrefixes(done))
        return done

    def stop(self, timeout_s: float | None = None) -> bool:
        """Aborts what is left and ends the thread; False if a step has not come back within `timeout_s`."""
        atexit.unregister(self.stop)
        with self._order_lock:
            self._stopping = True
            self._orders.put(_Stop())
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._take_orders()
            if self._core.has_requests and not stopped:
                self._deliver_some(self._survived(self._core.step))

    def _take_orders(self) -> bool:
        """Obeys the orders that have come in, waiting for one if there is nothing else to do. True: stop."""
        while not (self._orders.empty() and self._core.has_requests):
            match self._next_order():
                case _Submit(requests):
                    refusals = [refusal for request in requests for refusal in self._add(request)]
                    with self._order_lock:
                        self._pending.add(requests, -1)
                    self._deliver_some(refusals)
                case _Abort(request_ids):
                    self._deliver_some(self._survived(partial(self._abort, request_ids)))
                case _ResetPrefixes(done):
                    self._reset_prefixes(done)
                case _Stop():
                    self._deliver_some(self._survived(self._core.abort_all))
                    return True
        return False

    def _next_order(self) -> _Order:
        """The next order; what can be prepared is prepared until it comes."""
        while self._orders.empty() and self._core.prepare():
            pass
        return self._orders.get()

    def _add(self, request: Request) -> list[OutputDelta]:
        """Nothing, or the one delta of a request that the engine refuses."""
        try:
            self._core.add_request(request)
        except OctavoError as error:
            return [_refusal(request, error)]
        except Exception as error:  # whatever it is, it concerns this request alone
            logger.exception("request %s could not be taken in", request.request_id)
            failure = EngineError(f"the request could not be taken in: {error}")
            failure.__cause__ = error
            return [_refusal(request, failure)]
        return []

    def _abort(self, request_ids: Sequence[str]) -> list[OutputDelta]:
        ended = [self._core.abort(request_id) for request_id in request_ids]
        return [delta for delta in ended if delta is not None]

    def _reset_prefixes(self, done: Future[int]) -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(self._core.reset_prefixes())
        except Exception as error:
            logger.exception("the prefixes could not be forgotten")
            done.set_exception(error)

    def _survived(self, act: Callable[[], list[OutputDelta]]) -> list[OutputDelta]:
        """What `act` gives; if it fails, the engine is dead, and these are the last deltas of all requests."""
        try:
            return act()
        except Exception as error:
            logger.exception("the engine's own bookkeeping failed")
            return self._core.die(f"the engine's own bookkeeping failed: {error}")

    def _deliver_some(self, deltas: list[OutputDelta]) -> None:
        if deltas:
            self._deliver(deltas)


def _refusal(request: Request, error: OctavoError) -> OutputDelta:
    times = RequestTimes(request.arrival_time)
    num_prompt_tokens = len(request.prompt_token_ids)
    return OutputDelta(
        request.request_id, "", (), "error", num_prompt_tokens=num_prompt_tokens, times=times, error=error
    )
