"""What a request asks of the sampler and of the end of its text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from octavo.errors import InvalidValueError

MAX_STOP_CHARACTERS = 16_384
"""Of all stop strings of a request together: each character costs memory, and the engine's time before it starts."""

MAX_CHOICES = 128
"""The most answers that one request may ask for; OpenAI's limit."""

# All tokens are equally likely long before.
_HOTTEST = 1_000_000


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Names and meanings are vLLM's.

    `max_tokens=None` means "as many as the context allows". `seed=None` draws a fresh seed for the request.
    `temperature=0` is greedy. `top_k=0` and `top_p=1` and `min_p=0` switch a filter off. `n` answers are sampled, each
    with a seed of its own that follows from `seed`; answer 0 is the one that `n=1` would give.

    Raises `InvalidValueError`, naming the field, for any value of the wrong type or outside its range.
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
    n: int = 1

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _tuple_of("stop", stop, "text or a list of texts"))
        stop_token_ids = _tuple_of("stop_token_ids", self.stop_token_ids, "a list of token ids")
        object.__setattr__(self, "stop_token_ids", stop_token_ids)
        self._check_types()
        self._check_ranges()
        self._check_stop()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def _check_types(self) -> None:
        for param, number in (("temperature", self.temperature), ("top_p", self.top_p), ("min_p", self.min_p)):
            _require(isinstance(number, Real) and not isinstance(number, bool), param, number, "a number")
        for param, integer in (
            ("top_k", self.top_k),
            ("min_tokens", self.min_tokens),
            ("max_tokens", 0 if self.max_tokens is None else self.max_tokens),
            ("seed", 0 if self.seed is None else self.seed),
            ("n", self.n),
        ):
            _require(isinstance(integer, Integral) and not isinstance(integer, bool), param, integer, "an integer")
        for param, flag in (
            ("include_stop_str_in_output", self.include_stop_str_in_output),
            ("ignore_eos", self.ignore_eos),
            ("skip_special_tokens", self.skip_special_tokens),
        ):
            _require(isinstance(flag, bool), param, flag, "True or False")

    def _check_ranges(self) -> None:
        _require(0.0 <= self.temperature <= _HOTTEST, "temperature", self.temperature, f"a number from 0 to {_HOTTEST}")
        _require(self.top_k >= -1, "top_k", self.top_k, "0 or -1 (off) or a positive integer")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "a number above 0 and at most 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "a number from 0 to 1")
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(1 <= self.n <= MAX_CHOICES, "n", self.n, f"an integer from 1 to {MAX_CHOICES}")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "at least 0")
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})",
        )  # fmt: skip

    def _check_stop(self) -> None:
        for index, string in enumerate(self.stop):
            if not isinstance(string, str) or not string:
                raise InvalidValueError(f"stop[{index}] is {string!r}; it must be a non-empty string", param="stop")
        length = sum(map(len, self.stop))
        if length > MAX_STOP_CHARACTERS:
            raise InvalidValueError(
                f"stop has {length} characters in {len(self.stop)} strings; at most {MAX_STOP_CHARACTERS} are allowed",
                param="stop",
            )


def _tuple_of(param: str, values: Any, expected: str) -> tuple[Any, ...]:
    _require(isinstance(values, Iterable) and not isinstance(values, (str, bytes)), param, values, expected)
    return tuple(values)


def _require(holds: bool, param: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidValueError(f"{param} is {value!r}; it must be {expected}", param=param)
