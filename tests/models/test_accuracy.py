"""Real models stay within the accuracy bars: what a kernel, a layout or a model file gets slightly wrong shows here.

To stay quick Gemma, whose vocabulary is the largest, reads one window of text here; `accuracy.py` run by itself reads
two for every model, and its figures are in docs/log.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from tests.models.accuracy import Oracle, compare

# activation dtype: (mean KL in nats at most, top-1 agreement at least)
BARS = {"int8": (1e-2, 0.97), "bf16": (2e-3, 0.99)}
SCORED_TOKENS = 512
NUM_WINDOWS = {"smollm2": 2, "gemma3": 1, "qwen05": 2}


@pytest.fixture(scope="module", params=list(NUM_WINDOWS))
def model(request: pytest.FixtureRequest) -> tuple[Path, Oracle]:
    path: Path = request.getfixturevalue(f"{request.param}_path")
    return path, Oracle(path, NUM_WINDOWS[request.param])


@pytest.mark.parametrize("activation_dtype", ["int8", "bf16"])
def test_distributions_are_close_to_float32(model: tuple[Path, Oracle], activation_dtype: str) -> None:
    path, oracle = model
    accuracy = compare(oracle, path, activation_dtype)  # type: ignore[arg-type]
    print(path.name, activation_dtype, accuracy)
    max_kl, min_agreement = BARS[activation_dtype]
    assert accuracy.num_positions >= 1000
    assert accuracy.mean_kl <= max_kl
    assert accuracy.top1_agreement >= min_agreement


def test_reported_log_probabilities_are_close_to_float32(model: tuple[Path, Oracle]) -> None:
    """Of the tokens of a text, prompt by prompt chunk: what users of `prompt_logprobs` and `echo` see.

    The bar is about the mean: rounding to bf16 moves single unlikely tokens by more.
    """
    path, oracle = model
    window = oracle.windows[0][:SCORED_TOKENS]
    expected = torch.from_numpy(oracle.logits[0][: len(window)]).double().log_softmax(-1).numpy()
    with LLM(path, activation_dtype="bf16", max_num_batched_tokens=96) as llm:
        sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        (output,) = llm.generate([window], sampling)
    found = [token.logprob for token in output.prompt_logprobs if token is not None]
    differences = np.abs(np.array(found) - expected[np.arange(len(found)), window[1:]])
    print(path.name, f"mean |difference| {differences.mean():.4f}, largest {differences.max():.3f}")
    assert len(found) == len(window) - 1
    assert differences.mean() <= 0.02
