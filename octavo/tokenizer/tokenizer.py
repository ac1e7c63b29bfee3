"""Text to token ids and back, as the model's own tokenizer does it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import tokenizers

from octavo.errors import ChatTemplateError, InvalidValueError, UnsupportedParameterError
from octavo.tokenizer.chat_messages import cut_after_final_message
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.detokenize import Detokenizer
from octavo.tokenizer.token_bytes import TokenBytes, TokenTexts

# A text of this length takes some milliseconds.
_LONG_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """What stands before the text on either side of a gap, and before what is to fill it."""

    prefix_id: int
    suffix_id: int
    middle_id: int


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Which tokens are no text, and which of them are written around a prompt.

    `control_ids`: left out of the text when special tokens are skipped. `eos_ids`: any of them ends an answer.
    `texts`: what chat templates call `bos_token`, `eos_token` and so on.
    """

    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]
    control_ids: frozenset[int]
    adds_bos: bool
    adds_eos: bool
    infill: InfillTokens | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


class Tokenizer:
    """A model's vocabulary, its rules, and its chat template.

    `strips_space`: the encoder puts a space in front of text, so decoding takes one away again.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        token_bytes: TokenBytes,
        special: SpecialTokens,
        chat_template: ChatTemplate | None,
        *,
        vocab_size: int,
        strips_space: bool = False,
    ) -> None:
        self.vocab_size = vocab_size
        self._backend = backend
        self._special = special
        self._chat_template = chat_template
        self._strips_space = strips_space
        self._bytes = token_bytes
        self._texts = TokenTexts(token_bytes)
        self._texts_without_special = TokenTexts(token_bytes, special.control_ids)

    def also_ending_with(self, eos_token_ids: Collection[int]) -> Tokenizer:
        """This tokenizer, with more tokens that end an answer. Raises `InvalidValueError` outside the vocabulary."""
        for token_id in eos_token_ids:
            self.token_bytes(token_id)
        other = copy(self)
        other._special = replace(self._special, eos_ids=self._special.eos_ids.union(eos_token_ids))
        return other

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text; `encode` writes it only where the model wants it."""
        return self._special.bos_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._special.eos_ids

    @property
    def special_token_ids(self) -> frozenset[int]:
        """The tokens that `decode` leaves out when it skips special tokens."""
        return self._special.control_ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; the text of a special token in it becomes that token.

        `add_special_tokens` writes BOS and EOS as the model wants them. Raises `InvalidValueError` for a lone
        surrogate, which is no Unicode text.
        """
        ids = self._encode(text)
        if add_special_tokens and self._special.adds_bos and self._special.bos_id is not None:
            ids.insert(0, self._special.bos_id)
        if add_special_tokens and self._special.adds_eos and self._special.eos_id is not None:
            ids.append(self._special.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of these tokens; bytes that are not UTF-8 become U+FFFD.

        Raises `InvalidValueError` for an id outside the vocabulary.
        """
        if skip_special_tokens:
            ids = (token_id for token_id in ids if token_id not in self._special.control_ids)
        text = b"".join([self._bytes[token_id] for token_id in ids]).decode(errors="replace")
        return text.removeprefix(" ") if self._strips_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for, perhaps not whole characters. Raises `InvalidValueError` outside the vocabulary."""
        return self._bytes[token_id]

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh incremental decoder for one answer."""
        texts = self._texts_without_special if skip_special_tokens else self._texts
        return Detokenizer(texts, strips_space=self._strips_space)

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template, if it has one."""
        return None if self._chat_template is None else self._chat_template.source

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation. `kwargs` become variables of the template.

        `continue_final_message` ends it inside the last message, for the model to write on. `chat_template` takes the
        place of the model's own. Raises `ChatTemplateError` when there is no template or it refuses,
        `InvalidValueError` for malformed messages.
        """
        template = self._chat_template
        if chat_template is not None:
            template = ChatTemplate(chat_template, self._special.texts)
        if template is None:
            raise ChatTemplateError(
                "this model has no chat template, so it takes no messages; use /v1/completions, which takes plain text",
                param="messages",
            )
        prompt = template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **kwargs)
        return cut_after_final_message(prompt, messages) if continue_final_message else prompt

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> list[int]:
        """Token ids of what `apply_chat_template` makes of a conversation."""
        return self.encode_rendered(self.apply_chat_template(messages, **kwargs))

    def encode_rendered(self, prompt: str) -> list[int]:
        """Token ids of what a chat template wrote, with BOS where the model wants it and never twice."""
        ids = self._encode(prompt)
        bos_id = self._special.bos_id
        if self._special.adds_bos and bos_id is not None and ids[:1] != [bos_id]:
            ids.insert(0, bos_id)
        return ids

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        """Token ids that ask for what stands between two texts. Raises `UnsupportedParameterError` if the model cannot.

        The prefix comes first, as in the models' own papers: its cache is of use when only the text after it changes.
        """
        infill = self._special.infill
        if infill is None:
            raise UnsupportedParameterError(
                "suffix is not supported: this model has no tokens for filling in the middle", param="suffix"
            )
        return [infill.prefix_id, *self._encode(prefix), infill.suffix_id, *self._encode(suffix), infill.middle_id]

    def _encode(self, text: str) -> list[int]:
        """A long text as a batch of one: that lets other Python threads run meanwhile, which `encode` does not."""
        if not isinstance(text, str):
            raise _refusal(text)
        try:
            if len(text) < _LONG_CHARACTERS:
                ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            else:
                ids = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:
            raise _refusal(text) from None
        return ids


def _refusal(text: object) -> InvalidValueError:
    """Why text cannot be tokenised."""
    if not isinstance(text, str):
        return InvalidValueError(f"text to tokenise must be a string, not {type(text).__name__}")
    position = next(i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff")
    return InvalidValueError(f"the text has a lone surrogate, U+{ord(text[position]):04X}, at position {position}")
