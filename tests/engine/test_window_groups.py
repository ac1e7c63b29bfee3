"""Gemma 3 through the whole engine: blocks behind the window are given back, and nobody's tokens change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.config import EngineArgs
from octavo.engine.build import build_engine
from tests.engine.fake_engine import Recorder

WINDOW = 512
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Random tokens, longer than the window; the second and third begin like the first, within and behind it."""
    rng = random.Random(3)
    first = [rng.randrange(5, 50_000) for _ in range(900)]
    return [first, [*first[:777], *first[:30]], [*first[:40], *first[300:900]], first[:530]]


def test_blocks_behind_the_window_are_given_back(gemma3_path: Path, prompts: list[list[int]]) -> None:
    options = {"max_model_len": 1024, "max_num_batched_tokens": 128, "enable_prefix_caching": False}
    with LLM(gemma3_path, **options, kv_cache_memory_bytes=2**30) as llm:
        assert llm.config.num_window_blocks == (llm.config.num_blocks,)
        alone = [llm.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]

    stats = Recorder()
    args = EngineArgs(
        str(gemma3_path), max_model_len=1024, max_num_batched_tokens=128, max_num_seqs=2, kv_cache_memory_bytes=2**26
    )
    with LLM.from_engine(build_engine(args, listeners=[stats])) as llm:
        (num_window_blocks,) = llm.config.num_window_blocks
        assert num_window_blocks < llm.config.num_blocks, "less than the tokens of two requests"
        for _ in range(2):
            outputs = llm.generate(prompts, GREEDY)
            assert [output.outputs[0].token_ids for output in outputs] == alone
        assert outputs[-1].num_cached_tokens >= WINDOW
    assert sum(step.num_prefix_hits for step in stats.steps) > 1500
