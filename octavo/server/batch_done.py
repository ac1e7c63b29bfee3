"""What an output file of a batch has already, and which lines of the input are left."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from octavo.errors import ConfigError
from octavo.json_text import parse_json
from octavo.server.batch_file import ID_PREFIX, BatchLine, has_failed, read_batch

_BEGINNING = f'{{"id": "{ID_PREFIX}'.encode()


@dataclass(frozen=True, slots=True)
class Done:
    """Answered ids, lines of the input that were told to be wrong, and how many of all these have failed."""

    custom_ids: frozenset[str] = frozenset()
    line_numbers: frozenset[int] = frozenset()
    num_failed: int = 0

    def has(self, line: BatchLine) -> bool:
        if line.request is None:
            return line.number in self.line_numbers
        return line.request.custom_id in self.custom_ids


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """An input file, and the output file that a run goes on with."""

    source: Path
    target: Path
    done: Done

    @classmethod
    def open(cls, source: Path, target: Path) -> Self:
        """Cuts off a last line of `target` that was not written to its end.

        Raises `ConfigError`, and leaves the files as they are, if `source` cannot be read twice (a pipe), if both are
        the same, or if `target` is no output file of a batch.
        """
        if not source.is_file():
            raise ConfigError(f"--input-file {source} is not a file; a batch is read from one, twice")
        if not target.exists():
            return cls(source, target, Done())
        if not target.is_file():
            raise ConfigError(f"--output-file {target} is not a file; what it has must be read to go on from there")
        if target.samefile(source):
            raise ConfigError(f"--output-file {target} is the input file too; give another name")
        with target.open("r+b") as file:
            return cls(source, target, _read_done(file, target))

    def lines_left(self) -> Generator[BatchLine, None, None]:
        """The lines of the input that have no answer yet, read as they are asked for."""
        return (line for line in read_batch(self.source) if not self.done.has(line))


def _read_done(file: BinaryIO, path: Path) -> Done:
    custom_ids: set[str] = set()
    line_numbers: set[int] = set()
    num_whole_bytes = num_failed = 0
    for number, text in enumerate(file, 1):
        _check_beginning(text, path, number)
        if not text.endswith(b"\n"):
            break
        num_whole_bytes += len(text)
        try:
            written = parse_json(text)
            num_failed += has_failed(written)
            if written["error"] is None:
                custom_ids.add(written["custom_id"])
            else:
                line_numbers.add(written["error"]["line"])
        except (ValueError, LookupError, TypeError):
            raise _not_ours(path, number) from None
    file.truncate(num_whole_bytes)
    return Done(frozenset(custom_ids), frozenset(line_numbers), num_failed)


def _check_beginning(text: bytes, path: Path, number: int) -> None:
    if not text.startswith(_BEGINNING) and not _BEGINNING.startswith(text):
        raise _not_ours(path, number)


def _not_ours(path: Path, number: int) -> ConfigError:
    return ConfigError(f"--output-file {path}, line {number}, is no answer of a batch; give the name of a new file")
