"""Beam search in the engine: each live beam is a request of the scheduler's, and the beams of a request fork.

One step of a request with four beams; beam 1 has no continuation among the best, beam 0 has two:

    before          after the step                          before the next step
    0 .. the        0 offers: cat 0.4, dog 0.3, ..          0 .. the cat        goes on
    1 .. a          1 offers: nap 0.1, ..                   4 .. the dog        forked from 0: shares its blocks
    2 .. one        2 offers: day 0.9, ..                   2 .. one day        goes on
    3 .. some       3 offers: say 0.5, ..                   3 .. some say       goes on
                                                            1                   removed, its blocks are free

Beams may be computed in different steps (when the budget is short, or one of them was preempted): those that are done
wait for the others. They live and end together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.engine.beam_search import BeamSearch, Hypothesis
from octavo.errors import EngineError
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.outcome import NewToken, Started
from octavo.scheduler.request_state import ending_token_ids
from octavo.scheduler.scheduler import Scheduler
from octavo.step import TokenLogprobs


class BeamGroup:
    """The beams of one request. `beam_ids` are the live ones, best first, as the scheduler knows them."""

    def __init__(self, request: Request) -> None:
        sampling = request.sampling
        assert sampling.max_tokens is not None
        self.request = request
        self._search = BeamSearch(
            width=sampling.num_samples,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            ending_token_ids=frozenset(ending_token_ids(request)),
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
        )
        self._num_beams_made = 0
        self._offers: dict[str, TokenLogprobs] = {}
        self.beam_ids = [self._next_id()]

    @property
    def first_beam(self) -> Request:
        """The beam from which all others fork. What is sampled for it is never used, the log probabilities are."""
        sampling = SamplingParams(
            temperature=0.0, max_tokens=self.request.sampling.max_tokens, logprobs=self._search.num_offers
        )
        return replace(
            self.request,
            request_id=self.beam_ids[0],
            parent_id=self.request.request_id,
            sampling=sampling,
            is_beam=True,
        )

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The finished texts that are asked for, best first."""
        return self._search.best(self.request.sampling.n)

    def take(self, token: NewToken) -> bool:
        """Notes what a beam offers; True once all live beams have. Raises `EngineError` if it offers nothing."""
        if token.logprobs is None:
            raise EngineError(f"the backend gave no log probabilities for {token.request_id}")
        self._offers[token.request_id] = token.logprobs
        return len(self._offers) == len(self.beam_ids)

    def advance(self, scheduler: Scheduler) -> bool:
        """Lets the scheduler's beams go on, fork and end as the offers demand; False once the search is over."""
        parents = self.beam_ids
        continuations = self._search.advance([self._offers[beam_id] for beam_id in parents])
        self._offers.clear()
        self.beam_ids, forks = self._named([parents[each.parent] for each in continuations])
        going_on = set(self.beam_ids)
        for beam_id in parents:
            if beam_id not in going_on:
                scheduler.remove(beam_id)
        for beam_id, parent_id in forks.items():
            scheduler.fork(parent_id, beam_id)
        for beam_id, continuation in zip(self.beam_ids, continuations, strict=True):
            scheduler.extend(beam_id, (continuation.token_id,))
        return bool(continuations)

    def _named(self, parent_ids: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Ids for the children of these beams, and who of them forks from whom: a beam's first child is itself."""
        beam_ids: list[str] = []
        forks: dict[str, str] = {}
        going_on: set[str] = set()
        for parent_id in parent_ids:
            beam_ids.append(self._next_id() if parent_id in going_on else parent_id)
            if parent_id in going_on:
                forks[beam_ids[-1]] = parent_id
            going_on.add(parent_id)
        return beam_ids, forks

    def _next_id(self) -> str:
        self._num_beams_made += 1
        return f"{self.request.request_id}/beam-{self._num_beams_made}"


class BeamGroups:
    """All requests under beam search. Translates between them and the requests that the scheduler knows."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._by_request: dict[str, BeamGroup] = {}
        self._by_beam: dict[str, BeamGroup] = {}

    def add(self, request: Request) -> None:
        """Raises what `Scheduler.add` raises."""
        group = BeamGroup(request)
        self._scheduler.add(group.first_beam)
        self._by_request[request.request_id] = group
        self._by_beam[group.beam_ids[0]] = group

    def remove(self, request_id: str) -> bool:
        """Takes out a request with all its beams. False if it is not under beam search."""
        group = self._by_request.pop(request_id, None)
        if group is None:
            return False
        for beam_id in group.beam_ids:
            del self._by_beam[beam_id]
            self._scheduler.remove(beam_id)
        return True

    def request_ids(self, ids: Sequence[str]) -> list[str]:
        """The requests behind what the scheduler calls requests, each once."""
        if not self._by_beam:
            return list(ids)
        groups = ((request_id, self._by_beam.get(request_id)) for request_id in ids)
        return list(
            dict.fromkeys(request_id if group is None else group.request.request_id for request_id, group in groups)
        )

    def of_requests(self, started: Sequence[Started]) -> list[Started]:
        """The same, with beams under the ids of their requests."""
        if not self._by_beam:
            return list(started)
        return [replace(each, request_id=self.request_ids([each.request_id])[0]) for each in started]

    def sort_out(self, tokens: list[NewToken]) -> tuple[list[NewToken], list[BeamGroup]]:
        """The tokens that are no beam's, and the groups of which every beam has been computed now."""
        if not self._by_beam:
            return tokens, []
        complete: list[BeamGroup] = []
        others: list[NewToken] = []
        for token in tokens:
            group = self._by_beam.get(token.request_id)
            if group is None:
                others.append(token)
            elif group.take(token):
                complete.append(group)
        return others, complete

    def advance(self, group: BeamGroup) -> bool:
        """One step of a search whose beams have all been computed; False once it is over."""
        for beam_id in group.beam_ids:
            del self._by_beam[beam_id]
        goes_on = group.advance(self._scheduler)
        self._by_beam.update(dict.fromkeys(group.beam_ids, group))
        return goes_on
