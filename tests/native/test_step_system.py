"""A step asks nothing of the system: it neither allocates nor makes system calls, but to put threads to sleep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.tiny import FAMILIES

HERE = Path(__file__).parent
NO_SECCOMP = 2

pytestmark = pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer replaces malloc already")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "count_system.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, HERE / "count_system.c"], check=True)
    return path


def run(driver: Path, question: str, *families: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(HERE / "step_in_a_cage.py"), str(driver), question, *families]
    environment = {**os.environ, "LD_PRELOAD": str(driver)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_step_does_not_allocate(driver: Path) -> None:
    """Memory from the allocator would be a lock between threads, and now and then a wait for the system."""
    result = run(driver, "allocations", *FAMILIES)
    assert result.stdout.split("\n") == [*(f"{family} 0" for family in FAMILIES), ""], result.stderr


def test_a_step_makes_no_system_calls(driver: Path) -> None:
    """Binding its threads to processors anew at each step, for one, was three."""
    status = run(driver, "calls", "mixtral").returncode
    if status == NO_SECCOMP:
        pytest.skip("this system has no filters of system calls")
    assert status != -signal.SIGSYS
    assert status == 0
