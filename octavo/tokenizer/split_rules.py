"""How byte-level BPE cuts text before merging: one rule per `tokenizer.ggml.pre` name.

Each rule is the one of the tokenizer the models were trained with (their `tokenizer.json`), which the name stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from octavo.errors import UnsupportedModelError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class SplitRule:
    """What happens to text before merges apply.

    `ignore_merges`: a piece that is a vocabulary entry as a whole is taken as such, whatever its merges say.
    `adds_bos`: whether BOS is written when the file does not say.
    """

    pre_tokenizer: Callable[[], PreTokenizer]
    normalizer: Callable[[], Normalizer] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


def _gpt2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits_then_gpt2() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _by_regex(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _llama3() -> PreTokenizer:
    return _by_regex("|".join((_CONTRACTION, _WORD, r"\p{N}{1,3}", _SYMBOLS, _SPACE)))


def _qwen2() -> PreTokenizer:
    return _by_regex("|".join((_CONTRACTION, _WORD, r"\p{N}", _SYMBOLS, _SPACE)))


_GPT2 = SplitRule(_gpt2)
_LLAMA3 = SplitRule(_llama3, ignore_merges=True, adds_bos=True)

SPLIT_RULES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": SplitRule(_qwen2, normalizer=normalizers.NFC),
    "smollm": SplitRule(_single_digits_then_gpt2),
}


def split_rule(name: str) -> SplitRule:
    """The rule of that name. Raises `UnsupportedModelError` naming the rule and the known ones."""
    rule = SPLIT_RULES.get(name)
    if rule is None:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre is {name!r}, a split rule Octavo does not have; known: {', '.join(SPLIT_RULES)}"
        )
    return rule
