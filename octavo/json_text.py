"""JSON that comes from outside."""

from __future__ import annotations

import json
import sys
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What `text` says. Raises `ValueError`, whose message is fit for whoever wrote it."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:  # Python's message speaks of a setting of the interpreter
        raise ValueError(f"an integer has more than {sys.get_int_max_str_digits()} digits") from None
