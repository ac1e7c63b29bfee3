"""The vocabulary of a GGUF file, checked: what every later step may rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import TokenizerError


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Distinct tokens, id by position, each with its kind; `special_ids` are the named ids the file has."""

    tokens: list[str]
    kinds: npt.NDArray[np.int32]
    special_ids: Mapping[str, int]

    def ids(self, *kinds: TokenKind) -> list[int]:
        """Ids of the tokens of these kinds, ascending."""
        found: list[int] = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return found


_NAMED_IDS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "fim_prefix": "tokenizer.ggml.fim_pre_token_id",
    "fim_suffix": "tokenizer.ggml.fim_suf_token_id",
    "fim_middle": "tokenizer.ggml.fim_mid_token_id",
}


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Tokens, kinds and named ids. Raises `TokenizerError` naming the key at fault."""
    tokens = _tokens(metadata)
    return Vocabulary(tokens, _kinds(metadata, len(tokens)), _named_ids(metadata, len(tokens)))


def text_list(metadata: Mapping[str, Any], key: str) -> list[str]:
    """A list of text that must be there. Raises `TokenizerError` naming the key."""
    value = required(metadata, key)
    if not isinstance(value, Sequence) or isinstance(value, str) or not set(map(type, value)) <= {str}:
        raise TokenizerError(f"{key} is not a list of strings")
    return list(value)


def number_list(metadata: Mapping[str, Any], key: str, length: int) -> npt.NDArray[np.float64]:
    """Numbers, one a token. Raises `TokenizerError` naming the key."""
    value = required(metadata, key)
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TokenizerError(f"{key} is not a list of numbers") from None
    if numbers.shape != (length,):
        raise TokenizerError(f"{key} has {numbers.size} entries for the {length} of tokenizer.ggml.tokens")
    return numbers


def optional_bool(metadata: Mapping[str, Any], key: str) -> bool | None:
    """A flag, or None where the file has none. Raises `TokenizerError` naming the key."""
    value = metadata.get(key)
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise TokenizerError(f"{key} is {value!r}; it must be true or false")
    return None if value is None else bool(value)


def optional_text(metadata: Mapping[str, Any], key: str) -> str | None:
    """Text, or None where the file has none. Raises `TokenizerError` naming the key."""
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise TokenizerError(f"{key} is {type(value).__name__}; it must be text")
    return value


def required(metadata: Mapping[str, Any], key: str) -> Any:
    """The value of a key that must be there. Raises `TokenizerError` naming the key."""
    value = metadata.get(key)
    if value is None:
        raise TokenizerError(f"the file has no {key}, so it holds no usable tokenizer")
    return value


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = text_list(metadata, "tokenizer.ggml.tokens")
    if not tokens:
        raise TokenizerError("tokenizer.ggml.tokens is empty")
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        for token_id, token in enumerate(tokens):
            if first.setdefault(token, token_id) != token_id:
                raise TokenizerError(f"tokenizer.ggml.tokens has {token!r} twice, as {first[token]} and {token_id}")
    return tokens


def _kinds(metadata: Mapping[str, Any], length: int) -> npt.NDArray[np.int32]:
    key = "tokenizer.ggml.token_type"
    if metadata.get(key) is None:
        return np.full(length, TokenKind.NORMAL, np.int32)
    kinds = number_list(metadata, key, length)
    unknown = kinds[~np.isin(kinds, [*TokenKind])]
    if unknown.size:
        raise TokenizerError(f"{key} has {unknown[0]:g}; known kinds are 1 to {max(TokenKind)}")
    return kinds.astype(np.int32)


def _named_ids(metadata: Mapping[str, Any], length: int) -> dict[str, int]:
    found = {}
    for name, key in _NAMED_IDS.items():
        value = metadata.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < length:
            raise TokenizerError(f"{key} is {value!r}; it must be a token id from 0 to {length - 1}")
        found[name] = int(value)
    return found
