"""Answers a batch file with the server's own routes, many lines at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TextIO

from starlette.types import ASGIApp

from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.progress import BatchProgress
from octavo.errors import EngineDeadError
from octavo.metrics.totals import EngineTotals
from octavo.server.app import create_app
from octavo.server.batch_done import BatchFiles
from octavo.server.batch_file import BatchLine, answer_line, error_line, has_failed
from octavo.server.in_process import post
from octavo.server.settings import ServerSettings

# So many lines wait in the engine beside those that run: it is never idle, and memory stays bounded.
_WAITING_PER_RUNNING = 2


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Lines that a run wrote, those of them that failed, and failed ones among all that the output file has now."""

    num_written: int
    num_failed: int
    num_failed_in_all: int

    @property
    def num_answered(self) -> int:
        return self.num_written - self.num_failed


async def run_batch(
    engine: AsyncEngine, settings: ServerSettings, totals: EngineTotals, files: BatchFiles, *, show: bool
) -> BatchCounts:
    """Appends an answer or an error to the output file for each line of the input that has none there yet.

    Lines are answered in the order they finish. Whatever interrupts this, what is written stays, and the next call
    goes on from there. `show` draws a progress bar.
    """
    num_lines = sum(1 for _ in files.lines_left())
    app = create_app(engine, settings, totals)
    engine.start()
    try:
        with files.target.open("a") as file, BatchProgress(num_lines, show) as progress:
            run = _Run(app, engine, file, progress)
            with closing(files.lines_left()) as lines:
                await run.answer_all(lines, min(num_lines, _num_at_once(engine.config)))
    finally:
        await engine.shutdown(0)
    return BatchCounts(run.num_written, run.num_failed, files.done.num_failed + run.num_failed)


def _num_at_once(config: EngineConfig) -> int:
    """At first all of them wait, and no more may than the queue takes."""
    num_lines = config.max_num_seqs * (1 + _WAITING_PER_RUNNING)
    limit = config.scheduling.queue.max_requests
    return num_lines if limit is None else min(num_lines, limit)


class _Run:
    """Takes lines to the application and what comes back to a file."""

    def __init__(self, app: ASGIApp, engine: AsyncEngine, file: TextIO, progress: BatchProgress) -> None:
        self._app = app
        self._engine = engine
        self._file = file
        self._progress = progress
        self.num_written = 0
        self.num_failed = 0

    async def answer_all(self, lines: Iterator[BatchLine], num_at_once: int) -> None:
        tasks = [asyncio.create_task(self._work(lines)) for _ in range(num_at_once)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, lines: Iterator[BatchLine]) -> None:
        for line in lines:
            self._write(await self._answer(line))

    async def _answer(self, line: BatchLine) -> dict[str, Any]:
        """What is written for a line. Raises `EngineDeadError` if nothing can be answered any more."""
        if line.request is None:
            return error_line(line)
        answer = await post(self._app, line.request.path, line.request.body)
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE and not self._engine.healthy:
            raise EngineDeadError(
                "the engine has stopped; what has been answered is written, run it again for the rest"
            )
        return answer_line(line, answer)

    def _write(self, written: dict[str, Any]) -> None:
        # In ASCII: a custom_id may have half a surrogate pair, which no encoding takes.
        self._file.write(json.dumps(written) + "\n")
        self._file.flush()
        self.num_written += 1
        self.num_failed += has_failed(written)
        self._progress.advance(*_num_tokens(written))


def _num_tokens(written: dict[str, Any]) -> tuple[int, int]:
    """Tokens of prompt and answer."""
    usage = (written["response"] or {"body": {}})["body"].get("usage") or {}
    return usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
