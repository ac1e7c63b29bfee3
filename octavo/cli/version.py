"""octavo version"""

from __future__ import annotations

from octavo.version import __version__


def version() -> None:
    """Print the version."""
    print(__version__)
