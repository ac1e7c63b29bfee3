"""Cores and memory read from fake /proc and /sys trees, cgroup v1 and v2, as containers present them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.engine.machine import read_machine

GIB = 2**30


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def tree(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A root with 16 GiB available, /proc/self/cgroup as given and these files under /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {16 * GIB // 1024} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_without_limits_the_machine_is_all_ours(tmp_path: Path) -> None:
    unlimited = {"cpu.max": "max 100000", "memory.max": "max", "memory.current": "5", "memory.stat": "anon 5"}
    machine = read_machine(tree(tmp_path, "0::/", unlimited))
    assert machine.num_cores == 8 and machine.memory_available_bytes == 16 * GIB


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert read_machine(tree(tmp_path, "", {})).num_cores == 8


@pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1),
                                              ("1600000 100000", 8)])  # fmt: skip
def test_v2_cpu_quota(tmp_path: Path, quota: str, cores: int) -> None:
    assert read_machine(tree(tmp_path, "0::/", {"cpu.max": quota})).num_cores == cores


def test_v2_the_tightest_enclosing_group_counts(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/pod/box", {
        "pod/box/cpu.max": "600000 100000", "pod/cpu.max": "300000 100000",
        "pod/box/memory.max": str(8 * GIB), "pod/box/memory.current": str(1 * GIB),
        "pod/memory.max": str(4 * GIB), "pod/memory.current": str(2 * GIB),
    })  # fmt: skip
    machine = read_machine(root)
    assert machine.num_cores == 3 and machine.memory_available_bytes == 2 * GIB


def test_v2_page_cache_is_not_in_the_way(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/", {
        "memory.max": str(4 * GIB), "memory.current": str(3 * GIB),
        "memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}",
    })  # fmt: skip
    assert read_machine(root).memory_available_bytes == 4 * GIB - 3 * GIB + GIB + GIB // 2


def test_a_path_outside_the_mount_falls_back_to_the_mount(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/../../outside", {"cpu.max": "100000 100000"})
    assert read_machine(root).num_cores == 1


def test_v1_limits(tmp_path: Path) -> None:
    root = tree(tmp_path, "5:cpu,cpuacct:/box\n4:memory:/box\n0::/\n", {
        "cpu,cpuacct/box/cpu.cfs_quota_us": "400000", "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "memory/box/memory.limit_in_bytes": str(2 * GIB), "memory/box/memory.usage_in_bytes": str(GIB),
        "memory/box/memory.stat": f"total_inactive_file {GIB // 4}\ntotal_active_file 0\ninactive_file 7",
        "memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": str(GIB),
    })  # fmt: skip
    machine = read_machine(root)
    assert machine.num_cores == 4 and machine.memory_available_bytes == GIB + GIB // 4


def test_the_real_machine_has_something() -> None:
    machine = read_machine()
    assert machine.num_cores >= 1 and machine.memory_available_bytes > 0
