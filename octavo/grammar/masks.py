"""Masks of many answers at once, beside the interpreter: the library computes them with its own threads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.grammar.matcher import Matcher

if TYPE_CHECKING:
    from llguidance import LLExecutor


class MaskComputer:
    """Computes masks of `vocab_size` bits, in whole words of 32, with `threads` threads."""

    def __init__(self, vocab_size: int, threads: int) -> None:
        self._mask_bytes = -(-vocab_size // 32) * 4
        self._threads = threads
        self._executor: LLExecutor | None = None

    def compute(self, matchers: Sequence[Matcher]) -> list[memoryview]:
        """A mask for each matcher: bit t % 8 of byte t // 8 says whether token t may come next.

        A matcher that cannot go on gives a mask of zeros and refuses the token that then comes.
        """
        if not matchers:
            return []
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(self._threads)
        count = len(matchers)
        masks = (ctypes.c_char * (self._mask_bytes * count))()
        self._executor.unsafe_compute_mask_ptr(
            [(matcher.library, index) for index, matcher in enumerate(matchers)],
            ctypes.addressof(masks),
            self._mask_bytes,
            count,
        )
        whole = memoryview(masks).cast("B")
        return [whole[first : first + self._mask_bytes] for first in range(0, len(whole), self._mask_bytes)]
