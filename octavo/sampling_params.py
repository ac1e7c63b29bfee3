"""What a request asks of the sampler and of the end of its text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, cast

from octavo.errors import InvalidValueError, UnsupportedParameterError
from octavo.structured_outputs import StructuredOutputsParams

MAX_STOP_CHARACTERS = 16_384
"""Of all stop strings of a request together: each character costs memory, and the engine's time before it starts."""

MAX_BAD_WORDS = 1024
"""Each is looked for before every token of the answer."""

MAX_CHOICES = 128
"""The most answers that one request may ask for; OpenAI's limit."""

EarlyStopping = bool | Literal["never"]

# All tokens are equally likely long before.
_HOTTEST = 1_000_000
# Any logit it touches is as good as forbidden, or as good as chosen, long before. What the backend would take for 0
# fails a step with all its requests.
_LARGEST_REPETITION_PENALTY = 1_000
_SMALLEST_REPETITION_PENALTY = 0.001
_MAX_DIGITS = 12
# Lengths decide alone long before.
_LARGEST_LENGTH_PENALTY = 20
_LARGEST_BIAS = 100
# What means the same to beam search as to sampling, or nothing.
_WITH_BEAM_SEARCH = {
    "best_of",
    "early_stopping",
    "ignore_eos",
    "include_stop_str_in_output",
    "length_penalty",
    "max_tokens",
    "min_tokens",
    "n",
    "seed",
    "skip_special_tokens",
    "stop_token_ids",
    "temperature",
    "use_beam_search",
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Names and meanings are vLLM's.

    `max_tokens=None` means "as many as the context allows". `seed=None` draws a fresh seed for the request.
    `temperature=0` is greedy. `top_k=0` and `top_p=1` and `min_p=0` switch a filter off. Empty `allowed_token_ids`
    allow all. `logprobs=k` reports each token's log probability and those of the k likeliest (-1: of the whole
    vocabulary); `prompt_logprobs` the same for the prompt.

    `n` answers are sampled, each with a seed of its own that follows from `seed`; answer 0 is the one that `n=1` would
    give. With `best_of` so many are sampled, and the `n` with the highest mean log probability of their tokens are the
    answer, best first.

    Before a token is drawn, its logits go through: `allowed_token_ids`, `bad_words`, `min_tokens`, `logit_bias`,
    `repetition_penalty` (over prompt and output), `frequency_penalty`, `presence_penalty` (over the output),
    `temperature`, `min_p`, `top_k`, `top_p`. Log probabilities are taken before all of these.

    `use_beam_search` searches with `best_of` (or `n`) beams for the likeliest texts instead of sampling, as `generate`
    of transformers does with `num_beams`: a text's score is its log probability divided by its length to the power of
    `length_penalty`, and `early_stopping` says when the search ends (True: once as many texts as beams are finished;
    False: when no beam at its present length would be among them; "never": when none could be at any length).

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
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    best_of: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _tuple_of("stop", stop, "text or a list of texts"))
        stop_token_ids = _tuple_of("stop_token_ids", self.stop_token_ids, "a list of token ids")
        object.__setattr__(self, "stop_token_ids", stop_token_ids)
        object.__setattr__(self, "bad_words", _tuple_of("bad_words", self.bad_words, "a list of texts"))
        allowed = () if self.allowed_token_ids is None else self.allowed_token_ids
        object.__setattr__(self, "allowed_token_ids", _tuple_of("allowed_token_ids", allowed, "a list of token ids"))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        self._check_types()
        self._check_ranges()
        self._check_stop()
        self._check_bad_words()
        form = self.structured_outputs
        _require(
            form is None or isinstance(form, StructuredOutputsParams),
            "structured_outputs", form, "a StructuredOutputsParams",
        )  # fmt: skip
        self._check_choices()
        if self.use_beam_search:
            self._check_beam_search()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def num_samples(self) -> int:
        """How many answers are sampled, or beams searched with, to give `n`."""
        return self.n if self.best_of is None else self.best_of

    @property
    def keeps_best(self) -> bool:
        """Whether more answers are sampled than are given."""
        return self.num_samples > self.n and not self.use_beam_search

    def _check_types(self) -> None:
        for param, number in (
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("length_penalty", self.length_penalty),
        ):
            _require(isinstance(number, Real) and not isinstance(number, bool), param, number, "a number")
        for param, integer in (
            ("top_k", self.top_k),
            ("min_tokens", self.min_tokens),
            ("max_tokens", 0 if self.max_tokens is None else self.max_tokens),
            ("seed", 0 if self.seed is None else self.seed),
            ("n", self.n),
            ("logprobs", 0 if self.logprobs is None else self.logprobs),
            ("prompt_logprobs", 0 if self.prompt_logprobs is None else self.prompt_logprobs),
            ("best_of", self.n if self.best_of is None else self.best_of),
        ):
            _require(isinstance(integer, Integral) and not isinstance(integer, bool), param, integer, "an integer")
        for param, flag in (
            ("include_stop_str_in_output", self.include_stop_str_in_output),
            ("ignore_eos", self.ignore_eos),
            ("skip_special_tokens", self.skip_special_tokens),
            ("use_beam_search", self.use_beam_search),
        ):
            _require(isinstance(flag, bool), param, flag, "True or False")

    def _check_ranges(self) -> None:
        _require(0.0 <= self.temperature <= _HOTTEST, "temperature", self.temperature, f"a number from 0 to {_HOTTEST}")
        _require(self.top_k >= -1, "top_k", self.top_k, "0 or -1 (off) or a positive integer")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "a number above 0 and at most 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "a number from 0 to 1")
        for param, penalty in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            _require(-2.0 <= penalty <= 2.0, param, penalty, "a number from -2 to 2")
        _require(
            _SMALLEST_REPETITION_PENALTY <= self.repetition_penalty <= _LARGEST_REPETITION_PENALTY,
            "repetition_penalty", self.repetition_penalty,
            f"a number from {_SMALLEST_REPETITION_PENALTY} to {_LARGEST_REPETITION_PENALTY}",
        )  # fmt: skip
        for param, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            _require(count is None or count >= -1, param, count, "at least 0, or -1 for the whole vocabulary")
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "at least 0")
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})",
        )  # fmt: skip

    def _check_choices(self) -> None:
        _require(1 <= self.n <= MAX_CHOICES, "n", self.n, f"an integer from 1 to {MAX_CHOICES}")
        _require(
            self.n <= self.num_samples <= MAX_CHOICES,
            "best_of", self.best_of, f"an integer from n ({self.n}) to {MAX_CHOICES}",
        )  # fmt: skip
        known = isinstance(self.early_stopping, bool) or self.early_stopping == "never"
        _require(known, "early_stopping", self.early_stopping, 'True, False or "never"')
        _require(
            abs(self.length_penalty) <= _LARGEST_LENGTH_PENALTY,
            "length_penalty", self.length_penalty,
            f"a number from -{_LARGEST_LENGTH_PENALTY} to {_LARGEST_LENGTH_PENALTY}",
        )  # fmt: skip
        for param, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if not self.use_beam_search and getattr(self, param) != neutral:
                raise InvalidValueError(
                    f"{param} is {getattr(self, param)!r}; it may be given only with use_beam_search", param=param
                )

    def _check_beam_search(self) -> None:
        """Beam search looks at the model's own probabilities: whatever would change how tokens are drawn is refused."""
        _require(
            self.temperature in (0.0, 1.0),
            "temperature", self.temperature, "0 or 1 with use_beam_search, which draws nothing",
        )  # fmt: skip
        for each in fields(self):
            if each.name in _WITH_BEAM_SEARCH:
                continue
            neutral = each.default if each.default_factory is MISSING else each.default_factory()
            if getattr(self, each.name) != neutral:
                raise UnsupportedParameterError(
                    f"{each.name} is {getattr(self, each.name)!r}; with use_beam_search it must be left out",
                    param=each.name,
                )

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

    def _check_bad_words(self) -> None:
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidValueError(
                f"bad_words has {len(self.bad_words)} words; at most {MAX_BAD_WORDS} are allowed", param="bad_words"
            )
        for index, word in enumerate(self.bad_words):
            if not isinstance(word, str) or not word:
                raise InvalidValueError(
                    f"bad_words[{index}] is {word!r}; it must be a non-empty string", param="bad_words"
                )


class _CheckedBiases(dict[int, float]):
    """Biases known to be right: parameters made from others share theirs, which may be those of a whole vocabulary."""


def _biases(logit_bias: Any) -> _CheckedBiases:
    """A copy, from token ids as numbers or, as JSON has them, as text."""
    if isinstance(logit_bias, _CheckedBiases):
        return logit_bias
    if logit_bias is None:
        return _CheckedBiases()
    _require(isinstance(logit_bias, Mapping), "logit_bias", logit_bias, "a mapping from token ids to numbers")
    return _CheckedBiases(
        (_bias_token(token_id), _bias_value(token_id, value)) for token_id, value in logit_bias.items()
    )


def _bias_token(token_id: Any) -> int:
    if isinstance(token_id, str) and token_id.isascii() and token_id.isdecimal() and len(token_id) <= _MAX_DIGITS:
        return int(token_id)
    if isinstance(token_id, Integral) and not isinstance(token_id, bool):
        return int(token_id)
    raise InvalidValueError(f"logit_bias has the key {token_id!r}; its keys are token ids", param="logit_bias")


def _bias_value(token_id: Any, value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool) and abs(cast(float, value)) <= _LARGEST_BIAS:
        return float(value)
    raise InvalidValueError(
        f"logit_bias[{token_id}] is {value!r}; it must be a number from -{_LARGEST_BIAS} to {_LARGEST_BIAS}",
        param="logit_bias",
    )


def _tuple_of(param: str, values: Any, expected: str) -> tuple[Any, ...]:
    _require(isinstance(values, Iterable) and not isinstance(values, (str, bytes)), param, values, expected)
    return tuple(values)


def _require(holds: bool, param: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidValueError(f"{param} is {value!r}; it must be {expected}", param=param)
