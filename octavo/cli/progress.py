"""What a verb shows while a model is being fetched and packed."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from octavo.cli.progress_bars import ProgressBars


_PATIENCE_S = 1.0


class ProgressReport:
    """Takes reports (a `Progress` of weights/) and shows them on stderr: bars on a terminal, else lines.

    Nothing is shown in the first `_PATIENCE_S`: most of the time it is over by then.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bars: ProgressBars | None = None
        self._announced: set[str] = set()

    def __call__(self, done_bytes: int, total_bytes: int | None, what: str) -> None:
        if time.monotonic() - self._began < _PATIENCE_S:
            return
        if sys.stderr.isatty():
            self._show_bar(done_bytes, total_bytes, what)
        elif what not in self._announced:
            self._announced.add(what)
            print(f"{what} ...", file=sys.stderr, flush=True)

    def _show_bar(self, done_bytes: int, total_bytes: int | None, what: str) -> None:
        if self._bars is None:
            from octavo.cli.progress_bars import ProgressBars

            self._bars = ProgressBars()
        self._bars.update(done_bytes, total_bytes, what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.close()
