"""Streams of fewer, larger pieces: vLLM's `stream_interval`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from octavo.request import merged
from octavo.server.answers import ChoiceDelta


async def in_pieces_of(num_tokens: int, deltas: AsyncGenerator[ChoiceDelta, None]) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas, put together until a choice has so many new tokens; its first and its end do not wait."""
    started: set[int] = set()
    held: dict[int, ChoiceDelta] = {}
    async with aclosing(deltas):
        async for item in deltas:
            before = held.pop(item.index, None)
            piece = item if before is None else replace(item, delta=merged((before.delta, item.delta)))
            if item.index in started and not item.delta.finished and len(piece.delta.token_ids) < num_tokens:
                held[item.index] = piece
                continue
            started.add(item.index)
            yield piece
