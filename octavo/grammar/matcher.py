"""Where one answer stands in its form."""

from __future__ import annotations

from collections.abc import Sequence
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

    __slots__ = ("library", "param")

    def __init__(self, library: LLMatcher, param: str) -> None:
        self.library = library
        self.param = param

    def accept(self, token_id: int) -> None:
        """Raises `InvalidValueError` if the form does not allow this token here, or has grown too complex."""
        if not self.library.consume_token(token_id):
            raise self._refusal()

    def allows(self, token_id: int) -> bool:
        """Whether this token may come next."""
        return self.library.validate_tokens([token_id]) == 1

    def forced(self) -> tuple[int, ...]:
        """The tokens that the form leaves no choice about; `accept_all` takes them, or the first of them."""
        return tuple(self.library.compute_ff_tokens())

    def accept_all(self, token_ids: Sequence[int]) -> None:
        if token_ids and not self.library.consume_tokens(list(token_ids)):
            raise self._refusal()

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
            f"{self.param}: the answer cannot follow its form any further: {reason}",
            param=self.param,
            code=_TOO_COMPLEX,
        )
