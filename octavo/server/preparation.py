"""Where a body becomes a request of the engine: on the event loop if that is quick, else beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# A text of this length takes some ten milliseconds to tokenise, which every other stream would feel.
_QUICK_BYTES = 16 * 1024


async def prepare(work: Callable[[], T], num_bytes: int, *, compiles: bool = False) -> T:
    """The result of `work`, which tokenises `num_bytes` of text or so, or also compiles a grammar."""
    return work() if num_bytes <= _QUICK_BYTES and not compiles else await asyncio.to_thread(work)
