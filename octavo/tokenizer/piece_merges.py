"""Merges of a SentencePiece vocabulary, which lists pieces and scores but no merges.

A merge of `left` and `right` exists wherever both and their concatenation are pieces. Enumerating them is a look-up of
every prefix and suffix of every piece: 1.8 million for a vocabulary of 262 thousand. Here all of them are hashed at
once, as differences of one running sum over the concatenated pieces, and looked up as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_U64 = npt.NDArray[np.uint64]
_Index = npt.NDArray[np.int64]

_BASE = 0xD6E8FEB86659FD93  # odd, hence invertible modulo 2^64
_TABLE_BITS = 22


def piece_merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """All merges that lead to one of `pieces`, the best first.

    `pieces` are distinct and come best first; among the merges that give the same piece the longer left part goes
    first. The order is that of merge ranks: an earlier piece is merged before a later one.
    """
    if not pieces:
        return []
    text = _RunningHash(pieces)
    whole = text.between(text.start, text.end)
    piece, cut = _inner_cuts(text)
    index = _HashIndex(whole)
    left = index.find(text.between(text.start[piece], cut))
    piece, cut, left = (column[left >= 0] for column in (piece, cut, left))
    right = index.find(text.between(cut, text.end[piece]))
    piece, left, right = (column[right >= 0] for column in (piece, left, right))
    order = np.lexsort((-(text.end - text.start)[left], piece))
    piece_of = pieces.__getitem__
    return list(zip(map(piece_of, left[order].tolist()), map(piece_of, right[order].tolist()), strict=True))


class _RunningHash:
    """Polynomial hashes modulo 2^64 of any stretch of the concatenated pieces, each in constant time."""

    def __init__(self, pieces: Sequence[str]) -> None:
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self.end: _Index = np.cumsum(lengths)
        self.start: _Index = self.end - lengths
        code_points = np.frombuffer("".join(pieces).encode("utf-32-le"), "<u4").astype(np.uint64)
        self._sums = np.zeros(code_points.size + 1, np.uint64)
        np.cumsum(_mixed(code_points) * _powers(_BASE, code_points.size), out=self._sums[1:])
        self._shifts = _powers(pow(_BASE, -1, 1 << 64), code_points.size + 1)

    def between(self, start: _Index, end: _Index) -> _U64:
        hashes: _U64 = (self._sums[end] - self._sums[start]) * self._shifts[start]
        return hashes


class _HashIndex:
    """Position of a hash among the given ones, or -1: a direct table, and a search for what collides in it."""

    def __init__(self, hashes: _U64) -> None:
        self._hashes = hashes
        self._order = np.argsort(hashes)
        self._table = np.full(1 << _TABLE_BITS, -1, np.int32)
        self._table[self._slots(hashes)] = np.arange(hashes.size, dtype=np.int32)

    def find(self, hashes: _U64) -> _Index:
        found: _Index = self._table[self._slots(hashes)].astype(np.int64)
        doubtful = np.flatnonzero((found >= 0) & (self._hashes[found] != hashes))
        found[doubtful] = self._search(hashes[doubtful])
        return found

    def _search(self, hashes: _U64) -> _Index:
        ranks = np.searchsorted(self._hashes, hashes, sorter=self._order)
        found: _Index = self._order[np.minimum(ranks, self._hashes.size - 1)]
        return np.where(self._hashes[found] == hashes, found, -1)

    @staticmethod
    def _slots(hashes: _U64) -> _U64:
        return hashes >> np.uint64(64 - _TABLE_BITS)


def _inner_cuts(text: _RunningHash) -> tuple[_Index, _Index]:
    """Every place inside a piece where it can be cut: the piece's number and the position."""
    piece = np.repeat(np.arange(text.start.size), text.end - text.start)
    cut = np.arange(piece.size)
    inner = cut > text.start[piece]
    return piece[inner], cut[inner]


def _powers(base: int, count: int) -> _U64:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    powers: _U64 = np.multiply.accumulate(factors)
    return powers


def _mixed(values: _U64) -> _U64:
    """Spreads small numbers over all 64 bits (the finaliser of splitmix64), so that hashes of text do not collide."""
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return values ^ (values >> np.uint64(31))
