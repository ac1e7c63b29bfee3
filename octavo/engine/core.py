"""The loop's body: one step of the engine, and requests coming and going between steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from octavo.config import SchedulingConfig
from octavo.engine.beams import BeamGroup, BeamGroups
from octavo.engine.constraints import Constraints
from octavo.engine.output import OutputProcessor
from octavo.errors import EngineDeadError, InvalidValueError, QueueFullError, QueueTimeoutError, StepError
from octavo.grammar.masks import MaskComputer
from octavo.kvcache.kv_cache import KvCache
from octavo.metrics.stats import RequestStats, StatsListener, StepStats
from octavo.request import FinishReason, OutputDelta, Request, RequestTimes
from octavo.scheduler.outcome import NewToken, StepCounts
from octavo.scheduler.scheduler import DEFAULT_SCHEDULING, Scheduler
from octavo.step import StepOutput, StepPlan
from octavo.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# A backend that fails this many steps one after the other is broken, not unlucky.
MAX_FAILED_STEPS = 3

# Of the KV cache's memory, how much is taken from the system ahead of requests, and how much before looking for some.
PREPARED_BYTES = 512 << 20
PREPARED_BYTES_AT_ONCE = 8 << 20


class Executor(Protocol):
    """What the engine needs of a backend."""

    def execute(self, plan: StepPlan) -> StepOutput: ...
    def prepare(self, num_bytes: int) -> int: ...
    def close(self) -> None: ...


class EngineCore:
    """Scheduler, backend and output put together. Belongs to one thread at a time.

    Every request that `add_request` took ends in exactly one delta with a finish reason: from `step()`, or from
    `abort()`. Once the backend has failed `MAX_FAILED_STEPS` steps in a row, `healthy` is False for good.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        kv: KvCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        masks: MaskComputer,
        scheduling: SchedulingConfig = DEFAULT_SCHEDULING,
        listeners: Sequence[StatsListener] = (),
    ) -> None:
        self._executor = executor
        self._kv = kv
        self._scheduler = Scheduler(
            kv, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, config=scheduling
        )
        self._beams = BeamGroups(self._scheduler)
        self._targets = scheduling.targets
        self._outputs = OutputProcessor(tokenizer)
        self._constraints = Constraints(masks)
        self._listeners = tuple(listeners)
        self._num_failed_steps = 0
        self._num_prepared_bytes = 0
        self._death: EngineDeadError | None = None

    @property
    def healthy(self) -> bool:
        return self._death is None

    @property
    def has_requests(self) -> bool:
        return self._scheduler.has_requests

    def add_request(self, request: Request) -> None:
        """Accepts a request for one answer, or for beam search.

        Raises `EngineDeadError`, or what `Scheduler.add` raises.
        """
        if self._death is not None:
            raise self._death
        sampling = request.sampling
        if sampling.num_samples != 1 and not sampling.use_beam_search:
            raise InvalidValueError(f"n is {sampling.n}; fan_out() makes a request of each answer", param="n")
        answer = self._outputs.prepare(request)
        try:
            if sampling.use_beam_search:
                self._beams.add(request)
            else:
                self._add_constrained(request)
        except QueueFullError as error:
            self._report_rejection(error)
            raise
        self._outputs.open(request.request_id, answer)

    def _add_constrained(self, request: Request) -> None:
        """Hands a request to the scheduler, with the tokens that its constraint leaves no choice about."""
        forced = self._constraints.open(request)
        try:
            self._scheduler.add(request)
        except Exception:
            self._constraints.close(request.request_id)
            raise
        self._scheduler.extend(request.request_id, forced)

    def check_queue(self, num_new_tokens: int, num_pending: int, num_pending_tokens: int) -> None:
        """Raises `QueueFullError` if requests of so many tokens would be refused now. Any thread may ask.

        `num_pending` requests, of `num_pending_tokens` tokens, are on their way here and come before.
        """
        try:
            self._scheduler.check_queue(num_new_tokens, num_pending, num_pending_tokens)
        except QueueFullError as error:
            self._report_rejection(error)
            raise

    def abort(self, request_id: str) -> OutputDelta | None:
        """Ends a request wherever it is; None if it has ended already."""
        if request_id not in self._outputs:
            return None
        return self._end(request_id, "abort")

    def abort_all(self) -> list[OutputDelta]:
        return [self._end(request_id, "abort") for request_id in self._outputs.request_ids]

    def prepare(self) -> bool:
        """Does a little of what need not wait for requests; False when all of it is done.

        Memory fresh from the system is slow to write to, on virtual machines above all: the first of the KV cache's is
        taken while there is nothing to do.
        """
        if self._num_prepared_bytes >= PREPARED_BYTES:
            return False
        num_bytes = self._executor.prepare(PREPARED_BYTES_AT_ONCE)
        self._num_prepared_bytes += num_bytes
        return num_bytes > 0

    def step(self) -> list[OutputDelta]:
        """Runs one step; the deltas are in batch order. Raises nothing that a backend or a request can cause."""
        timed_out = self._scheduler.timed_out()
        return self._give_up_all(timed_out) + self._compute_step() if timed_out else self._compute_step()

    def _compute_step(self) -> list[OutputDelta]:
        started = time.monotonic()
        plan = self._scheduler.schedule()
        if self._scheduler.started:
            self._outputs.mark_started(self._beams.of_requests(self._scheduler.started), started)
        try:
            if self._constraints.num_open:
                plan = self._constraints.masked(plan, self._scheduler.step_request_ids)
            output = self._executor.execute(plan)
            tokens = self._scheduler.update(output)
            sampled, searching = self._beams.sort_out(tokens.others)
        except Exception as error:  # noqa: BLE001 - whatever a step raises, the engine goes on without its requests
            return self._fail_step(plan, error)
        self._num_failed_steps = 0
        now = time.monotonic()
        if self._listeners:
            self._report_gaps(self._outputs.token_gaps(tokens.request_ids, sampled, now))
        deltas = self._outputs.go_on(tokens.request_ids, tokens.token_ids, now)
        if sampled:
            deltas += self._append(sampled, now)
        for group in searching:
            deltas += self._search(group, now)
        for delta in deltas:
            if delta.finish_reason is not None:
                self._retire(delta)
        if self._listeners:
            num_tokens = sum([len(delta.token_ids) for delta in deltas]) + len(tokens.others) - len(sampled)
            self._report_step(self._scheduler.step_counts, num_tokens, now - started)
        return deltas

    def _append(self, sampled: list[NewToken], now: float) -> list[OutputDelta]:
        """Answers get what was sampled and what follows without a choice; requests that go on learn of the latter."""
        advance = self._constraints.advance(sampled)
        deltas = self._outputs.append(advance.tokens, now)
        deltas += [self._outputs.close(request_id, "error", error) for request_id, error in advance.refused.items()]
        ended = {delta.request_id for delta in deltas if delta.finish_reason is not None}
        for request_id, token_ids in advance.forced.items():
            if request_id not in ended:
                self._scheduler.extend(request_id, token_ids)
        return deltas

    def die(self, reason: str) -> list[OutputDelta]:
        """Ends every request with an error and takes no more: `healthy` is False from now on."""
        self._death = EngineDeadError(reason)
        logger.critical("the engine is dead: %s", reason)
        return [self._end(request_id, "error", self._death) for request_id in self._outputs.request_ids]

    def reset_prefixes(self) -> int:
        """Forgets every known prefix, also those in files; returns how many blocks of memory that were."""
        num_blocks = self._kv.reset_prefixes()
        self._report_step(StepCounts(), 0, 0.0)
        return num_blocks

    def check_integrity(self) -> None:
        """Raises `EngineError` unless rows and blocks are held by running requests, as the scheduler tells it."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Gives back what the backend holds. What the KV cache knows is saved first, if there is a store for it."""
        if self.healthy:
            self._save_prefixes()
        self._kv.close_store()
        self._executor.close()

    def _save_prefixes(self) -> None:
        try:
            for saves in self._kv.save_all():
                output = self._executor.execute(StepPlan((), (), saves=saves))
                self._kv.finish_moves(output.saved)
        except Exception:
            logger.exception("the prefixes in the KV cache could not be saved")

    def _search(self, group: BeamGroup, now: float) -> list[OutputDelta]:
        """A step of beam search: the last delta of the request if it was the last step, or failed."""
        request = group.request
        try:
            if self._beams.advance(group):
                return []
            return [self._outputs.complete(request, group.hypotheses, now)]
        except Exception as error:
            logger.exception("the beam search of request %s failed", request.request_id)
            failure = StepError(f"the beam search failed: {error}")
            failure.__cause__ = error
            return [self._outputs.close(request.request_id, "error", failure)]

    # ---- the end of requests

    def _end(self, request_id: str, finish_reason: FinishReason, error: Exception | None = None) -> OutputDelta:
        delta = self._outputs.close(request_id, finish_reason, error)
        self._retire(delta)
        # No step may follow: what the request held must be seen to be free.
        self._report_step(StepCounts(), 0, 0.0)
        return delta

    def _give_up_all(self, ids: list[str]) -> list[OutputDelta]:
        """Ends requests that have waited too long, beams with all others of theirs."""
        error = QueueTimeoutError("the request waited longer than it may; try again later")
        return [self._end(request_id, "error", error) for request_id in self._beams.request_ids(ids)]

    def _retire(self, delta: OutputDelta) -> None:
        """Frees what a request held, now that its last delta exists."""
        if not self._beams.remove(delta.request_id):
            self._scheduler.remove(delta.request_id)
        self._constraints.close(delta.request_id)
        answer = self._outputs.forget(delta.request_id)
        assert delta.finish_reason is not None
        stats = RequestStats(
            num_prompt_tokens=delta.num_prompt_tokens,
            num_output_tokens=delta.num_output_tokens,
            num_cached_tokens=delta.num_cached_tokens,
            max_tokens=answer.max_tokens,
            finish_reason=delta.finish_reason,
            times=answer.times,
            finished=time.monotonic(),
            within_targets=self._within_targets(delta, answer.times),
            num_choices=answer.num_choices,
        )
        self._tell(lambda listener: listener.on_request(stats))

    def _within_targets(self, delta: OutputDelta, times: RequestTimes) -> bool | None:
        """Whether a request met the service targets; None: there are none, or it was aborted."""
        if not self._targets.given or delta.finish_reason == "abort":
            return None
        if delta.finish_reason == "error" or times.first_token is None or times.last_token is None:
            return False
        tpot_s = (times.last_token - times.first_token) / max(1, delta.num_output_tokens - 1)
        return self._targets.met_by(times.first_token - times.arrival, tpot_s)

    def _fail_step(self, plan: StepPlan, error: Exception) -> list[OutputDelta]:
        self._scheduler.forget_step()
        request_ids = self._beams.request_ids(self._scheduler.step_request_ids)
        logger.error(
            "a step failed: %s; its %d requests end with an error; plan: %s",
            error, len(request_ids), _describe(plan, self._scheduler.step_request_ids), exc_info=error,
        )  # fmt: skip
        self._num_failed_steps += 1
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            return self.die(f"the backend failed {MAX_FAILED_STEPS} steps in a row, last with: {error}")
        failure = StepError(f"the step that ran this request failed: {error}")
        failure.__cause__ = error
        return [self._end(request_id, "error", failure) for request_id in request_ids]

    # ---- reports

    def _report_gaps(self, gaps: Mapping[float, int]) -> None:
        def tell_gaps(listener: StatsListener) -> None:
            for seconds, count in gaps.items():
                listener.on_token_gap(seconds, count)

        self._tell(tell_gaps)

    def _report_step(self, counts: StepCounts, num_output_tokens: int, seconds: float) -> None:
        if not self._listeners:
            return
        stats = StepStats(
            num_prompt_tokens=counts.num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            num_blocks_used=self._kv.pool.num_used,
            num_blocks=self._kv.num_blocks,
            num_preempted=counts.num_preempted,
            num_prefix_queries=counts.num_prefix_queries,
            num_prefix_hits=counts.num_prefix_hits,
            num_evicted_blocks=counts.num_evicted_blocks,
            num_copied_blocks=counts.num_copied_blocks,
            num_long_tokens=counts.num_long_tokens,
            num_late=counts.num_late,
            limit_s=counts.limit_s,
            predicted_s=counts.predicted_s,
            pressed=counts.pressed,
            num_blocks_cached=self._kv.pool.num_cached,
            kv_utilization=self._scheduler.kv_utilization,
            num_blocks_saved=self._kv.num_saved,
            num_blocks_loaded=self._kv.num_loaded,
            seconds=seconds,
        )
        self._tell(lambda listener: listener.on_step(stats))

    def _report_rejection(self, error: QueueFullError) -> None:
        self._tell(lambda listener: listener.on_rejection(error.limit))

    def _tell(self, report: Callable[[StatsListener], None]) -> None:
        """Reports to every listener. One that raises is not told again: figures must not cost anybody an answer."""
        for listener in self._listeners:
            try:
                report(listener)
            except Exception:
                logger.exception("%r failed and will be told nothing more", listener)
                self._listeners = tuple(other for other in self._listeners if other is not listener)


def _describe(plan: StepPlan, request_ids: list[str]) -> str:
    """A plan for the log: ids and counts, nothing of what the requests say."""
    told = [f"row {row}: decodes" for row in plan.decoding]
    told += [
        f"row {step.row}: {step.num_computed_tokens}+{step.num_tokens}{', samples' if step.samples else ''}"
        for step in plan.steps
    ]
    rows = ", ".join(f"{request_id} ({row})" for request_id, row in zip(request_ids, told, strict=True))
    return f"{plan.num_tokens} tokens, {len(plan.starts)} starts: {rows}"
