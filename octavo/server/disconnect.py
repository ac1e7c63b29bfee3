"""Giving up work whose client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientLeftError(Exception):
    """The client closed the connection before its answer was complete. Nobody is there to be told."""


async def unless_client_leaves(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`, which is cancelled at once when the client disconnects (then: `ClientLeftError`).

    The request's body must have been read: what `receive` still has to say can only be that the client left.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_until_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeftError
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
