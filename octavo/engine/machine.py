"""What this process may use of the machine: cores and memory, cgroup limits respected.

Sources: cgroups(7), Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of the Linux kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Limits of this size stand for "none" in cgroup v1.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Machine:
    """`num_cores` this process may keep busy; `memory_available_bytes` it may still allocate."""

    num_cores: int
    memory_available_bytes: int


def read_machine(root: Path = Path("/")) -> Machine:
    """Looks at the machine now. `root` is where `proc` and `sys` are looked for."""
    affinity = len(os.sched_getaffinity(0))
    quota = min(_cpu_quotas(root), default=affinity)
    available = min((_system_available_bytes(root), *_cgroup_available_bytes(root)))
    return Machine(num_cores=max(1, min(affinity, int(quota))), memory_available_bytes=max(0, available))


def _system_available_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu_quotas(root: Path) -> Iterator[float]:
    """CPUs' worth of time that each enclosing cgroup allows; nothing where there is no limit."""
    for group in _groups(root, "cpu"):
        words = (_read(group / "cpu.max") or "").split()
        if len(words) == 2 and words[0] != "max":
            yield int(words[0]) / int(words[1])
        quota, period = _read_int(group / "cpu.cfs_quota_us"), _read_int(group / "cpu.cfs_period_us")
        if quota is not None and period is not None and quota > 0 and period > 0:
            yield quota / period


def _cgroup_available_bytes(root: Path) -> Iterator[int]:
    """Bytes each enclosing cgroup has left; page cache counts as left, since the kernel drops it on demand."""
    for group in _groups(root, "memory"):
        limit = _read_int(group / "memory.max") or _read_int(group / "memory.limit_in_bytes")
        usage = _read_int(group / "memory.current") or _read_int(group / "memory.usage_in_bytes")
        if limit is not None and usage is not None and limit < _UNLIMITED_BYTES:
            yield limit - max(0, usage - _page_cache_bytes(group))


def _page_cache_bytes(group: Path) -> int:
    counters = dict(line.split() for line in (_read(group / "memory.stat") or "").splitlines() if line.count(" ") == 1)
    prefix = "total_" if "total_inactive_file" in counters else ""
    return sum(int(counters.get(prefix + name, 0)) for name in ("inactive_file", "active_file"))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's cgroup for a controller and of its ancestors, innermost first.

    Covers v2, v1 and both side by side. In a container the path in /proc/self/cgroup may lie outside what is mounted;
    the mount itself is then the innermost one visible.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controller, root / "sys/fs/cgroup" / controllers]
        else:
            continue
        mount = next((mount for mount in mounts if mount.is_dir()), None)
        if mount is None:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for level in (inside, *inside.parents):
            if ".." not in level.parts and (mount / level).is_dir():
                yield mount / level


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
