"""What request bodies of several endpoints have in common. They exist at this edge only; what goes on is a `Request`.

Fields that are known but not acted on are in unsupported.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from octavo.engine.truncation import Truncation
from octavo.errors import InvalidValueError
from octavo.sampling_params import SamplingParams
from octavo.server import unsupported

_INT64 = 2**63
LEAST_QUEUE_TIMEOUT_S = 0.01  # less than a step may take could only be missed

T = TypeVar("T")
# Checked up to the first bad item only: an error for each of a million would take minutes.
Array = Annotated[list[T], Field(fail_fast=True)]
TokenIds = Array[int]
Stop = str | Array[str] | None
Seed = Annotated[int, Field(ge=-_INT64, lt=_INT64)]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


class WireModel(BaseModel):
    """Keeps undeclared fields, so that they can be refused by name."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, hide_input_in_errors=True)

    def undeclared(self) -> Mapping[str, Any]:
        return self.model_extra or {}


class StreamOptions(WireModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(WireModel):
    """What both endpoints accept. Null means the same as leaving a field out."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: Seed | None = None
    stop: Stop = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None

    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    repetition_penalty: float | None = None
    bad_words: Array[str] | None = None
    allowed_token_ids: TokenIds | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    priority: int | None = None
    service_tier: ServiceTier | None = None
    user: str | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    queue_timeout: Annotated[float, Field(ge=LEAST_QUEUE_TIMEOUT_S)] | None = None

    @property
    def gives_max_tokens(self) -> bool:
        """Whether the client named the length of the answer."""
        return self.max_tokens is not None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def counts_continuously(self) -> bool:
        """Whether every chunk says what has been used so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats is True

    @property
    def truncation(self) -> Truncation | None:
        if self.truncate_prompt_tokens is None:
            return None
        return Truncation(self.truncate_prompt_tokens, self.truncation_side or "left")

    def check_streaming(self, *, strict: bool) -> None:
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidValueError("prompt_logprobs cannot be streamed", param="prompt_logprobs")
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidValueError("stream_options may be given only with stream=true", param="stream_options")
        unsupported.check_undeclared(
            self.stream_options.undeclared(), unsupported.STREAM_OPTIONS, "stream_options", strict=strict
        )

    def sampling_params(
        self, max_tokens: int | None, defaults: Mapping[str, Any], *, logprobs: int | None
    ) -> SamplingParams:
        """Where a field is missing `defaults` hold, the model's own; then those of `SamplingParams`, OpenAI's.

        Raises `InvalidValueError` for a value out of range.
        """
        given = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "min_tokens": self.min_tokens,
            "n": self.n,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self.logit_bias,
            "bad_words": self.bad_words,
            "allowed_token_ids": self.allowed_token_ids,
            "logprobs": logprobs,
            "prompt_logprobs": self.prompt_logprobs,
            "best_of": self.best_of,
            "use_beam_search": self.use_beam_search,
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop,
            "stop_token_ids": self.stop_token_ids,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
        }
        set_fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.use_beam_search:  # which draws nothing, whatever the model's authors advise for drawing
            defaults = {}
        sampling = SamplingParams(seed=self.seed, max_tokens=max_tokens, **{**defaults, **set_fields})
        if self.stream and sampling.keeps_best:
            raise InvalidValueError(
                f"best_of is {sampling.best_of}; with stream=true it must be n ({sampling.n}), since which answers are "
                "best is known only at their end",
                param="best_of",
            )
        return sampling
