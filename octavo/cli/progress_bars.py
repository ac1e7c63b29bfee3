"""Progress bars on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn


class ProgressBars:
    """A bar for each thing under way, on stderr. Close it when all is done."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def update(self, done_bytes: int, total_bytes: int | None, what: str) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total_bytes)
        self._progress.update(self._tasks[what], completed=done_bytes, total=total_bytes)

    def close(self) -> None:
        self._progress.stop()
