"""How a family of models writes the calls it makes, as data: one description gives the grammar and the reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is `before_name`, the tool's name, `before_arguments`, the arguments as a JSON object, `after_arguments`.

    Calls come after `opening`, with `separator` in between, and end with `closing`. If `anywhere`, text may come before
    the opening and after the closing; else an answer is either calls, from its first character, or text.

    `short_ids`: the family's templates want ids of nine letters and digits.
    """

    name: str
    opening: str
    before_name: str
    before_arguments: str
    after_arguments: str
    separator: str
    closing: str
    anywhere: bool
    short_ids: bool = False

    @property
    def marker(self) -> str:
        """What tells that calls come."""
        return self.opening or self.before_name
