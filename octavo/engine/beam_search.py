"""Beam search as an algorithm: which continuations live on, which are finished, when to stop. No engine, no blocks.

Follows `generate()` of transformers, whose results are the standard (`_beam_search` in generation/utils.py, version 5):

    live beams      k texts that go on, best first
    candidates      each live beam offers its likeliest tokens; the best (1 + number of ending tokens) * k of all
                    offers are looked at, so that k of them do not end
    finished        candidates among the best k that end; the k of these with the best score are kept

A score is the sum of log probabilities divided by the number of tokens to the power of `length_penalty`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from octavo.step import TokenLogprobs

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Continuation:
    """Live beam `parent` goes on with a token."""

    parent: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text; if `ended`, its last token is what ended it, else it is as long as it may be."""

    token_ids: tuple[int, ...]
    logprob: float
    score: float
    ended: bool


@dataclass(frozen=True, slots=True)
class _Beam:
    token_ids: tuple[int, ...]
    logprob: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A continuation with the log probability of its whole text, and whether its token is an ending one."""

    parent: int
    token_id: int
    logprob: float
    ending: bool


class BeamSearch:
    """`width` texts in parallel, from one beam without tokens to `max_tokens` tokens.

    `early_stopping`: True ends as soon as `width` texts are finished; False as soon as the best live beam, at its
    present length, would not make it among them; "never" only when it could not even at its full length.
    """

    def __init__(
        self,
        *,
        width: int,
        max_tokens: int,
        ending_token_ids: Set[int],
        min_tokens: int = 0,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ) -> None:
        self._width = width
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._ending_token_ids = ending_token_ids
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._num_candidates = max(2, 1 + len(ending_token_ids)) * width
        self._num_tokens = 0
        self._live = [_Beam((), 0.0)]
        self._finished: list[Hypothesis] = []

    @property
    def num_live(self) -> int:
        """The number of live beams; 0 once the search is over."""
        return len(self._live)

    @property
    def num_offers(self) -> int:
        """How many of its likeliest tokens each live beam must offer."""
        return self._num_candidates + (len(self._ending_token_ids) if self._min_tokens else 0)

    def advance(self, offers: Sequence[TokenLogprobs]) -> list[Continuation]:
        """Takes in the likeliest tokens after each live beam and says what the next live beams are.

        They are numbered as they are listed. None: the search is over.
        """
        candidates = self._best_candidates(offers)
        self._num_tokens += 1
        going_on = [candidate for candidate in candidates if not self._ends(candidate)][: self._width]
        self._finish([candidate for candidate in candidates[: self._width] if self._ends(candidate)])
        if not going_on or self._is_over(going_on[0].logprob):
            going_on = []
        self._live = [self._extended(candidate) for candidate in going_on]
        return [Continuation(candidate.parent, candidate.token_id) for candidate in going_on]

    def best(self, n: int) -> list[Hypothesis]:
        """The best `n` finished texts, best first."""
        return self._finished[:n]

    def _best_candidates(self, offers: Sequence[TokenLogprobs]) -> list[_Candidate]:
        """Of equal ones, those of earlier beams first, and within a beam in the order of the offers."""
        by_parent = [self._offered(parent, offer) for parent, offer in enumerate(offers)]
        best_first = heapq.merge(*by_parent, key=lambda candidate: -candidate.logprob)
        return list(islice(best_first, self._num_candidates))

    def _offered(self, parent: int, offer: TokenLogprobs) -> Iterator[_Candidate]:
        so_far = self._live[parent].logprob
        may_end = self._num_tokens >= self._min_tokens
        for token_id, logprob in zip(offer.top_token_ids, offer.top_logprobs, strict=True):
            ending = token_id in self._ending_token_ids
            if token_id >= 0 and (may_end or not ending):  # -1: the model gave no number
                yield _Candidate(parent, token_id, so_far + logprob, ending)

    def _extended(self, candidate: _Candidate) -> _Beam:
        return _Beam((*self._live[candidate.parent].token_ids, candidate.token_id), candidate.logprob)

    def _ends(self, candidate: _Candidate) -> bool:
        return candidate.ending or self._num_tokens >= self._max_tokens

    def _finish(self, candidates: list[_Candidate]) -> None:
        if self._early_stopping is True and len(self._finished) == self._width:
            return
        hypotheses = [
            Hypothesis(self._extended(each).token_ids, each.logprob, self._score(each.logprob), each.ending)
            for each in candidates
        ]
        # sorted() is stable: of equal scores the older one stays.
        self._finished = sorted([*self._finished, *hypotheses], key=lambda each: -each.score)[: self._width]

    def _score(self, logprob: float, num_tokens: int | None = None) -> float:
        length = self._num_tokens if num_tokens is None else num_tokens
        penalised: float = logprob / length**self._length_penalty
        return penalised

    def _is_over(self, best_live_logprob: float) -> bool:
        """Whether no live beam is expected to finish among the best."""
        if len(self._finished) < self._width:
            return False
        if self._early_stopping is True:
            return True
        longest = self._early_stopping == "never" and self._length_penalty > 0
        best_possible = self._score(best_live_logprob, self._max_tokens if longest else None)
        return best_possible <= self._finished[-1].score
