"""Streams of fewer, larger pieces: vLLM's `stream_interval`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from octavo.server.answers import ChoiceDelta


async def in_pieces_of(num_tokens: int, deltas: AsyncGenerator[ChoiceDelta, None]) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas, put together until a choice has so many new tokens; its first and its end do not wait."""
    started: set[int] = set()
    held: dict[int, ChoiceDelta] = {}
    async with aclosing(deltas):
        async for item in deltas:
            before = held.pop(item.index, None)
            piece = item if before is None else _joined(before, item)
            if item.index in started and not item.delta.finished and len(piece.delta.token_ids) < num_tokens:
                held[item.index] = piece
                continue
            started.add(item.index)
            yield piece


def _joined(before: ChoiceDelta, item: ChoiceDelta) -> ChoiceDelta:
    first, last = before.delta, item.delta
    return replace(
        item,
        delta=last._replace(
            text=first.text + last.text,
            token_ids=first.token_ids + last.token_ids,
            logprobs=first.logprobs + last.logprobs,
            prompt_logprobs=first.prompt_logprobs + last.prompt_logprobs,
        ),
    )
