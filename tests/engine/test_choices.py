"""Several answers to one request: their seeds, their order, their ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import LLM, SamplingParams
from octavo.engine.choices import fan_out
from octavo.engine.seeds import seed_of_choice
from octavo.errors import InvalidValueError, StepError
from octavo.sampling_params import MAX_CHOICES
from tests.engine.fake_engine import FakeEngine
from tests.engine.fakes import continuation, extend, logprobs_after

FREE = SamplingParams(temperature=1.0, seed=7, max_tokens=30, ignore_eos=True)


@given(seed=st.integers(0, 2**64 - 1))
def test_seeds_of_choices_differ_and_the_first_is_the_request_s(seed: int) -> None:
    seeds = [seed_of_choice(seed, index) for index in range(MAX_CHOICES)]
    assert seeds[0] == seed and len(set(seeds)) == MAX_CHOICES
    assert all(0 <= each < 2**64 for each in seeds)


def test_every_choice_has_its_own_tokens_and_the_first_those_of_a_lone_one(llm: LLM) -> None:
    alone, three, eight = (llm.generate("258", replace(FREE, n=n))[0] for n in (1, 3, 8))
    assert [choice.index for choice in eight.outputs] == list(range(8))
    assert len({choice.token_ids for choice in eight.outputs}) == 8
    assert alone.outputs == three.outputs[:1] and three.outputs == eight.outputs[:3]
    assert list(alone.outputs[0].token_ids) == continuation([2, 5, 8], FREE, 30)


def test_choices_of_several_prompts_keep_their_places(llm: LLM) -> None:
    prompts = ["258", "4", "7777"]
    outputs = llm.generate(prompts, [replace(FREE, n=n) for n in (2, 1, 3)])
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs) for output in outputs] == [2, 1, 3]
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs == llm.generate(prompt, replace(FREE, n=8))[0].outputs[: len(output.outputs)]


def mean_logprob(prompt: list[int], tokens: list[int]) -> float:
    state, total = 0, 0.0
    for token_id in prompt:
        state = extend(state, token_id)
    for token_id in tokens:
        total += logprobs_after(state)[token_id]
        state = extend(state, token_id)
    return total / len(tokens)


def test_the_best_of_several_samples_are_given_best_first(llm: LLM) -> None:
    sampling = replace(FREE, n=3, best_of=9, ignore_eos=False)
    (output,) = llm.generate("258", sampling)
    samples = llm.generate("258", replace(sampling, n=9))[0].outputs
    ranking = sorted(samples, key=lambda sample: -mean_logprob([2, 5, 8], list(sample.token_ids)))
    assert [choice.token_ids for choice in output.outputs] == [sample.token_ids for sample in ranking[:3]]
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert len({len(sample.token_ids) for sample in samples}) > 1, "all samples are equally long"
    for choice in output.outputs:
        expected = mean_logprob([2, 5, 8], list(choice.token_ids)) * len(choice.token_ids)
        assert choice.cumulative_logprob == pytest.approx(expected)


@pytest.mark.parametrize("best_of", [0, 1, MAX_CHOICES + 1, True, 2.0])
def test_a_wrong_best_of_is_refused_by_name(best_of: object) -> None:
    with pytest.raises(InvalidValueError, match=r"^best_of is ") as refused:
        SamplingParams(n=2, best_of=best_of)  # type: ignore[arg-type]
    assert refused.value.param == "best_of"


def test_greedy_choices_are_alike(llm: LLM) -> None:
    (output,) = llm.generate("258", replace(FREE, temperature=0.0, n=4))
    assert len({choice.token_ids for choice in output.outputs}) == 1


def test_a_failing_choice_fails_its_request_and_nothing_stays(fake: FakeEngine, llm: LLM) -> None:
    fake.executor.failures = [RuntimeError("broken")]
    with pytest.raises(StepError):
        llm.generate("258", replace(FREE, n=5))
    assert llm.generate("258", FREE)[0].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("n", [0, -1, MAX_CHOICES + 1, True, 1.0, None, "2"])
def test_a_wrong_n_is_refused_by_name(n: object) -> None:
    with pytest.raises(InvalidValueError, match=r"^n is ") as refused:
        SamplingParams(n=n)  # type: ignore[arg-type]
    assert refused.value.param == "n"


def test_a_fanned_out_request_names_its_parent(fake: FakeEngine) -> None:
    request = fake.input.from_prompt("258", replace(FREE, n=3), request_id="r")
    assert [(choice.request_id, choice.parent_id) for choice in fan_out(request)] == [
        ("r-0", "r"),
        ("r-1", "r"),
        ("r-2", "r"),
    ]
    assert [choice.num_choices for choice in fan_out(request)] == [3, 0, 0]
    assert fan_out(replace(request, sampling=FREE))[0].parent_id is None
    with pytest.raises(InvalidValueError, match="n is 3"):
        fake.core.add_request(request)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_eight_answers_store_their_prompt_once(prefix_caching: bool) -> None:
    blocks = []
    for n in (1, 8):
        fake = FakeEngine(num_blocks=600, prefix_caching=prefix_caching)
        with LLM.from_engine(fake.engine) as llm:
            (output,) = llm.generate([[3] * 1000], replace(FREE, n=n, max_tokens=8))
        assert len({answer.token_ids for answer in output.outputs}) == n
        assert sum(plan.num_tokens for plan in fake.executor.plans) == 1000 + n * 8 - 1, "a prompt was computed twice"
        blocks.append(max(step.num_blocks_used for step in fake.stats.steps))
        assert fake.pool.num_used == 0
    assert blocks[1] <= 1.2 * blocks[0]


def test_without_prefix_caching_nothing_is_shared_between_requests() -> None:
    fake = FakeEngine(num_blocks=600, prefix_caching=False)
    with LLM.from_engine(fake.engine) as llm:
        for _ in range(2):
            (output,) = llm.generate([[3] * 200], replace(FREE, n=2, max_tokens=2))
            assert output.num_cached_tokens == 0
    assert 2 * 200 < sum(step.num_prompt_tokens for step in fake.stats.steps) <= 2 * (200 + 16)
