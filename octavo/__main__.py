"""`python -m octavo`."""

from __future__ import annotations

from octavo.cli.main import main

if __name__ == "__main__":
    main()
