"""Beam search through engine, scheduler and KV cache: the same texts as the algorithm alone, whatever else runs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from octavo.engine.beam_search import BeamSearch, EarlyStopping
from octavo.engine.choices import fan_out
from octavo.request import OutputDelta
from octavo.sampling_params import SamplingParams
from tests.engine.fake_engine import FakeEngine, run
from tests.engine.fakes import EOS, continuation, extend, likeliest_after, text_of

BEAMS = SamplingParams(n=3, best_of=4, use_beam_search=True, max_tokens=20, temperature=0.0)


def searched(prompt: tuple[int, ...], sampling: SamplingParams) -> list[tuple[int, ...]]:
    """What beam search finds over the fake model, made without engine, blocks or rows."""
    search = BeamSearch(
        width=sampling.num_samples,
        max_tokens=sampling.max_tokens or 1,
        min_tokens=sampling.min_tokens,
        ending_token_ids=frozenset(() if sampling.ignore_eos else (EOS,)) | set(sampling.stop_token_ids),
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
    )
    state = 0
    for token_id in prompt:
        state = extend(state, token_id)
    states = [state]
    while search.num_live:
        continuations = search.advance([likeliest_after(state, search.num_offers) for state in states])
        states = [extend(states[each.parent], each.token_id) for each in continuations]
    return [hypothesis.token_ids for hypothesis in search.best(sampling.n)]


def token_ids(deltas: list[OutputDelta]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in deltas[-1].completions]


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("min_tokens", [0, 9])
def test_the_same_texts_as_the_algorithm_alone(early_stopping: EarlyStopping, min_tokens: int) -> None:
    fake = FakeEngine()
    sampling = replace(
        BEAMS, early_stopping=early_stopping, length_penalty=0.5, min_tokens=min_tokens, stop_token_ids=(33, 34, 35)
    )
    request = fake.input.from_prompt(list(range(2, 40)), sampling)
    (last,) = run(fake, request)[request.request_id]
    expected = searched(request.prompt_token_ids, request.sampling)
    assert token_ids([last]) == expected and len(expected) == 3
    for index, completion in enumerate(last.completions):
        ended = completion.token_ids[-1] in (EOS, 33, 34, 35)
        assert completion.index == index and completion.finish_reason == ("stop" if ended else "length")
        assert completion.text == text_of(completion.token_ids[: len(completion.token_ids) - ended])
    assert last.num_output_tokens == sum(map(len, expected))


@pytest.mark.parametrize("seed", range(16))
def test_beside_other_requests_and_with_little_memory(seed: int) -> None:
    """Whatever the budget, the rows and the preemptions, nobody gets other tokens than alone."""
    rng = random.Random(seed)
    fake = FakeEngine(
        num_blocks=rng.randint(6, 14),
        max_num_seqs=rng.choice([1, 2, 16]),
        max_num_batched_tokens=rng.choice([1, 5, 17, 64]),
    )
    searches, others = [], []
    for _ in range(rng.randint(1, 3)):
        width = rng.randint(1, 6)
        sampling = replace(BEAMS, n=rng.randint(1, width), best_of=width, max_tokens=rng.randint(1, 40))
        prompt = [rng.randrange(2, 97) for _ in range(rng.randint(1, 50))]
        searches.append(fake.input.from_prompt(prompt, sampling))
        plain = SamplingParams(seed=rng.randrange(99), max_tokens=rng.randint(1, 40), ignore_eos=True)
        others.append(fake.input.from_prompt(prompt[: rng.randint(1, 50)], plain))
    requests = [*searches, *others]
    rng.shuffle(requests)
    deltas = run(fake, *requests)
    for search in searches:
        assert token_ids(deltas[search.request_id]) == searched(search.prompt_token_ids, search.sampling)
    for other in others:
        tokens = [token_id for delta in deltas[other.request_id] for token_id in delta.token_ids]
        assert tokens == continuation(other.prompt_token_ids, other.sampling, other.sampling.max_tokens or 0)


def test_beams_share_the_prompt_s_blocks_and_copy_only_the_last() -> None:
    fake = FakeEngine()
    request = fake.input.from_prompt([3] * 500, replace(BEAMS, max_tokens=12))
    run(fake, request)
    assert max(step.num_blocks_used for step in fake.stats.steps) <= 500 // 16 + 2 * 4
    assert sum(len(plan.copies) for plan in fake.executor.plans) >= 3
    assert sum(plan.num_tokens for plan in fake.executor.plans) <= 500 + 12 * 4, "something was computed twice"


@pytest.mark.parametrize("num_steps", range(12))
def test_an_abort_leaves_no_copy_behind_that_holds_a_block(num_steps: int) -> None:
    """Nothing else runs, so no step will make the copies that were planned for the beams."""
    fake = FakeEngine()
    request = fake.input.from_prompt([3] * 40, BEAMS)
    fake.core.add_request(request)
    for _ in range(num_steps):
        fake.core.step()
    fake.core.abort(request.request_id)
    assert fake.pool.num_used == 0
    fake.core.check_integrity()


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 7])
def test_an_abort_in_the_middle_frees_everything(num_steps: int) -> None:
    fake = FakeEngine()
    request = fake.input.from_prompt([3] * 40, BEAMS)
    other = fake.input.from_prompt([3] * 40, SamplingParams(seed=1, max_tokens=30, ignore_eos=True))
    fake.core.add_request(request)
    fake.core.add_request(other)
    for _ in range(num_steps):
        fake.core.step()
    aborted = fake.core.abort(request.request_id)
    assert aborted is not None and aborted.finish_reason == "abort" and not aborted.completions
    fake.core.check_integrity()
    assert fake.core.abort(request.request_id) is None
    while fake.core.has_requests:
        assert {delta.request_id for delta in fake.core.step()} <= {other.request_id}
    assert fake.pool.num_used == 0


def test_a_failing_step_ends_a_search_with_one_error() -> None:
    fake = FakeEngine()
    request = fake.input.from_prompt([3] * 40, BEAMS)
    fake.core.add_request(request)
    for _ in range(5):
        assert fake.core.step() == []
    fake.executor.failures = [RuntimeError("broken")]
    (last,) = fake.core.step()
    assert (last.request_id, last.finish_reason) == (request.request_id, "error")
    assert not fake.core.has_requests and fake.pool.num_used == 0
    fake.core.check_integrity()


def test_a_text_that_cannot_be_made_fails_its_search_alone() -> None:
    fake = FakeEngine(poison=searched((2, 5, 8), BEAMS)[0][0])
    request = fake.input.from_prompt([2, 5, 8], BEAMS)
    other = fake.input.from_prompt([4], SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))
    deltas = run(fake, request, other)
    assert deltas[request.request_id][-1].finish_reason == "error"
    assert deltas[other.request_id][-1].finished


def test_a_search_is_one_request_to_the_statistics() -> None:
    fake = FakeEngine()
    request = fake.input.from_prompt([2, 5, 8], BEAMS)
    run(fake, request)
    (stats,) = fake.stats.requests
    assert stats.num_prompt_tokens == 3
    assert stats.times.first_scheduled is not None and stats.times.first_token is not None
    assert fan_out(request) == (request,)
