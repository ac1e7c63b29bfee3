"""What goes into the engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from octavo.constraint import ConstraintSource
from octavo.passage import PassageSource
from octavo.sampling_params import SamplingParams
from octavo.step import TokenLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What the keys and values of a prompt depend on beside its tokens: requests that differ in one never share blocks.

    `adapter` names the fine-tuning applied, `image_hash` the content of all images, and `cache_salt` is whatever the
    client chose to keep its prompts apart from those of others. Without prefix caching only the answers to one request
    share, whose `parent_id` they have.
    """

    adapter: str | None = None
    image_hash: str | None = None
    cache_salt: str | None = None
    parent_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks: `key` names an API key, `user` is a digest of what the client calls its end user; "" where unknown."""

    key: str = ""
    user: str = ""


ANONYMOUS = Tenant()


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose prompt is tokenised and whose limits have been checked.

    `sampling.max_tokens` and `sampling.seed` are set (never None) by the time a Request exists.
    `arrival_time` is seconds of `time.monotonic()`. Requests that are the several answers to one have its id as
    `parent_id`; the first of them has their number as `num_choices`, the others 0. `bad_words` are the sampling
    parameters' as token ids; `constraint` is what the answer has to keep to; in the passage `unstopped`
    at its beginning stop strings do not count. What is sampled for one that `is_beam` is
    reported but not appended: whoever searches gives it its tokens.

    Of two requests the one with the lower `priority` goes first, where the scheduling policy honours priorities. A
    request that has waited `queue_timeout_s` without running is given up. One that `is_admitted` belongs to an answer
    for which the queue was looked at already: it is not refused for a full one.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: frozenset[int]
    arrival_time: float
    prompt: str | None = None
    parent_id: str | None = None
    num_choices: int = 1
    bad_words: tuple[tuple[int, ...], ...] = ()
    prefix_key: PrefixKey = PrefixKey()
    constraint: ConstraintSource | None = None
    unstopped: PassageSource | None = None
    is_beam: bool = False
    priority: int = 0
    tenant: Tenant = ANONYMOUS
    queue_timeout_s: float | None = None
    is_admitted: bool = False


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Seconds of `time.monotonic()` at the milestones of a request; None while not reached."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(frozen=True, slots=True)
class PlacedLogprobs:
    """The log probabilities of a token of the answer, which begins `text_offset` characters into its text."""

    token: TokenLogprobs
    text_offset: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool in an answer; `arguments` is JSON text, which may be cut where the answer was."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One finished answer. `logprobs`, if asked for, has one entry for each of `token_ids`.

    `cumulative_logprob` is the log probability of all of them, known with `logprobs`, `best_of` and beam search.
    Of a chat `text` is told apart: `reasoning`, `content` (None for calls alone) and `tool_calls`.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    cumulative_logprob: float | None = None
    reasoning: str | None = None
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


class OutputDelta(NamedTuple):
    """What one step added to one request. Exactly one delta of a request has a `finish_reason`: its last.

    One is made for each token, hence a tuple: a frozen dataclass of so many fields takes six times as long to make.

    `text` never ends inside a character or inside what could become a stop string. `stop_reason` is the stop string
    or stop token id that ended the text (None for EOS). `error` is set when `finish_reason` is "error".

    Where asked for, `logprobs` has one entry for each of `token_ids`, and the first delta with tokens has
    `prompt_logprobs`, one entry for each token of the prompt but the first.

    A request under beam search has no text; its last delta has `completions` instead, the best first.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    times: RequestTimes | None = None
    error: Exception | None = None
    logprobs: tuple[PlacedLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    completions: tuple[CompletionOutput, ...] = ()

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


def merged(deltas: Sequence[OutputDelta]) -> OutputDelta:
    """Successive deltas of one request, at least one, as one: what each adds, put together; the rest is the last's."""
    if len(deltas) == 1:
        return deltas[0]
    return deltas[-1]._replace(
        text="".join([delta.text for delta in deltas]),
        token_ids=tuple([token_id for delta in deltas for token_id in delta.token_ids]),
        logprobs=tuple([placed for delta in deltas for placed in delta.logprobs]),
        prompt_logprobs=tuple([token for delta in deltas for token in delta.prompt_logprobs]),
    )


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request as `LLM.generate` returns it.

    `prompt_logprobs`, if asked for, has one entry for each token of the prompt; that of the first is None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    num_cached_tokens: int = 0
    times: RequestTimes | None = field(default=None, repr=False)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
