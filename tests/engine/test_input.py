"""What the door lets in: every limit, with the field's name and the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.truncation import Truncation
from octavo.errors import ContextLengthError, InvalidValueError, RequestError
from octavo.sampling_params import SamplingParams
from tests.engine.fake_engine import FakeEngine
from tests.engine.fakes import EOS, VOCAB_SIZE, FakeTokenizer

INPUT = FakeEngine(num_blocks=4, max_model_len=50).input  # 64 tokens of KV, 50 of context
TIGHT = FakeEngine(num_blocks=2, max_model_len=50).input  # 32 tokens of KV


def test_text_and_token_ids_make_the_same_request() -> None:
    text, ids = INPUT.from_prompt("258", SamplingParams(seed=1)), INPUT.from_prompt([2, 5, 8], SamplingParams(seed=1))
    assert text.prompt_token_ids == ids.prompt_token_ids == (2, 5, 8)
    assert text.prompt == "258" and ids.prompt is None
    assert text.request_id != ids.request_id
    assert INPUT.from_prompt("2", SamplingParams(), request_id="mine").request_id == "mine"


def test_messages_go_through_the_template() -> None:
    request = INPUT.from_messages([{"role": "user", "content": "25"}], SamplingParams())
    assert request.prompt_token_ids == (2, 5, 14)


@pytest.mark.parametrize(
    ("prompt", "sampling", "kind", "param", "words"),
    [
        ("", SamplingParams(), InvalidValueError, "prompt", "empty"),
        ([], SamplingParams(), InvalidValueError, "prompt", "empty"),
        ([3, -1], SamplingParams(), InvalidValueError, "prompt", r"prompt\[1\] is -1.*0 to 96"),
        ([VOCAB_SIZE], SamplingParams(), InvalidValueError, "prompt", r"is 97.*0 to 96"),
        ([3, True], SamplingParams(), InvalidValueError, "prompt", r"prompt\[1\] is True"),
        ([3, 1.5], SamplingParams(), InvalidValueError, "prompt", r"prompt\[1\] is 1.5"),
        (["3"], SamplingParams(), InvalidValueError, "prompt", r"prompt\[0\] is '3'"),
        ([3] * 50, SamplingParams(), ContextLengthError, "prompt", "50 tokens.*context length of 50.*at most 49"),
        ([3], SamplingParams(stop_token_ids=(VOCAB_SIZE,)), InvalidValueError, "stop_token_ids", "97"),
        ([3] * 40, SamplingParams(max_tokens=20, min_tokens=11), ContextLengthError, "min_tokens", "11.*40.*10.*50"),
    ],
)
def test_refusals_name_field_value_and_limit(
    prompt: list[int], sampling: SamplingParams, kind: type[RequestError], param: str, words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        INPUT.from_prompt(prompt, sampling)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "forbids",
    [{"min_tokens": 1}, {"bad_words": ["1"]}, {"min_tokens": 2, "stop_token_ids": [5], "allowed_token_ids": [EOS, 5]}],
    ids=str,
)
def test_an_answer_that_could_not_begin_is_refused(forbids: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match="no token to begin with") as refusal:
        INPUT.from_prompt([3], SamplingParams(**{"allowed_token_ids": [EOS], **forbids}))
    assert refusal.value.param == "allowed_token_ids"
    INPUT.from_prompt([3], SamplingParams(allowed_token_ids=[EOS]))
    INPUT.from_prompt([3], SamplingParams(**{**forbids, "allowed_token_ids": [EOS, 6]}))


def test_a_prompt_longer_than_the_whole_kv_cache_is_refused_with_both_numbers() -> None:
    with pytest.raises(ContextLengthError, match=r"40 tokens.*32 tokens"):
        TIGHT.from_prompt([3] * 40, SamplingParams())


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="messages is empty"):
        INPUT.from_messages([], SamplingParams())


@given(length=st.integers(1, 31), max_tokens=st.none() | st.integers(1, 100))
def test_max_tokens_is_what_was_asked_or_what_there_is_room_for(length: int, max_tokens: int | None) -> None:
    for processor, limit in ((INPUT, 50), (TIGHT, 32)):
        resolved = processor.from_prompt([3] * length, SamplingParams(max_tokens=max_tokens)).sampling.max_tokens
        assert resolved == min(max_tokens or 100, limit - length)


@given(seed=st.integers(-(2**80), 2**80))
def test_any_integer_is_a_seed(seed: int) -> None:
    assert INPUT.from_prompt([3], SamplingParams(seed=seed)).sampling.seed == seed % 2**64


def test_fresh_seeds_differ_and_depend_on_the_engine_alone() -> None:
    def seeds() -> list[int | None]:
        processor = FakeEngine().input
        return [processor.from_prompt([3], SamplingParams()).sampling.seed for _ in range(100)]

    assert seeds() == seeds() and len(set(seeds())) == 100


def test_numpy_integers_are_token_ids() -> None:
    prompt = list(np.array([3, 4], dtype=np.int64))
    assert INPUT.from_prompt(prompt, SamplingParams()).prompt_token_ids == (3, 4)


def test_a_prompt_far_too_long_is_refused_by_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of megabytes must not be tokenised whole to be refused; one that is cut is read to its end."""
    lengths: list[int] = []
    encode = FakeTokenizer.encode

    def counting(tokenizer: FakeTokenizer, text: str, **options: bool) -> list[int]:
        lengths.append(len(text))
        return encode(tokenizer, text, **options)

    monkeypatch.setattr(FakeTokenizer, "encode", counting)
    monkeypatch.setattr(FakeTokenizer, "token_bytes", lambda *_: b"0123456789abcdef")
    processor = FakeEngine(num_blocks=4, max_model_len=50).input
    text = "34" * 100_000
    for too_long, num_tokenised in ((text, 0), (text[: 33 * 50], 32 * 50)):
        with pytest.raises(ContextLengthError, match=r"more than \d+ tokens; the context length of"):
            processor.from_prompt(too_long, SamplingParams())
        assert sum(lengths) == num_tokenised
    request = processor.from_prompt(text, SamplingParams(max_tokens=1), truncation=Truncation(5))
    assert len(request.prompt_token_ids) == 5 and lengths[-1] == len(text)


def test_what_the_vocabulary_lacks_is_refused() -> None:
    for sampling, param in (
        (SamplingParams(logit_bias={10**6: 1.0}), "logit_bias"),
        (SamplingParams(allowed_token_ids=(10**6,)), "allowed_token_ids"),
        (SamplingParams(logprobs=21), "logprobs"),
        (SamplingParams(prompt_logprobs=-1), "prompt_logprobs"),
    ):
        with pytest.raises(InvalidValueError) as refusal:
            INPUT.from_prompt([3], sampling)
        assert refusal.value.param == param
