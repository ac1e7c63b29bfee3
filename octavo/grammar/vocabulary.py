"""The bridge from our tokenizer to the grammar library: what each token spells, and how text is tokenised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def bridge(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """The tokenizer as llguidance wants it. `vocab_size` is how many logits the model has, at least as many as tokens.

    Takes some tenths of a second for a large vocabulary.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    spelled = _SpelledTokens(tokenizer, vocab_size)
    return LLTokenizer(TokenizerWrapper(spelled), eos_token=sorted(tokenizer.eos_token_ids))


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens by their text."""
    return {tokenizer.token_bytes(token_id).decode(): token_id for token_id in tokenizer.special_token_ids}


class _SpelledTokens:
    """What `TokenizerWrapper` asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.special_token_ids | tokenizer.eos_token_ids)
        spelled = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.tokens = spelled + [b""] * (vocab_size - len(spelled))  # a token without bytes is never allowed

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode() if isinstance(text, bytes) else text, add_special_tokens=False)
