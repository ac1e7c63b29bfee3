"""Beam search against transformers, on random language models small enough to write down as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from octavo.engine.beam_search import BeamSearch, EarlyStopping
from octavo.step import TokenLogprobs

VOCAB_SIZE = 61


@dataclass(frozen=True)
class Options:
    width: int
    max_tokens: int
    eos: tuple[int, ...]
    length_penalty: float
    early_stopping: EarlyStopping
    min_tokens: int = 0


def tiny_llama(seed: int) -> LlamaForCausalLM:
    """Peaked enough that its choices are far from ties in float32, and that it ends its texts at all."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.35,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def theirs(model: LlamaForCausalLM, prompt: list[int], options: Options) -> tuple[list[list[int]], list[float]]:
    config = GenerationConfig(
        num_beams=options.width,
        num_return_sequences=options.width,
        max_new_tokens=options.max_tokens,
        min_new_tokens=options.min_tokens or None,
        length_penalty=options.length_penalty,
        early_stopping=options.early_stopping,
        eos_token_id=list(options.eos) or None,
        pad_token_id=0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    output: Any = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), generation_config=config
    )
    return [
        _until_end(row[len(prompt) :], options) for row in output.sequences.tolist()
    ], output.sequences_scores.tolist()


def _until_end(tokens: list[int], options: Options) -> list[int]:
    """Without the padding that follows an ending token."""
    ends = [index for index, token in enumerate(tokens) if token in options.eos and index >= options.min_tokens]
    return tokens[: ends[0] + 1] if ends else tokens


def ours(model: LlamaForCausalLM, prompt: list[int], options: Options) -> tuple[list[list[int]], list[float]]:
    search = BeamSearch(
        width=options.width,
        max_tokens=options.max_tokens,
        ending_token_ids=frozenset(options.eos),
        min_tokens=options.min_tokens,
        length_penalty=options.length_penalty,
        early_stopping=options.early_stopping,
    )
    texts: list[list[int]] = [[]]
    while search.num_live:
        with torch.no_grad():
            logits = [model(torch.tensor([prompt + text])).logits[0, -1].float() for text in texts]
        offers = []
        for row in logits:
            top = torch.log_softmax(row, -1).topk(min(search.num_offers, VOCAB_SIZE))
            ids, logprobs = tuple(top.indices.tolist()), tuple(top.values.tolist())
            offers.append(TokenLogprobs(ids[0], logprobs[0], 1, ids, logprobs))
        texts = [[*texts[each.parent], each.token_id] for each in search.advance(offers)]
        assert len(texts) == search.num_live
    best = search.best(options.width)
    for hypothesis in best:
        assert hypothesis.ended == (hypothesis.token_ids[-1] in options.eos)
        assert hypothesis.score == pytest.approx(
            hypothesis.logprob / len(hypothesis.token_ids) ** options.length_penalty
        )
    return [list(hypothesis.token_ids) for hypothesis in best], [hypothesis.score for hypothesis in best]


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -0.7, 2.0])
@pytest.mark.parametrize("num_eos", [0, 1, 3])
def test_the_same_texts_and_scores_as_transformers(
    early_stopping: EarlyStopping, length_penalty: float, num_eos: int
) -> None:
    # Drawn anew, one search in thousands would meet a tie within float32's rounding.
    rng = np.random.default_rng([len(str(early_stopping)), int(10 * length_penalty) + 10, num_eos])
    for _ in range(3):
        seed = int(rng.integers(2**31))
        model = tiny_llama(seed)
        prompt = rng.integers(0, VOCAB_SIZE, int(rng.integers(1, 9))).tolist()
        width, max_tokens = int(rng.integers(2, 7)), int(rng.integers(1, 20))
        eos = tuple(rng.choice(VOCAB_SIZE, num_eos, replace=False).tolist())
        min_tokens = int(rng.integers(0, max_tokens)) if rng.random() < 0.3 else 0
        options = Options(width, max_tokens, eos, length_penalty, early_stopping, min_tokens)
        expected, expected_scores = theirs(model, prompt, options)
        tokens, scores = ours(model, prompt, options)
        assert tokens == expected, (seed, prompt, options)
        assert scores == pytest.approx(expected_scores, abs=1e-3), (seed, prompt, options)
