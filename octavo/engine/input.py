"""From what a caller gives, text or messages or token ids, to a `Request` that the engine can serve."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import Any, SupportsIndex

from octavo.config import DEFAULT_MAX_LOGPROBS
from octavo.engine.answer_rules import AnswerRules
from octavo.engine.bad_words import bad_word_tokens
from octavo.engine.bans import bans_of
from octavo.engine.seeds import seed_of_request
from octavo.engine.truncation import Truncation
from octavo.errors import ContextLengthError, InvalidValueError, UnsupportedParameterError
from octavo.grammar.compiler import CompiledForm, GrammarCompiler
from octavo.grammar.definition import form_of
from octavo.grammar.forms import Form
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.request_state import ending_token_ids
from octavo.tokenizer.tokenizer import Tokenizer

_UINT64 = 2**64 - 1


# More than a token of text in any language has, less than a run of spaces may have.
_CHARACTERS_A_TOKEN = 32
# How many characters normalisation makes one of, at most: letters and the accents that are put on them.
_COMPOSED_CHARACTERS = 4


class InputProcessor:
    """Tokenises, applies the chat template and checks every limit, so that what passes can run to its end.

    `kv_cache_tokens` is what the whole KV cache holds: a request may not outgrow it. Safe to use from several threads.
    All methods raise subclasses of `RequestError` that name the field.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        kv_cache_tokens: int,
        seed: int = 0,
        max_logprobs: int = DEFAULT_MAX_LOGPROBS,
        grammars: GrammarCompiler,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._kv_cache_tokens = kv_cache_tokens
        self._seed = seed
        self._max_logprobs = max_logprobs
        self._grammars = grammars
        self._num_seeds_drawn = itertools.count()

    def from_prompt(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        suffix: str | None = None,
        truncation: Truncation | None = None,
        add_special_tokens: bool = True,
        rules: AnswerRules | None = None,
    ) -> Request:
        """A request for a continuation of `prompt`: text, to be tokenised with the model's BOS rule, or token ids.

        With `suffix`, for what stands between the two texts. `rules` take the place of the form that the sampling
        parameters ask for.
        """
        if isinstance(prompt, str):
            token_ids = self._encode_prompt(prompt, suffix, truncation, add_special_tokens)
            return self._request(self._truncated(token_ids, sampling, truncation), prompt, sampling, request_id, rules)
        require_list(prompt, "prompt", "text or a list of token ids")
        if suffix:
            raise InvalidValueError("suffix needs a prompt that is text, not token ids", param="suffix")
        prompt = self._truncated(prompt, sampling, truncation)
        self._check_prompt_length(len(prompt))
        return self._request(self.checked_token_ids(prompt, "prompt"), None, sampling, request_id, rules)

    def from_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        truncation: Truncation | None = None,
        **template_kwargs: Any,
    ) -> Request:
        """A request for the next turn of a conversation. Raises `ChatTemplateError` if the template cannot render it.

        `template_kwargs` go to `Tokenizer.apply_chat_template`.
        """
        prompt = self.render(messages, **template_kwargs)
        return self.from_rendered(prompt, sampling, request_id=request_id, truncation=truncation)

    def from_rendered(
        self,
        prompt: str,
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        truncation: Truncation | None = None,
        rules: AnswerRules | None = None,
    ) -> Request:
        """A request for the next turn of a conversation that `render` has written down.

        `rules` take the place of the form that the sampling parameters ask for.
        """
        self._refuse_far_too_long(prompt, truncation)
        token_ids = self._truncated(self._tokenizer.encode_rendered(prompt), sampling, truncation)
        return self._request(token_ids, None, sampling, request_id, rules)

    def compile(self, form: Form, param: str) -> CompiledForm:
        """A form for `AnswerRules`; may take some milliseconds, in which other threads run.

        Raises `InvalidValueError`, for the request field `param`, if it cannot be enforced.
        """
        return self._grammars.compile(form, param)

    def encode_messages(
        self, messages: Sequence[Mapping[str, Any]], truncation: Truncation | None = None, **template_kwargs: Any
    ) -> list[int]:
        """The whole prompt for the next turn of a conversation."""
        prompt = self.render(messages, **template_kwargs)
        self._refuse_far_too_long(prompt, truncation)
        return self._tokenizer.encode_rendered(prompt)

    def render(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> str:
        """What the chat template makes of a conversation."""
        if not messages:
            raise InvalidValueError("messages is empty; it must have at least one message", param="messages")
        return self._tokenizer.apply_chat_template(messages, **template_kwargs)

    def _encode_prompt(
        self, prompt: str, suffix: str | None, truncation: Truncation | None, add_special_tokens: bool
    ) -> list[int]:
        self._refuse_far_too_long(prompt, truncation)
        if suffix:
            self._refuse_far_too_long(suffix, truncation)
            return self._tokenizer.encode_infill(prompt, suffix)
        return self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens)

    def _refuse_far_too_long(self, text: str, truncation: Truncation | None) -> None:
        """Spares the tokeniser a text that would be too long even in the longest tokens there are, and one of which a
        part alone is twice too long. What remains is checked by the token.
        """
        part = text[: _CHARACTERS_A_TOKEN * self._max_model_len]
        if truncation is not None or len(part) == len(text):
            return
        self._refuse_more_than(len(text) // (_COMPOSED_CHARACTERS * self._longest_token_bytes), 1)
        self._refuse_more_than(len(self._tokenizer.encode(part, add_special_tokens=False)), 2)

    def _refuse_more_than(self, num_tokens: int, num_contexts: int) -> None:
        if num_tokens > num_contexts * self._max_model_len:
            raise ContextLengthError(
                f"the prompt has more than {num_tokens} tokens; the context length of {self._max_model_len} allows at "
                f"most {self._max_model_len - 1}",
                param="prompt",
            )

    @cached_property
    def _longest_token_bytes(self) -> int:
        """No token stands for more characters than this."""
        return max(len(self._tokenizer.token_bytes(token_id)) for token_id in range(self._tokenizer.vocab_size))

    def _truncated(
        self, token_ids: Sequence[int], sampling: SamplingParams, truncation: Truncation | None
    ) -> Sequence[int]:
        if truncation is None:
            return token_ids
        return truncation.apply(token_ids, max(1, self._limit - (sampling.max_tokens or 1)))

    def _request(
        self,
        token_ids: Sequence[int],
        prompt: str | None,
        sampling: SamplingParams,
        request_id: str | None,
        rules: AnswerRules | None = None,
    ) -> Request:
        self._check_prompt_length(len(token_ids))
        self._check_sampling(sampling)
        rules = self._rules(sampling) if rules is None else rules
        if rules is not None and sampling.use_beam_search:
            raise UnsupportedParameterError(
                "use_beam_search cannot be had together with tools, a reasoning budget or a form of the answer",
                param="use_beam_search",
            )
        request = Request(
            request_id=f"request-{uuid.uuid4().hex}" if request_id is None else request_id,
            prompt_token_ids=tuple(token_ids),
            sampling=replace(
                sampling,
                max_tokens=self._resolve_max_tokens(sampling, len(token_ids)),
                seed=self._resolve_seed(sampling.seed),
            ),
            eos_token_ids=self._tokenizer.eos_token_ids,
            arrival_time=time.monotonic(),
            prompt=prompt,
            bad_words=bad_word_tokens(sampling.bad_words, self._tokenizer),
        )
        _check_first_token(request)
        return replace(request, constraint=self._with_bans(rules, request))

    def _with_bans(self, rules: AnswerRules | None, request: Request) -> AnswerRules | None:
        """The rules, and what else the request forbids where both together could leave no token."""
        bans = bans_of(request, self._vocab_size, has_form=rules is not None and rules.form is not None)
        return rules if bans is None else replace(rules or AnswerRules(), bans=bans)

    def _rules(self, sampling: SamplingParams) -> AnswerRules | None:
        """What the answer has to keep to. Tokens whose log probabilities are wanted are sampled one by one."""
        if sampling.structured_outputs is None:
            return None
        form = self.compile(form_of(sampling.structured_outputs), sampling.structured_outputs.param)
        return AnswerRules(form, jumps=sampling.logprobs is None)

    def _check_sampling(self, sampling: SamplingParams) -> None:
        """What depends on the model or the engine's configuration."""
        self.checked_token_ids(sampling.stop_token_ids, "stop_token_ids")
        self.checked_token_ids(sampling.allowed_token_ids, "allowed_token_ids")
        for token_id in sampling.logit_bias:
            if not 0 <= token_id < self._vocab_size:
                raise InvalidValueError(
                    f"logit_bias has the token id {token_id}; the model's are 0 to {self._vocab_size - 1}",
                    param="logit_bias",
                )
        for param, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
            if self._max_logprobs != -1 and count is not None and not 0 <= count <= self._max_logprobs:
                raise InvalidValueError(
                    f"{param} is {count}; at most {self._max_logprobs} are allowed (--max-logprobs)", param=param
                )

    def checked_token_ids(self, token_ids: Sequence[int], param: str) -> list[int]:
        return [self._checked_token_id(token_id, param, index) for index, token_id in enumerate(token_ids)]

    def _checked_token_id(self, token_id: SupportsIndex, param: str, index: int) -> int:
        if isinstance(token_id, bool) or not isinstance(token_id, SupportsIndex):
            raise InvalidValueError(f"{param}[{index}] is {token_id!r}; token ids are integers", param=param)
        value = token_id.__index__()
        if not 0 <= value < self._vocab_size:
            raise InvalidValueError(
                f"{param}[{index}] is {value}; the model's token ids are 0 to {self._vocab_size - 1}", param=param
            )
        return value

    @property
    def _limit(self) -> int:
        """The most tokens, prompt and output together, that one request may have."""
        return min(self._max_model_len, self._kv_cache_tokens)

    def _check_prompt_length(self, num_tokens: int) -> None:
        if num_tokens == 0:
            raise InvalidValueError("prompt is empty; it must have at least one token", param="prompt")
        if num_tokens > self._max_model_len - 1:
            raise ContextLengthError(
                f"the prompt has {num_tokens} tokens; with one token of output the context length of "
                f"{self._max_model_len} allows at most {self._max_model_len - 1}",
                param="prompt",
            )
        if num_tokens > self._kv_cache_tokens - 1:
            raise ContextLengthError(
                f"the prompt has {num_tokens} tokens; with one token of output the whole KV cache of "
                f"{self._kv_cache_tokens} tokens allows at most {self._kv_cache_tokens - 1}",
                param="prompt",
            )

    def _resolve_max_tokens(self, sampling: SamplingParams, num_prompt_tokens: int) -> int:
        """`max_tokens`, but no more than there is room for after the prompt."""
        room = self._limit - num_prompt_tokens
        if sampling.min_tokens > room:
            raise ContextLengthError(
                f"min_tokens is {sampling.min_tokens}; after a prompt of {num_prompt_tokens} tokens there is room for "
                f"{room} of the {self._limit} a request may have",
                param="min_tokens",
            )
        return room if sampling.max_tokens is None else min(sampling.max_tokens, room)

    def _resolve_seed(self, seed: int | None) -> int:
        """A seed from 0 to 2**64 - 1: the given one (modulo 2**64), or a fresh one from the engine's seed."""
        if seed is None:
            return seed_of_request(self._seed, next(self._num_seeds_drawn))
        return seed & _UINT64


def _check_first_token(request: Request) -> None:
    """Raises `InvalidValueError` if an answer could not even begin, because everything allowed is forbidden as well."""
    forbidden = {word[0] for word in request.bad_words if len(word) == 1}
    if request.sampling.min_tokens:
        forbidden.update(ending_token_ids(request))
    allowed = request.sampling.allowed_token_ids
    if allowed and forbidden.issuperset(allowed):
        raise InvalidValueError(
            "allowed_token_ids has no token to begin with: bad_words, or min_tokens, forbid each of them",
            param="allowed_token_ids",
        )


def require_list(value: Any, param: str, expected: str) -> None:
    """Raises `InvalidValueError` unless `value` has a length and an order; bytes are no token ids."""
    if not isinstance(value, Collection) or isinstance(value, (str, bytes, bytearray, Mapping, Set)):
        raise InvalidValueError(f"{param} is {repr(value)[:100]}; it must be {expected}", param=param)
