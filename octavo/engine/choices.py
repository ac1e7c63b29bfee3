"""Several answers to one request: each is a request of its own to the engine, and they share what they have in common.

request "a", n=3, seed s          "a-0" with seed s         prompt blocks: stored once, shared by all three
                           ->     "a-1" with seed s'        the last block, if the prompt ends inside it: copied
                                  "a-2" with seed s''       what each of them adds: its own
"""

from __future__ import annotations

from dataclasses import replace

from octavo.engine.seeds import seed_of_choice
from octavo.request import Request


def fan_out(request: Request) -> tuple[Request, ...]:
    """One request for each of the `n` answers asked for; the request itself if that is one.

    The answers' order is theirs; the first also scores the prompt, if that is asked for. Each runs, ends and fails like
    any other request; whoever submits them together aborts them together.
    """
    sampling = request.sampling
    if sampling.n == 1:
        return (request,)
    assert sampling.seed is not None
    return tuple(
        replace(
            request,
            request_id=f"{request.request_id}-{index}",
            parent_id=request.request_id,
            sampling=replace(
                sampling,
                n=1,
                seed=seed_of_choice(sampling.seed, index),
                prompt_logprobs=sampling.prompt_logprobs if index == 0 else None,
            ),
        )
        for index in range(sampling.n)
    )
