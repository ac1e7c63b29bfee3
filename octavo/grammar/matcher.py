"""Where one answer stands in its form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import InvalidValueError
from octavo.grammar.refusals import spoken

if TYPE_CHECKING:
    from llguidance import LLMatcher

_TOO_COMPLEX = "grammar_too_complex"


class Matcher:
    """Follows one answer token by token. `library` is the matcher of llguidance, for `masks.py`.

    `param` is the request field that asked for the form.
    """

    __slots__ = ("_param", "library")

    def __init__(self, library: LLMatcher, param: str) -> None:
        self.library = library
        self._param = param

    def accept(self, token_id: int) -> None:
        """Raises `InvalidValueError` if the form does not allow this token here, or has grown too complex."""
        if not self.library.consume_token(token_id):
            raise self._refusal()

    def take_forced(self, limit: int) -> tuple[int, ...]:
        """At most `limit` tokens that the form leaves no choice about; they are accepted already."""
        forced = self.library.compute_ff_tokens()[:limit]
        if forced and not self.library.consume_tokens(forced):
            raise self._refusal()
        return tuple(forced)

    @property
    def ended(self) -> bool:
        """Whether the form is complete and nothing may follow."""
        if not self.library.is_stopped():
            return False
        if self.library.is_error():
            raise self._refusal()
        return True

    def _refusal(self) -> InvalidValueError:
        """Why it cannot go on."""
        reason = spoken(self.library.get_error()) or "a token came that it does not allow"
        return InvalidValueError(
            f"{self._param}: the answer cannot follow its form any further: {reason}",
            param=self._param,
            code=_TOO_COMPLEX,
        )
