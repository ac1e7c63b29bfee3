"""Every environment variable Octavo reads, and the only place that reads them."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """`OCTAVO_HOME`: where fetched models are kept. Default `~/.cache/octavo`."""
    value = os.environ.get("OCTAVO_HOME")
    return Path(value).expanduser() if value else Path.home() / ".cache" / "octavo"


def cpu_isa() -> str | None:
    """`OCTAVO_CPU_ISA`: force an instruction set ("scalar", "avx2", "avx512"). Default: the best the machine has."""
    return os.environ.get("OCTAVO_CPU_ISA") or None


def native_library() -> Path | None:
    """`OCTAVO_NATIVE_LIBRARY`: the native library to load (a sanitized build, say). Default: the one installed here."""
    value = os.environ.get("OCTAVO_NATIVE_LIBRARY")
    return Path(value) if value else None
