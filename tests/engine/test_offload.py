"""SmolLM2 with a place for its prefixes in files: the next start knows them, and gives the same tokens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_prefixes_outlive_the_engine(smollm2_path: Path, tmp_path: Path) -> None:
    rng = random.Random(4)
    prompts = [[rng.randrange(1000, 40_000) for _ in range(150)] for _ in range(4)]
    options = {"max_model_len": 256, "kv_offload_dir": str(tmp_path)}
    with LLM(smollm2_path, **options, kv_cache_memory_bytes=2**28) as llm:
        alone = [llm.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]
    num_blocks = 16
    block_bytes = llm.config.kv_cache_bytes // llm.config.num_blocks
    for _ in range(2):
        with LLM(smollm2_path, **options, kv_cache_memory_bytes=num_blocks * block_bytes) as tiny:
            outputs = tiny.generate(prompts, GREEDY)
        assert [output.outputs[0].token_ids for output in outputs] == alone
        assert [output.num_cached_tokens for output in outputs] == [144] * 4
    with LLM(smollm2_path, **options, kv_cache_memory_bytes=2**28, activation_dtype="bf16") as other:
        assert other.generate(prompts, GREEDY)[0].num_cached_tokens == 0, "other numbers, other blocks"


def test_a_place_that_cannot_be_used_is_refused(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--kv-offload-dir .*file cannot be used"):
        LLM(smollm2_path, kv_offload_dir=str(tmp_path / "file"), max_model_len=256)
    with pytest.raises(ConfigError, match="--kv-offload-size is 100; one block alone takes"):
        LLM(smollm2_path, kv_offload_dir=str(tmp_path), kv_offload_bytes=100, max_model_len=256)
