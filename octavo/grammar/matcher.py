"""Where one answer stands in its form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from octavo.errors import InvalidValueError

if TYPE_CHECKING:
    from llguidance import LLMatcher

_PARAM = "structured_outputs"
_TOO_COMPLEX = "grammar_too_complex"


class Matcher:
    """Follows one answer token by token. `library` is the matcher of llguidance, for `masks.py`."""

    __slots__ = ("library",)

    def __init__(self, library: LLMatcher) -> None:
        self.library = library

    def accept(self, token_id: int) -> None:
        """Raises `InvalidValueError` if the form does not allow this token here, or has grown too complex."""
        if not self.library.consume_token(token_id):
            raise refusal(self.library)

    def take_forced(self, limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that the form leaves no choice about; they are accepted already."""
        forced = self.library.compute_ff_tokens()[:limit]
        if forced and not self.library.consume_tokens(forced):
            raise refusal(self.library)
        return tuple(forced)

    @property
    def ended(self) -> bool:
        """Whether the form is complete and nothing may follow."""
        if not self.library.is_stopped():
            return False
        if self.library.is_error():
            raise refusal(self.library)
        return True


def refusal(library: LLMatcher) -> InvalidValueError:
    """Why a matcher cannot go on."""
    reason = without_state(library.get_error()) or "a token came that it does not allow"
    return InvalidValueError(
        f"the answer cannot follow its form any further: {reason}", param=_PARAM, code=_TOO_COMPLEX
    )


def without_state(message: str) -> str:
    """What is wrong, without the library's dump of its own state."""
    return re.split(r"<state>|<non-verbose/>", message)[0].strip()[:2000]
