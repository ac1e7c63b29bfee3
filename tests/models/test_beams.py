"""Beam search on SmolLM2: what transformers finds with the same weights in float32, as far as rounding lets it.

Two steps. What the engine finds is exactly what the algorithm finds over the engine's own probabilities, and most of it
is what transformers finds; that the algorithm is transformers' own is the matter of tests/engine/test_beam_search.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from octavo import LLM, SamplingParams
from octavo.backends.native.executor import NativeExecutor
from octavo.engine.beam_search import BeamSearch, EarlyStopping
from octavo.step import TokenLogprobs

PROMPTS = ["Once upon a time", "The keeper of the lighthouse wrote"]
WIDTH, MAX_TOKENS = 4, 14
OPTIONS: list[tuple[float, EarlyStopping]] = [(1.0, False), (0.0, True), (2.0, "never")]

Texts = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, max_model_len=256, kv_cache_memory_bytes=2**27, activation_dtype="bf16") as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> PreTrainedModel:
    folder, file = str(smollm2_path.parent), smollm2_path.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return cast(PreTrainedModel, model.eval())


def found(llm: LLM, prompt: str, length_penalty: float, early_stopping: EarlyStopping) -> Texts:
    sampling = SamplingParams(
        n=WIDTH, use_beam_search=True, temperature=0.0, max_tokens=MAX_TOKENS,
        length_penalty=length_penalty, early_stopping=early_stopping,
    )  # fmt: skip
    (output,) = llm.generate(prompt, sampling, use_tqdm=False)
    return [answer.token_ids for answer in output.outputs]


def searched(llm: LLM, prompt: str, length_penalty: float, early_stopping: EarlyStopping) -> Texts:
    """What the algorithm finds over the logits of whole texts, computed one by one."""
    executor = cast(NativeExecutor, llm._engine.core._executor)
    search = BeamSearch(
        width=WIDTH, max_tokens=MAX_TOKENS, ending_token_ids=llm._engine.tokenizer.eos_token_ids,
        length_penalty=length_penalty, early_stopping=early_stopping,
    )  # fmt: skip
    texts = [llm._engine.tokenizer.encode(prompt)]
    while search.num_live:
        offers = [likeliest(executor.score(text)[-1], search.num_offers) for text in texts]
        texts = [[*texts[each.parent], each.token_id] for each in search.advance(offers)]
    return [hypothesis.token_ids for hypothesis in search.best(WIDTH)]


def likeliest(logits: np.ndarray, count: int) -> TokenLogprobs:
    top = torch.from_numpy(logits).double().log_softmax(-1).topk(count)
    token_ids, logprobs = tuple(top.indices.tolist()), tuple(top.values.tolist())
    return TokenLogprobs(token_ids[0], logprobs[0], 1, token_ids, logprobs)


def expected(
    oracle: PreTrainedModel, llm: LLM, prompt: str, length_penalty: float, early_stopping: EarlyStopping
) -> Texts:
    token_ids = llm._engine.tokenizer.encode(prompt)
    eos = sorted(llm._engine.tokenizer.eos_token_ids)
    output: Any = oracle.generate(
        torch.tensor([token_ids]), attention_mask=torch.ones(1, len(token_ids), dtype=torch.long),
        num_beams=WIDTH, num_return_sequences=WIDTH, max_new_tokens=MAX_TOKENS, do_sample=False,
        length_penalty=length_penalty, early_stopping=early_stopping, eos_token_id=eos, pad_token_id=0,
    )  # fmt: skip
    texts = [row[len(token_ids) :] for row in output.tolist()]
    ends = [next((place + 1 for place, token in enumerate(text) if token in eos), len(text)) for text in texts]
    return [tuple(text[:end]) for text, end in zip(texts, ends, strict=True)]


@pytest.mark.parametrize(("length_penalty", "early_stopping"), OPTIONS)
def test_the_engine_follows_the_algorithm(llm: LLM, length_penalty: float, early_stopping: EarlyStopping) -> None:
    for prompt in PROMPTS:
        assert found(llm, prompt, length_penalty, early_stopping) == searched(
            llm, prompt, length_penalty, early_stopping
        )


def test_the_texts_are_those_of_transformers(llm: LLM, oracle: PreTrainedModel) -> None:
    """bf16 activations move log probabilities by hundredths; where beams are closer than that, the other may win."""
    same: list[bool] = []
    for prompt in PROMPTS:
        for length_penalty, early_stopping in OPTIONS:
            ours = found(llm, prompt, length_penalty, early_stopping)
            theirs = expected(oracle, llm, prompt, length_penalty, early_stopping)
            same += [text in theirs for text in ours]
    print(f"{sum(same)} of {len(same)} texts are the same")
    assert len(same) == len(PROMPTS) * len(OPTIONS) * WIDTH
    assert sum(same) >= 0.9 * len(same)
