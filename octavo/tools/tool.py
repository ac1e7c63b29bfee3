"""A tool as a request offers it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from octavo.errors import InvalidValueError

_NAME = re.compile(r"[\w.:/-]{1,128}")

Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters` is the JSON Schema of its arguments, an object's.

    `strict`: what of it cannot be enforced must be refused; `lenient`: it is passed over. Raises `InvalidValueError`
    for a name that no format could carry.
    """

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    lenient: bool = False

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InvalidValueError(
                f"a tool is called {self.name[:200]!r}; names have 1 to 128 letters, digits and any of _ . : / -",
                param="tools",
            )


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of the tools an answer may call, whether it must, and whether it may call several at once."""

    tools: tuple[Tool, ...]
    required: bool = False
    several: bool = True
