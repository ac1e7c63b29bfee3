"""The engine as asyncio sees it: submit, stream, abort. The work happens on the engine thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from octavo.config import EngineConfig
from octavo.engine.input import InputProcessor
from octavo.request import OutputDelta, Request
from octavo.tokenizer.tokenizer import Tokenizer


class AsyncEngine:
    """Interface first; the body follows."""

    config: EngineConfig
    tokenizer: Tokenizer
    input: InputProcessor

    def start(self) -> None:
        raise NotImplementedError

    async def generate(self, request: Request) -> AsyncIterator[OutputDelta]:
        await asyncio.sleep(0)
        raise NotImplementedError
        yield

    def abort(self, request_id: str) -> None:
        raise NotImplementedError

    @property
    def healthy(self) -> bool:
        raise NotImplementedError

    async def shutdown(self, timeout_s: float) -> None:
        raise NotImplementedError
