"""Answers as they come out of the engine, before any wire format."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.engine.choices import best_first, fan_out
from octavo.errors import ShuttingDownError, StepError
from octavo.reasoning.count import ReasoningCount
from octavo.request import FinishReason, OutputDelta, PlacedLogprobs, Request
from octavo.sampling_params import SamplingParams
from octavo.server.logprobs import ShownLogprobs
from octavo.step import TokenLogprobs

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What was added to the choice number `index` of an answer. Of the choices of one prompt, one `counts_prompt`.

    `num_reasoning_tokens` are those of the choice so far.
    """

    index: int
    delta: OutputDelta
    counts_prompt: bool = True
    num_reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole answer: each prompt once, however many choices continue it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def plus(self, last: ChoiceDelta) -> Usage:
        """With a choice added, of which `last` is the last delta."""
        delta = last.delta
        return Usage(
            self.prompt_tokens + last.counts_prompt * delta.num_prompt_tokens,
            self.completion_tokens + delta.num_output_tokens,
            self.cached_tokens + last.counts_prompt * delta.num_cached_tokens,
            self.reasoning_tokens + last.num_reasoning_tokens,
        )

    def without_output(self) -> Usage:
        return Usage(self.prompt_tokens, 0, self.cached_tokens)

    def as_json(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


class UsageMeter:
    """What an answer has used so far."""

    __slots__ = ("_counts_output", "_latest")

    def __init__(self, *, counts_output: bool = True) -> None:
        self._counts_output = counts_output
        self._latest: dict[int, ChoiceDelta] = {}

    def add(self, item: ChoiceDelta) -> UsageMeter:
        self._latest[item.index] = item
        return self

    @property
    def usage(self) -> Usage:
        usage = Usage()
        for item in self._latest.values():
            usage = usage.plus(item)
        return usage if self._counts_output else usage.without_output()


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished answer. `logprobs` are those of the tokens that are in the text, `sampled` those of all."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None
    logprobs: tuple[PlacedLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]
    sampled: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    choices: tuple[Choice, ...]
    usage: Usage

    def best(self, n: int, of: int) -> Answer:
        """The best `n` choices of each prompt, of which there are `of` now; the usage stays that of all."""
        kept: list[Choice] = []
        for first in range(0, len(self.choices), of):
            samples = self.choices[first : first + of]
            ranking = best_first([choice.sampled for choice in samples])
            best = [samples[place] for place in ranking[:n]]
            kept += [replace(best[0], prompt_logprobs=samples[0].prompt_logprobs), *best[1:]]
        return Answer(tuple(replace(choice, index=index) for index, choice in enumerate(kept)), self.usage)


def stream_choices(engine: AsyncEngine, requests: Sequence[Request]) -> AsyncGenerator[ChoiceDelta, None]:
    """All choices of an answer: those of the first request, then those of the next, as they come."""
    groups = [fan_out(replace(request, is_admitted=index > 0)) for index, request in enumerate(requests)]
    return interleave([engine.generate(choice) for group in groups for choice in group], len(groups[0]))


async def collect(deltas: AsyncGenerator[ChoiceDelta, None], sampling: SamplingParams) -> Answer:
    """Waits for all choices to end, and keeps the best if more were sampled than are asked for."""
    growing: dict[int, _GrowingChoice] = {}
    choices: list[Choice] = []
    usage = Usage()
    async with aclosing(deltas):
        async for item in deltas:
            choice = growing.setdefault(item.index, _GrowingChoice(item.index))
            choice.add(item.delta)
            if item.delta.finish_reason is not None:
                choices.append(choice.finished(item.delta))
                usage = usage.plus(item)
    answer = Answer(tuple(sorted(choices, key=lambda choice: choice.index)), usage)
    return answer.best(sampling.n, of=sampling.num_samples) if sampling.keeps_best else answer


class _GrowingChoice:
    """What has come of a choice so far."""

    __slots__ = ("_index", "_logprobs", "_prompt_logprobs", "_sampled", "_shown", "_texts", "_token_ids")

    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._shown = ShownLogprobs()
        self._logprobs: list[PlacedLogprobs] = []
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._sampled: list[TokenLogprobs] = []

    def add(self, delta: OutputDelta) -> None:
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._logprobs += self._shown.take(delta)
        self._sampled += [placed.token for placed in delta.logprobs]
        self._prompt_logprobs += delta.prompt_logprobs

    def finished(self, last: OutputDelta) -> Choice:
        assert last.finish_reason is not None
        return Choice(
            self._index,
            "".join(self._texts),
            tuple(self._token_ids),
            last.finish_reason,
            last.stop_reason,
            tuple(self._logprobs),
            self._prompt_logprobs,
            tuple(self._sampled),
        )


async def interleave(
    streams: Sequence[AsyncGenerator[OutputDelta, None]], streams_per_prompt: int = 1
) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of several choices as they come. Raises when one of them fails, which ends the others.

    A stream is one choice, or under beam search all those of its prompt. Closing this closes all streams, which aborts
    what still runs.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]):
            async for delta in streams[0]:
                _raise_failure(delta)
                for choice in _choices(ChoiceDelta(0, delta)):
                    yield choice
        return
    arrived: asyncio.Queue[ChoiceDelta | Exception] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(index, stream, arrived)) for index, stream in enumerate(streams)]
    try:
        num_open = len(streams)
        while num_open:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            _raise_failure(item.delta)
            num_open -= item.delta.finished
            for choice in _choices(replace(item, counts_prompt=item.index % streams_per_prompt == 0)):
                yield choice
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def with_reasoning_counted(
    deltas: AsyncGenerator[ChoiceDelta, None], new_count: Callable[[], ReasoningCount]
) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas, each knowing how many tokens its choice has reasoned; `new_count` counts those of one choice."""
    counts: defaultdict[int, ReasoningCount] = defaultdict(new_count)
    async with aclosing(deltas):
        async for item in deltas:
            count = counts[item.index]
            for token_id in item.delta.token_ids:
                count.accept(token_id)
            yield replace(item, num_reasoning_tokens=count.num_tokens)


async def _pump(
    index: int, stream: AsyncGenerator[OutputDelta, None], arrived: asyncio.Queue[ChoiceDelta | Exception]
) -> None:
    try:
        async with aclosing(stream):
            async for delta in stream:
                arrived.put_nowait(ChoiceDelta(index, delta))
    except Exception as error:  # noqa: BLE001 - raised again by the reader of the queue
        arrived.put_nowait(error)


def _choices(item: ChoiceDelta) -> list[ChoiceDelta]:
    """The delta itself, or if it brings all texts of a beam search, one for each of these."""
    completions = item.delta.completions
    if not completions:
        return [item]
    return [
        ChoiceDelta(
            item.index * len(completions) + completion.index,
            item.delta._replace(
                text=completion.text,
                token_ids=completion.token_ids,
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
                num_output_tokens=len(completion.token_ids),
                completions=(),
            ),
            counts_prompt=completion.index == 0,
        )
        for completion in completions
    ]


def _raise_failure(delta: OutputDelta) -> None:
    """A request that the engine gave up has no answer: a text cut short must not pass for a finished one."""
    if delta.finish_reason == "error":
        raise delta.error or StepError("the step that computed this request failed")
    if delta.finish_reason == "abort":
        raise ShuttingDownError("the request was aborted because the server is shutting down")
