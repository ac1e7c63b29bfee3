"""Who may wait at all."""

from __future__ import annotations

from octavo.config import BLOCK_TOKENS, QueueLimits
from octavo.errors import ContextLengthError, QueueFullError
from octavo.request import Request


class Admission:
    """The door: refuses what could never run and, with numbers, what finds the queue full."""

    def __init__(self, limits: QueueLimits, num_blocks: int) -> None:
        self._limits = limits
        self._num_slots = num_blocks * BLOCK_TOKENS

    def check_fits(self, request: Request) -> None:
        """Raises `ContextLengthError` if the request could not run even alone."""
        longest = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1)
        if longest > self._num_slots:
            raise ContextLengthError(
                f"the request may grow to {longest} tokens, the whole KV cache holds {self._num_slots}",
                param="max_tokens",
            )

    def check_queue(self, num_requests: int, num_tokens: int, num_new_tokens: int) -> None:
        """Raises `QueueFullError` if a request of `num_new_tokens` may not wait behind what is waiting now.

        `num_requests` wait and find no free row. While there are none of these, a request of any length may come.
        """
        limits = self._limits
        if limits.max_requests is not None and num_requests >= limits.max_requests:
            raise QueueFullError(
                f"{num_requests} requests are waiting, --max-num-queued-reqs allows {limits.max_requests}; try again "
                "shortly",
                limit="max_num_queued_reqs",
            )
        if limits.max_tokens is not None and num_requests and num_tokens + num_new_tokens > limits.max_tokens:
            raise QueueFullError(
                f"{num_tokens} tokens are waiting, with this request's {num_new_tokens} there would be more than the "
                f"{limits.max_tokens} that --max-num-queued-tokens allows; try again shortly",
                limit="max_num_queued_tokens",
            )

    def timeout_at(self, request: Request) -> float | None:
        """Until when the request may wait, on the clock of its arrival; None: as long as it takes."""
        timeouts = [s for s in (self._limits.timeout_s, request.queue_timeout_s) if s is not None]
        return request.arrival_time + min(timeouts) if timeouts else None
