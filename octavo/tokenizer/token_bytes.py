"""What each token adds to the output, in bytes and, where those are whole characters, in text."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Set

from octavo.errors import InvalidValueError


class TokenBytes(dict[int, bytes]):
    """The bytes of each token, worked out when first asked for.

    Looking up an id outside the vocabulary raises `InvalidValueError`. `spelling` is a vocabulary entry by id,
    `to_bytes` what it stands for.
    """

    def __init__(
        self, vocab_size: int, spelling: Callable[[int], str | None], to_bytes: Callable[[int, str], bytes]
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self._spelling = spelling
        self._to_bytes = to_bytes

    def __missing__(self, token_id: int) -> bytes:
        is_whole = type(token_id) is int or isinstance(token_id, numbers.Integral)  # the latter is slow
        if not is_whole or not 0 <= token_id < self.vocab_size:
            raise InvalidValueError(f"token id {token_id!r} is not in the vocabulary: 0 to {self.vocab_size - 1}")
        token_id = int(token_id)
        found = self[token_id] = self._to_bytes(token_id, self._spelling(token_id) or "")
        return found


class TokenTexts(list[str | None]):
    """The text of each token by id, "" for those `left_out`; None: not worked out yet, or no whole characters.

    A list, as looking up a number in a dictionary of this size reads memory in four places instead of two.
    """

    def __init__(self, token_bytes: TokenBytes, left_out: Set[int] = frozenset()) -> None:
        super().__init__([None] * token_bytes.vocab_size)
        self.bytes = token_bytes
        self._left_out = left_out

    def work_out(self, token_id: int) -> str | None:
        """The text of a token, None if it is no whole characters. Raises `InvalidValueError` outside the vocabulary."""
        try:
            text = "" if token_id in self._left_out else self.bytes[token_id].decode()
        except UnicodeDecodeError:
            return None
        self[token_id] = text
        return text
