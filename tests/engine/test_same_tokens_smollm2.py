"""SmolLM2: the same request gives the same tokens however the engine is set up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from tests.engine.variations import MAX_MODEL_LEN, WHOLE, Tokens, Workload, check_variation, make_workload


@pytest.fixture(scope="module")
def asked(smollm2_path: Path) -> tuple[Workload, Tokens, int]:
    """And the bytes of twelve blocks."""
    with LLM(smollm2_path, max_model_len=MAX_MODEL_LEN, **WHOLE) as llm:
        asked = make_workload(random.Random(5), llm.config.vocab_size, 60)
        return asked, asked.alone(llm), 12 * llm.config.kv_cache_bytes // llm.config.num_blocks


@pytest.mark.parametrize(
    "options",
    [
        {"enable_prefix_caching": True},
        {"enable_prefix_caching": False, "max_num_batched_tokens": 33},
        {"enable_prefix_caching": True, "max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"scheduling_policy": "fcfs", "is_tight": True, "max_num_batched_tokens": 19},
        {"scheduling_policy": "shortest", "is_tight": True, "enable_prefix_caching": False},
    ],
    ids=str,
)
def test_a_real_model(smollm2_path: Path, asked: tuple[Workload, Tokens, int], options: dict[str, Any]) -> None:
    workload, expected, tight_bytes = asked
    check_variation(str(smollm2_path), options, workload, expected, random.Random(6), tight_bytes)
