"""The progress bar of a batch, on stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class BatchProgress:
    """Counts finished answers; `show=False` does nothing at no cost."""

    def __init__(self, num_answers: int, show: bool) -> None:
        self._started = time.monotonic()
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._bar: Progress | None = None
        if show:
            self._bar = Progress(
                TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[speed]}"), console=Console(stderr=True),
            )  # fmt: skip
            self._task = self._bar.add_task("requests", total=num_answers, speed="")

    def advance(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """One more answer is finished; of its prompt, the tokens that were computed."""
        if self._bar is None:
            return
        self._num_prompt_tokens += num_prompt_tokens
        self._num_output_tokens += num_output_tokens
        seconds = max(time.monotonic() - self._started, 1e-9)
        prompt_speed, output_speed = self._num_prompt_tokens / seconds, self._num_output_tokens / seconds
        speed = f"{prompt_speed:.0f} prompt, {output_speed:.0f} output tokens/s"
        self._bar.update(self._task, advance=1, speed=speed)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
