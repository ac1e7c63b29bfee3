"""Requests of every kind, and checks that each gets the same tokens however the engine is set up.

Of every kind: greedy, sampled with a seed, several answers, the best of several, beam search; some begin alike. What is
expected is what each of them gets alone, whole, with room for everything and nothing shared.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo import LLM, SamplingParams
from octavo.config import EngineArgs
from octavo.engine.build import build_engine
from octavo.request import RequestOutput
from tests.engine.fake_engine import Recorder

MAX_MODEL_LEN = 160
WHOLE = {"enable_prefix_caching": False, "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**27}
VARIATIONS: list[dict[str, Any]] = [
    {"enable_prefix_caching": True},
    {"enable_prefix_caching": False},
    {"enable_prefix_caching": True, "max_num_batched_tokens": 1},
    {"enable_prefix_caching": True, "max_num_batched_tokens": 7},
    {"enable_prefix_caching": False, "max_num_batched_tokens": 33},
    {"enable_prefix_caching": True, "max_num_seqs": 1},
    {"enable_prefix_caching": True, "max_num_seqs": 3, "max_num_batched_tokens": 20},
    {"scheduling_policy": "fcfs", "is_tight": True},
    {"scheduling_policy": "priority", "is_tight": True},
    {"scheduling_policy": "fair", "is_tight": True},
    {"scheduling_policy": "shortest", "is_tight": True},
    {"scheduling_policy": "shortest", "max_num_batched_tokens": 16, "max_num_seqs": 2},
    {"enable_prefix_caching": True, "prefix_eviction_policy": "lfu", "is_tight": True},
    {"enable_prefix_caching": False, "is_tight": True},
    {"enable_prefix_caching": True, "is_tight": True, "max_num_batched_tokens": 5},
    {"enable_prefix_caching": False, "is_tight": True, "max_num_batched_tokens": 19},
]

Tokens = list[list[tuple[int, ...]]]


@dataclass(frozen=True)
class Workload:
    prompts: list[list[int]]
    sampling: list[SamplingParams]

    def run(self, llm: LLM, order: Sequence[int]) -> Tokens:
        """The tokens of every answer to each request, run as one batch in `order`; the result is in the workload's."""
        outputs = llm.generate([self.prompts[i] for i in order], [self.sampling[i] for i in order])
        return [tokens for _, tokens in sorted(zip(order, map(_tokens, outputs), strict=True))]

    def alone(self, llm: LLM) -> Tokens:
        return [self.run(llm, [index])[0] for index in range(len(self.prompts))]


def _tokens(output: RequestOutput) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in output.outputs]


def make_workload(rng: random.Random, vocab_size: int, longest: int) -> Workload:
    """Prompts of which most begin alike, two are equal and one has a single token."""
    greedy = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    drawn = replace(greedy, temperature=1.0, top_p=0.95)
    beams = replace(greedy, n=2, best_of=3, use_beam_search=True, max_tokens=14)
    sampling = [
        greedy,
        replace(drawn, seed=1),
        replace(drawn, seed=2, n=4),
        beams,
        replace(greedy, max_tokens=70),
        replace(drawn, seed=3, n=2, best_of=3, max_tokens=12),
        replace(beams, length_penalty=0.0, early_stopping=True, ignore_eos=False, min_tokens=5),
        replace(drawn, seed=4, ignore_eos=False, min_tokens=8, frequency_penalty=0.5),
    ]
    beginning = [rng.randrange(2, vocab_size) for _ in range(longest)]
    prompts = [
        beginning[: rng.randint(longest // 2, longest)]
        + [rng.randrange(2, vocab_size) for _ in range(rng.randint(0, 20))]
        for _ in sampling
    ]
    prompts[0] = [rng.randrange(2, vocab_size)]
    prompts[4] = prompts[1]
    return Workload(prompts, sampling)


def check_variation(
    model: str, options: dict[str, Any], asked: Workload, expected: Tokens, rng: random.Random, tight_bytes: int
) -> None:
    """Twice over: the second time everything that is kept is known already."""
    is_tight = options.get("is_tight", False)
    fields = {name: value for name, value in options.items() if name != "is_tight"}
    fields["kv_cache_memory_bytes"] = tight_bytes if is_tight else 2**27
    stats = Recorder()
    args = EngineArgs(model, max_model_len=MAX_MODEL_LEN, **fields)
    with LLM.from_engine(build_engine(args, listeners=[stats])) as llm:
        for _ in range(2):
            order = list(range(len(asked.prompts)))
            rng.shuffle(order)
            assert asked.run(llm, order) == expected
    assert stats.steps[-1].num_blocks_used == 0
    if is_tight:
        assert sum(step.num_preempted for step in stats.steps) >= 3, "the memory was not tight"
