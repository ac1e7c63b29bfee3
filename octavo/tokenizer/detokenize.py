"""Incremental detokenisation: text as soon as it is certain, a whole character at a time."""

from __future__ import annotations

from codecs import utf_8_decode

from octavo.tokenizer.token_bytes import TokenTexts

# Python's decoder waits for the rest of a UTF-16 surrogate, though none is a character in UTF-8 (RFC 3629, section 3).
SURROGATES = b"\xed\xa0", b"\xee"  # from the first of them, to what follows the last


class Detokenizer:
    """Turns the token ids of one answer into text as they come.

    All of `append` and the final `flush` together are `Tokenizer.decode` of all ids. Bytes that may yet become a
    character are held back, three at most; bytes that cannot any more come out as U+FFFD at once.
    """

    __slots__ = ("_held", "_strips_space", "_texts")

    def __init__(self, texts: TokenTexts, *, strips_space: bool) -> None:
        self._texts = texts
        self._strips_space = strips_space  # until the first text: one space in front of it is the encoder's own
        self._held = b""

    def append(self, token_id: int) -> str:
        """The text that has become certain. Raises `InvalidValueError` for an id outside the vocabulary."""
        try:
            text = self._texts[token_id]
        except (IndexError, TypeError):
            text = None
        if text is None or self._held or token_id < 0:
            text = self._extend(token_id)
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """What is left of a character that never became whole: U+FFFD, or nothing."""
        text = self._held.decode(errors="replace")
        self._held = b""
        return text

    def _extend(self, token_id: int) -> str:
        text = self._texts.work_out(token_id)
        if text == "" or (text is not None and not self._held):  # "" adds nothing, so it ends no character either
            return text
        held = self._held + self._texts.bytes[token_id]
        text, num_used = utf_8_decode(held, "replace", False)
        self._held = held[num_used:]
        if SURROGATES[0] <= self._held < SURROGATES[1]:
            text += self.flush()
        return text
