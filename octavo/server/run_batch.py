"""Answers a batch file with the server's own routes, many lines at a time."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from pathlib import Path
from typing import Any, TextIO

from starlette.types import ASGIApp

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.progress import BatchProgress
from octavo.errors import EngineDeadError
from octavo.metrics.totals import EngineTotals
from octavo.server.app import create_app
from octavo.server.batch_file import BatchLine, answer_line, error_line, read_batch, read_done
from octavo.server.in_process import post
from octavo.server.settings import ServerSettings

# So many lines wait in the engine beside those that run: it is never idle, and memory stays bounded.
_WAITING_PER_RUNNING = 2


async def run_batch(
    engine: AsyncEngine, settings: ServerSettings, totals: EngineTotals, source: Path, target: Path, *, show: bool
) -> int:
    """Appends an answer or an error to `target` for each line of `source` that has none there yet; how many it wrote.

    Lines are answered in the order they finish. Whatever interrupts this, what is written stays, and the next call
    goes on from there. `show` draws a progress bar.
    """
    done = read_done(target)
    lines = [line for line in read_batch(source) if not done.has(line)]
    app = create_app(engine, settings, totals)
    engine.start()
    try:
        with target.open("a") as file, BatchProgress(len(lines), show) as progress:
            await _answer_all(app, lines, engine.config.max_num_seqs * (1 + _WAITING_PER_RUNNING), file, progress)
    finally:
        await engine.shutdown(0)
    return len(lines)


async def _answer_all(
    app: ASGIApp, lines: list[BatchLine], num_at_once: int, file: TextIO, progress: BatchProgress
) -> None:
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:
            written = await _answer(app, line)
            file.write(json.dumps(written, ensure_ascii=False) + "\n")
            file.flush()
            progress.advance(*_num_tokens(written))

    tasks = [asyncio.create_task(work()) for _ in range(min(num_at_once, len(lines)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(app: ASGIApp, line: BatchLine) -> dict[str, Any]:
    """What is written for a line. Raises `EngineDeadError` if nothing can be answered any more."""
    if line.request is None:
        return error_line(line)
    answer = await post(app, line.request.path, line.request.body)
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise EngineDeadError("the engine has stopped; what has been answered is written, run it again for the rest")
    return answer_line(line, answer)


def _num_tokens(written: dict[str, Any]) -> tuple[int, int]:
    """Tokens of prompt and answer."""
    usage = (written["response"] or {"body": {}})["body"].get("usage") or {}
    return usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
