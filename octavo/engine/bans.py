"""Tokens an answer must not have, whatever its form: told before a forced token is taken, and of one that was sampled.

The backend gives them no probability. Where nothing else is left, what it samples is arbitrary, and must not pass for
an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.errors import InvalidValueError
from octavo.request import Request
from octavo.scheduler.request_state import ending_token_ids

_NO_TOKEN_LEFT = "no_token_left"


@dataclass(frozen=True, slots=True)
class Bans:
    """For all answers of a request.

    Empty `allowed_token_ids` allow all; those of `ending` may not come before there are `min_tokens`.
    """

    bad_words: tuple[tuple[int, ...], ...]
    allowed_token_ids: frozenset[int]
    ending: frozenset[int]
    min_tokens: int

    def start(self) -> BannedTokens:
        return BannedTokens(self)


def bans_of(request: Request, vocab_size: int, *, has_form: bool) -> Bans | None:
    """The bans of a request, if they could leave no token at all. Bad words alone are too few for that."""
    sampling = request.sampling
    narrow = has_form or bool(sampling.allowed_token_ids) or len(request.bad_words) >= vocab_size
    if not (request.bad_words and narrow) and not (sampling.allowed_token_ids and has_form):
        return None
    allowed = frozenset(sampling.allowed_token_ids)
    return Bans(request.bad_words, allowed, frozenset(ending_token_ids(request)), sampling.min_tokens)


class BannedTokens:
    """The bans of one answer, which grows."""

    __slots__ = ("_bans", "_num_tokens", "_tail")

    def __init__(self, bans: Bans) -> None:
        self._bans = bans
        self._tail: tuple[int, ...] = ()
        self._num_tokens = 0

    def accept(self, token_id: int) -> None:
        longest = max(map(len, self._bans.bad_words), default=1)
        self._tail = (*self._tail, token_id)[-longest:]
        self._num_tokens += 1

    def forbids(self, token_id: int) -> bool:
        """Whether this token may not come next."""
        bans = self._bans
        if bans.allowed_token_ids and token_id not in bans.allowed_token_ids:
            return True
        if token_id in bans.ending and self._num_tokens < bans.min_tokens:
            return True
        text = (*self._tail, token_id)
        return any(text[-len(word) :] == word for word in bans.bad_words)

    def beginning(self, token_ids: Iterable[int]) -> tuple[int, ...]:
        """As many of these tokens, one after the other, as none forbids; they count as accepted."""
        taken: list[int] = []
        for token_id in token_ids:
            if self.forbids(token_id):
                break
            self.accept(token_id)
            taken.append(token_id)
        return tuple(taken)

    def refusal(self, form_param: str | None) -> InvalidValueError:
        """What to say when no token is left; `form_param` is the field that asks for a form, if one does."""
        bans = self._bans
        given = {
            "bad_words": bans.bad_words,
            "allowed_token_ids": bans.allowed_token_ids,
            "min_tokens": bans.min_tokens,
        }
        names = [name for name, value in given.items() if value] + ([] if form_param is None else [form_param])
        return InvalidValueError(
            f"after {self._num_tokens} tokens of the answer no token is left that may follow: {' and '.join(names)} "
            "forbid all of them together",
            param=names[0],
            code=_NO_TOKEN_LEFT,
        )
