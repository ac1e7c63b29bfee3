"""What a request asks of the sampler and of the end of its text."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Names and meanings are vLLM's.

    `max_tokens=None` means "as many as the context allows". `seed=None` draws a fresh seed for the request.
    `temperature=0` is greedy. `top_k=0` and `top_p=1` and `min_p=0` switch a filter off.

    Raises `InvalidValueError`, naming the field, for any value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        _require(0.0 <= self.temperature < float("inf"), "temperature", self.temperature, "a number of at least 0")
        _require(self.top_k >= -1, "top_k", self.top_k, "0 or -1 (off) or a positive integer")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "a number above 0 and at most 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "a number from 0 to 1")
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "at least 0")
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})",
        )
        _require(all(self.stop), "stop", self.stop, "non-empty strings")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _require(holds: bool, param: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidValueError(f"{param} is {value!r}; it must be {expected}", param=param)
