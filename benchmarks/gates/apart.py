"""Benchmarks that need a process of their own: to see its memory from the start, or to change what they measure."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# Not "python -m": that puts the source tree before the installed octavo, which alone has its native library.
START = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def run_apart(module: str, *arguments: str) -> Any:
    """What `benchmarks.MODULE ARGUMENTS --json` wrote. Raises `CalledProcessError` when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-P", "-c", START, str(ROOT), f"benchmarks.{module}", *arguments]
        subprocess.run([*command, "--json", str(out)], check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())
