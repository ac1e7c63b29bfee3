"""Words an answer must not contain, as the tokens it must not end with."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.tokenizer.tokenizer import Tokenizer


def bad_word_tokens(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it is tokenised at the beginning of a text and, in most vocabularies otherwise, after a space.

    As in vLLM, other ways to spell the word with the vocabulary are not forbidden.
    """
    spellings = (spelling for word in words for spelling in (word, " " + word.lstrip()))
    found = (tuple(tokenizer.encode(spelling, add_special_tokens=False)) for spelling in spellings)
    return tuple(dict.fromkeys(tokens for tokens in found if tokens))
