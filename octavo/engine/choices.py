"""Several answers to one request: each is a request of its own to the engine, and they share what they have in common.

request "a", n=3, seed s          "a-0" with seed s         prompt blocks: stored once, shared by all three
                           ->     "a-1" with seed s'        the last block, if the prompt ends inside it: copied
                                  "a-2" with seed s''       what each of them adds: its own
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import fmean

from octavo.engine.seeds import seed_of_choice
from octavo.request import Request
from octavo.step import TokenLogprobs


def fan_out(request: Request) -> tuple[Request, ...]:
    """One request for each of the answers to be sampled; the request itself if that is one, or under beam search.

    The answers' order is theirs; the first also scores the prompt, if that is asked for. With more samples than answers
    all report log probabilities, for `best_first` to judge by. Each runs, ends and fails like
    any other request; whoever submits them together aborts them together.
    """
    sampling = request.sampling
    if sampling.num_samples == 1 or sampling.use_beam_search:
        return (request,)
    assert sampling.seed is not None
    logprobs = 0 if sampling.keeps_best and sampling.logprobs is None else sampling.logprobs
    return tuple(
        replace(
            request,
            request_id=f"{request.request_id}-{index}",
            parent_id=request.request_id,
            num_choices=sampling.num_samples if index == 0 else 0,
            is_admitted=request.is_admitted or index > 0,
            sampling=replace(
                sampling,
                n=1,
                best_of=None,
                seed=seed_of_choice(sampling.seed, index),
                logprobs=logprobs,
                prompt_logprobs=sampling.prompt_logprobs if index == 0 else None,
            ),
        )
        for index in range(sampling.num_samples)
    )


def best_first(samples: Sequence[Sequence[TokenLogprobs]]) -> list[int]:
    """Numbers of the samples, that with the highest mean log probability of all its tokens first."""
    means = [fmean([token.logprob for token in sample]) if sample else -inf for sample in samples]
    return sorted(range(len(samples)), key=lambda number: -means[number])
