"""The `octavo` command.

Verbs import what they need when they run: `octavo --help` must answer at once, and the engine and the server take
longer than that to import.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import typer

from octavo.cli import bench, chat, generate, pull, run_batch, serve, version
from octavo.cli.flag_groups import expand_flag_groups
from octavo.cli.plain_help import PlainCommand, PlainGroup
from octavo.errors import OctavoError

app = typer.Typer(
    cls=PlainGroup,
    help="Serve language models over the OpenAI API, or use them from the terminal.",
    add_completion=False,
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def octavo(
    *, show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    if show_version:
        version.version()
        raise typer.Exit


_VERBS: tuple[Callable[..., None], ...] = (
    serve.serve,
    chat.chat,
    generate.generate,
    run_batch.run_batch,
    pull.pull,
    version.version,
)
for verb in _VERBS:
    app.command(cls=PlainCommand)(expand_flag_groups(verb))

_bench = typer.Typer(cls=PlainGroup, help="Measure speed.", no_args_is_help=True)
_BENCHMARKS: tuple[Callable[..., None], ...] = (bench.throughput, bench.latency)
for verb in _BENCHMARKS:
    _bench.command(cls=PlainCommand)(expand_flag_groups(verb))
app.add_typer(_bench, name="bench")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line (None: this process's). An error is one line on stderr and exit code 1."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without emoji is no reason to end an answer
    try:
        _run(arguments)
    except OctavoError as error:
        print(f"octavo: error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read our output has left.
        _write_no_more()
        sys.exit(1)
    except OSError as error:
        # A full disk, a file that may not be read or written.
        print(f"octavo: error: {error}", file=sys.stderr)
        _write_no_more()
        sys.exit(1)


def _run(arguments: Sequence[str] | None) -> None:
    """Writes all of its output before it is over: at the interpreter's exit it is too late to tell of a failure."""
    try:
        app(arguments, prog_name="octavo")
    finally:
        sys.stdout.flush()


def _write_no_more() -> None:
    """What is still in the buffer of stdout would fail again at exit."""
    with suppress(io.UnsupportedOperation):  # no file, no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
