"""Masks of many answers at once, beside the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.grammar.matcher import Matcher

if TYPE_CHECKING:
    from llguidance import LLExecutor


FEWEST_THREADS = 3
"""With fewer, one thread is faster than the library's pool: it has the matchers in its cache, and wakes nobody."""


class MaskComputer:
    """Computes masks of `vocab_size` bits, in whole words of 32, with `threads` threads, or the caller's alone."""

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
        masks = (ctypes.c_char * (self._mask_bytes * len(matchers)))()
        if self._threads < FEWEST_THREADS:
            self._fill(matchers, ctypes.addressof(masks))
        else:
            self._fill_together(matchers, ctypes.addressof(masks))
        whole = memoryview(masks).cast("B")
        return [whole[first : first + self._mask_bytes] for first in range(0, len(whole), self._mask_bytes)]

    def _fill(self, matchers: Sequence[Matcher], address: int) -> None:
        for index, matcher in enumerate(matchers):
            matcher.library.unsafe_compute_mask_ptr(address + index * self._mask_bytes, self._mask_bytes)

    def _fill_together(self, matchers: Sequence[Matcher], address: int) -> None:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(self._threads)
        numbered = [(matcher.library, index) for index, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(numbered, address, self._mask_bytes, len(matchers))
