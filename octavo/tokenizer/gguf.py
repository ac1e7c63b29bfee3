"""The tokenizer a GGUF file describes: vocabulary, merges or scores, and rules under `tokenizer.*`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, normalizers

from octavo.errors import TokenizerError, UnsupportedModelError
from octavo.tokenizer.byte_level import spelled_bytes
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.end_tokens import end_token_ids
from octavo.tokenizer.piece_merges import piece_merges
from octavo.tokenizer.split_rules import split_rule
from octavo.tokenizer.token_bytes import TokenBytes
from octavo.tokenizer.tokenizer import InfillTokens, SpecialTokens, Tokenizer
from octavo.tokenizer.vocabulary import (
    TokenKind,
    Vocabulary,
    number_list,
    optional_bool,
    optional_text,
    read_vocabulary,
    required,
    text_list,
)

_MERGES = "tokenizer.ggml.merges"

SPACE = "\u2581"  # how SentencePiece spells a space


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Builds the tokenizer from the `tokenizer.*` keys of a GGUF file.

    Raises `TokenizerError` for a vocabulary that is malformed, naming the key, and `UnsupportedModelError` for a kind
    of tokenizer or a split rule that Octavo does not have.
    """
    key = "tokenizer.ggml.model"
    model = required(metadata, key)
    build = _BUILDERS.get(model)
    if build is None:
        raise UnsupportedModelError(
            f"{key} is {model!r}, a tokenizer Octavo does not have; known: {', '.join(_BUILDERS)}"
        )
    return build(metadata, read_vocabulary(metadata))


def _byte_level(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Tokenizer:
    """Byte-level BPE ("gpt2"): the text is cut by the split rule, and its bytes are merged."""
    rule = split_rule(optional_text(metadata, "tokenizer.ggml.pre") or "default")
    backend = _backend(vocabulary, _listed_merges(metadata), ignore_merges=rule.ignore_merges)
    backend.pre_tokenizer = rule.pre_tokenizer()
    if rule.normalizer is not None:
        backend.normalizer = rule.normalizer()
    added = frozenset(vocabulary.ids(TokenKind.CONTROL, TokenKind.USER_DEFINED))

    def to_bytes(token_id: int, token: str) -> bytes:
        return token.encode() if token_id in added else spelled_bytes(token)

    return _tokenizer(metadata, vocabulary, backend, to_bytes, adds_bos=rule.adds_bos)


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece's BPE ("llama"): the characters of the whole text are merged, unknown ones go by their bytes."""
    ids_by_rank = _ids_by_rank(metadata, vocabulary)
    vocabulary = _respelled_spaces(vocabulary)
    merges = piece_merges([vocabulary.tokens[token_id] for token_id in ids_by_rank])
    unk_id = vocabulary.special_ids.get("unk")
    backend = _backend(
        vocabulary,
        merges,
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unk_id is None else vocabulary.tokens[unk_id],
    )
    prefixes_space = optional_bool(metadata, "tokenizer.ggml.add_space_prefix") is not False
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixes_space else spaces
    byte_ids = {token_id: _byte(vocabulary.tokens[token_id]) for token_id in vocabulary.ids(TokenKind.BYTE)}

    def to_bytes(token_id: int, token: str) -> bytes:
        return byte_ids.get(token_id) or token.replace(SPACE, " ").encode()

    return _tokenizer(metadata, vocabulary, backend, to_bytes, adds_bos=True, strips_space=prefixes_space)


_BUILDERS: dict[str, Callable[[Mapping[str, Any], Vocabulary], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def _backend(vocabulary: Vocabulary, merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    """Merges over the vocabulary, with special and user-defined tokens found in the text before anything else."""
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises nothing narrower for merges it cannot use
        _check_merges(merges, vocab)
        raise TokenizerError(f"tokenizer.ggml.tokens cannot be used: {error}") from error
    backend.add_special_tokens(_added(vocabulary, _special_ids(vocabulary), special=True))
    backend.add_tokens(_added(vocabulary, vocabulary.ids(TokenKind.USER_DEFINED), special=False))
    return backend


def _added(vocabulary: Vocabulary, ids: Iterable[int], *, special: bool) -> list[AddedToken]:
    return [AddedToken(vocabulary.tokens[token_id], normalized=False, special=special) for token_id in ids]


def _special_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """The tokens that are no text: the marked ones, and whatever the file names as BOS and EOS."""
    named = [vocabulary.special_ids[name] for name in ("bos", "eos") if name in vocabulary.special_ids]
    return frozenset(vocabulary.ids(TokenKind.CONTROL, TokenKind.UNKNOWN)).union(named)


def _tokenizer(
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    backend: tokenizers.Tokenizer,
    to_bytes: Callable[[int, str], bytes],
    *,
    adds_bos: bool,
    strips_space: bool = False,
) -> Tokenizer:
    """`adds_bos` is the rule of this kind of tokenizer, for a file that does not say."""
    size = len(vocabulary.tokens)
    return Tokenizer(
        backend,
        TokenBytes(size, backend.id_to_token, to_bytes),
        _special_tokens(metadata, vocabulary, adds_bos),
        _chat_template(metadata, vocabulary),
        vocab_size=size,
        strips_space=strips_space,
    )


def _special_tokens(metadata: Mapping[str, Any], vocabulary: Vocabulary, adds_bos: bool) -> SpecialTokens:
    bos_id, eos_id = vocabulary.special_ids.get("bos"), vocabulary.special_ids.get("eos")
    return SpecialTokens(
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=end_token_ids(vocabulary),
        control_ids=_special_ids(vocabulary),
        adds_bos=_adds(metadata, "bos", bos_id, adds_bos),
        adds_eos=_adds(metadata, "eos", eos_id, False),
        infill=_infill_tokens(vocabulary),
        texts=_named_texts(vocabulary),
    )


# How families spell prefix, suffix and middle, for files that do not name them.
_INFILL_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<PRE>", "<SUF>", "<MID>"),
)


def _infill_tokens(vocabulary: Vocabulary) -> InfillTokens | None:
    named = [vocabulary.special_ids.get(name) for name in ("fim_prefix", "fim_suffix", "fim_middle")]
    ids = {vocabulary.tokens[token_id]: token_id for token_id in _special_ids(vocabulary)}
    for prefix, suffix, middle in (named, *([ids.get(token) for token in spelling] for spelling in _INFILL_SPELLINGS)):
        if prefix is not None and suffix is not None and middle is not None:
            return InfillTokens(prefix, suffix, middle)
    return None


def _adds(metadata: Mapping[str, Any], name: str, token_id: int | None, default: bool) -> bool:
    """Whether encoding writes BOS or EOS. Raises `TokenizerError` if the file wants it and does not name it."""
    key = f"tokenizer.ggml.add_{name}_token"
    declared = optional_bool(metadata, key)
    if declared and token_id is None:
        raise TokenizerError(f"{key} is true, but the file has no tokenizer.ggml.{name}_token_id")
    return token_id is not None and (default if declared is None else declared)


def _chat_template(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> ChatTemplate | None:
    source = optional_text(metadata, "tokenizer.chat_template")
    if not source:
        return None
    return ChatTemplate(source, _named_texts(vocabulary))


def _named_texts(vocabulary: Vocabulary) -> dict[str, str]:
    """What templates call the special tokens."""
    named = ("bos", "eos", "unk", "pad")
    ids = vocabulary.special_ids
    return {f"{name}_token": vocabulary.tokens[ids[name]] for name in named if name in ids}


def _respelled_spaces(vocabulary: Vocabulary) -> Vocabulary:
    """Runs of spaces as SentencePiece spells them, so that merges lead to them.

    Files write them out, as user-defined tokens; text reaches the merges with its spaces already respelled.
    """
    blank = [token_id for token_id, token in enumerate(vocabulary.tokens) if token.isspace()]
    runs = [token_id for token_id in blank if not vocabulary.tokens[token_id].strip(" ")]
    if not runs:
        return vocabulary
    tokens = list(vocabulary.tokens)
    kinds = vocabulary.kinds.copy()
    for token_id in runs:
        tokens[token_id] = SPACE * len(tokens[token_id])
        kinds[token_id] = TokenKind.NORMAL
    if not {tokens[token_id] for token_id in runs}.isdisjoint(vocabulary.tokens):
        raise TokenizerError("tokenizer.ggml.tokens has a run of spaces in two spellings")
    return Vocabulary(tokens, kinds, vocabulary.special_ids)


def _listed_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    merges = text_list(metadata, _MERGES)
    return [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]


def _ids_by_rank(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> list[int]:
    """The pieces that merges may lead to, the ones to be made first in front: those of a higher score.

    Where the scores of normal pieces fall with their ids, as SentencePiece writes them, the order is that of ids: the
    scores that files give to user-defined pieces are made up.
    """
    scores = number_list(metadata, "tokenizer.ggml.scores", len(vocabulary.tokens))
    if np.isnan(scores).any():
        raise TokenizerError("tokenizer.ggml.scores has a value that is not a number")
    ids = vocabulary.ids(TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)
    if (np.diff(scores[vocabulary.ids(TokenKind.NORMAL)]) > 0).any():
        by_score: list[int] = np.asarray(ids)[np.argsort(-scores[ids], kind="stable")].tolist()
        return by_score
    return ids


def _check_merges(merges: list[tuple[str, str]], vocab: Mapping[str, int]) -> None:
    """Raises `TokenizerError` for the first merge that is none over this vocabulary."""
    for i, (left, right) in enumerate(merges):
        for token in (left, right, left + right):
            if token not in vocab:
                raise TokenizerError(
                    f"{_MERGES}[{i}] merges {left!r} and {right!r}, but {token!r} is not in tokenizer.ggml.tokens"
                )


def _byte(token: str) -> bytes:
    """The byte of a token like `<0x0A>`."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", token) is None:
        raise TokenizerError(
            f"tokenizer.ggml.token_type says that {token!r} is a byte; those are spelled like '<0x0A>'"
        )
    return bytes.fromhex(token[3:5])
