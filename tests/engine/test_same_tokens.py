"""The same request gives the same tokens: with prefix caching and without, in any chunks, through any preemptions.

Tiny random models of two families (one with sliding windows) through the whole engine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM
from octavo.engine import build
from tests.engine.fakes import FakeTokenizer
from tests.engine.variations import MAX_MODEL_LEN, VARIATIONS, WHOLE, Tokens, Workload, check_variation, make_workload
from tests.native.tiny import FAMILIES, LLAMA, TinyModel

# Twelve blocks: hardly more than one request of the longest kind takes.
TINY_TIGHT_BYTES = {"tiny-llama": 147_500, "tiny-gemma3": 100_000}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def tiny(request: pytest.FixtureRequest) -> Iterator[str]:
    """A random model that the engine takes for a file."""
    model = TinyModel(np.random.default_rng(), FAMILIES[request.param]())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build.references, "resolve", lambda reference, progress: Path(reference))
        patch.setattr(build, "open_checkpoint", lambda path: model.checkpoint)
        patch.setattr(build, "load_tokenizer", lambda tokenizer: FakeTokenizer())
        yield f"tiny-{request.param}"


@pytest.fixture(scope="module")
def tiny_asked(tiny: str) -> tuple[Workload, Tokens]:
    asked = make_workload(random.Random(), LLAMA.vocab_size, 60)
    with LLM(tiny, max_model_len=MAX_MODEL_LEN, **WHOLE) as llm:
        return asked, asked.alone(llm)


@pytest.mark.parametrize("options", VARIATIONS, ids=str)
def test_tiny_models(tiny: str, tiny_asked: tuple[Workload, Tokens], options: dict[str, Any]) -> None:
    check_variation(tiny, options, *tiny_asked, random.Random(), tight_bytes=TINY_TIGHT_BYTES[tiny])
