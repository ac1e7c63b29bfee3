"""The engine's step: how answers end, what is reported, and what one failure may cost."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import EngineDeadError, InvalidValueError, StepError
from octavo.request import OutputDelta
from octavo.sampling_params import SamplingParams
from tests.engine.fake_engine import FakeEngine, run
from tests.engine.fakes import EOS, continuation, text_of


def answer(sampling: SamplingParams, prompt: str = "258") -> tuple[str, tuple[int, ...], OutputDelta]:
    """Text, token ids and last delta of one request alone."""
    fake = FakeEngine()
    request = fake.input.from_prompt(prompt, sampling)
    deltas = run(fake, request)[request.request_id]
    assert fake.pool.num_used == 0
    return "".join(d.text for d in deltas), tuple(t for d in deltas for t in d.token_ids), deltas[-1]


FREE = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
FREE_TOKENS = continuation([2, 5, 8], FREE, 30)


def test_length_ends_an_answer() -> None:
    text, token_ids, last = answer(FREE)
    assert token_ids == tuple(FREE_TOKENS) and text == text_of(FREE_TOKENS)
    assert last.finish_reason == "length" and last.stop_reason is None
    assert (last.num_prompt_tokens, last.num_output_tokens) == (3, 30)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_eos_ends_an_answer_is_counted_and_has_no_text(seed: int) -> None:
    sampling = SamplingParams(seed=seed, max_tokens=200)
    tokens = continuation([2, 5, 8], sampling, 200)
    text, token_ids, last = answer(sampling)
    if EOS in tokens:
        tokens = tokens[: tokens.index(EOS) + 1]
        assert (last.finish_reason, last.stop_reason) == ("stop", None)
        assert text == text_of(tokens[:-1])
    else:
        assert last.finish_reason == "length"
    assert token_ids == tuple(tokens)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_ends_an_answer_and_is_the_reason(include: bool) -> None:
    stop = FREE_TOKENS[9]
    first = FREE_TOKENS.index(stop)
    sampling = SamplingParams(
        temperature=0, max_tokens=30, ignore_eos=True, stop_token_ids=(stop,), include_stop_str_in_output=include
    )
    text, token_ids, last = answer(sampling)
    assert token_ids == tuple(FREE_TOKENS[: first + 1])
    assert text == text_of(FREE_TOKENS[: first + include])
    assert (last.finish_reason, last.stop_reason) == ("stop", stop)


@given(start=st.integers(0, 28), length=st.integers(1, 6), include=st.booleans(), min_tokens=st.integers(0, 20))
def test_a_stop_string_ends_an_answer_once_there_are_min_tokens(
    start: int, length: int, include: bool, min_tokens: int
) -> None:
    full = text_of(FREE_TOKENS)
    stop = full[start : start + length]
    sampling = SamplingParams(
        temperature=0, max_tokens=30, ignore_eos=True, stop=(stop,), include_stop_str_in_output=include,
        min_tokens=min_tokens,
    )  # fmt: skip
    text, token_ids, last = answer(sampling)
    # One character a token: the search begins with the text of the first token after min_tokens.
    found = full.find(stop, min_tokens)
    if found < 0:
        assert (text, last.finish_reason) == (full, "length")
        return
    assert text == full[: found + len(stop) * include]
    assert len(token_ids) == found + len(stop)
    assert (last.finish_reason, last.stop_reason) == ("stop", stop)


def test_text_held_back_for_a_stop_string_comes_out_at_the_end() -> None:
    full = text_of(FREE_TOKENS)
    text, _, last = answer(SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=(full[-3:] + "!",)))
    assert text == full and last.finish_reason == "length"


def test_the_beginning_of_a_stop_string_never_leaks() -> None:
    full = text_of(FREE_TOKENS)
    fake = FakeEngine()
    stop = (full[10:16], full[11:14] + "!")
    request = fake.input.from_prompt("258", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=stop))
    shown = ""
    for delta in run(fake, request)[request.request_id]:
        shown += delta.text
        assert full[: full.index(stop[0])].startswith(shown)


def test_min_tokens_keeps_eos_and_stop_tokens_away() -> None:
    sampling = SamplingParams(temperature=0, max_tokens=30, min_tokens=12, stop_token_ids=(FREE_TOKENS[3],))
    ending = (EOS, FREE_TOKENS[3])
    _, token_ids, _ = answer(sampling)
    assert len(token_ids) >= 12 and not set(ending) & set(token_ids[:12])
    assert token_ids == tuple(continuation([2, 5, 8], sampling, 30, ending)[: len(token_ids)])


def test_times_are_in_order_and_stats_agree_with_the_answers() -> None:
    fake = FakeEngine(max_num_batched_tokens=16)
    requests = [fake.input.from_prompt([2 + i] * (5 + 9 * i), FREE) for i in range(6)]
    streams = run(fake, *requests)
    for stream in streams.values():
        times = stream[-1].times
        assert times is not None and times.first_scheduled and times.first_token and times.last_token
        assert times.arrival <= times.first_scheduled <= times.first_token <= times.last_token
    assert sum(step.num_prompt_tokens for step in fake.stats.steps) == sum(len(r.prompt_token_ids) for r in requests)
    assert sum(step.num_output_tokens for step in fake.stats.steps) == 6 * 30
    assert sum(count for _, count in fake.stats.gaps) == 6 * 29 and all(gap > 0 for gap, _ in fake.stats.gaps)
    assert len(fake.stats.requests) == 6
    last = fake.stats.steps[-1]
    assert (last.num_running, last.num_waiting, last.num_blocks_used, last.num_blocks) == (0, 0, 0, 200)


def test_abort_ends_a_waiting_and_a_running_request_once() -> None:
    fake = FakeEngine(max_num_seqs=1)
    running, waiting = fake.input.from_prompt("25", FREE), fake.input.from_prompt("58", FREE)
    fake.core.add_request(running)
    fake.core.add_request(waiting)
    fake.core.step()
    for request, num_output_tokens in ((waiting, 0), (running, 1)):
        delta = fake.core.abort(request.request_id)
        assert delta is not None and delta.finish_reason == "abort" and delta.num_output_tokens == num_output_tokens
        assert fake.core.abort(request.request_id) is None
    assert not fake.core.has_requests and fake.pool.num_used == 0
    assert [stats.finish_reason for stats in fake.stats.requests] == ["abort", "abort"]


def test_a_step_that_raises_costs_its_own_requests_only(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeEngine(max_num_seqs=2)
    doomed = [fake.input.from_prompt(prompt, FREE, request_id=prompt) for prompt in ("25", "58")]
    lucky = fake.input.from_prompt("222", FREE)
    fake.executor.failures = [RuntimeError("cosmic ray")]
    with caplog.at_level(logging.ERROR):
        streams = run(fake, *doomed, lucky)
    for request in doomed:
        (delta,) = streams[request.request_id]
        assert delta.finish_reason == "error" and isinstance(delta.error, StepError)
        assert "cosmic ray" in str(delta.error)
    assert [token for d in streams[lucky.request_id] for token in d.token_ids] == continuation([2, 2, 2], FREE, 30)
    assert "25 (row 0: 0+2, samples), 58 (row 1: 0+2, samples)" in caplog.text
    assert fake.core.healthy and fake.pool.num_used == 0


def test_a_backend_that_keeps_failing_is_dead() -> None:
    fake = FakeEngine(max_num_seqs=1)
    fake.executor.failures = [RuntimeError(f"failure {i}") for i in range(3)]
    requests = [fake.input.from_prompt("25", FREE) for _ in range(5)]
    streams = run(fake, *requests)
    errors = [streams[request.request_id][0].error for request in requests]
    assert [type(error) for error in errors] == [StepError] * 2 + [EngineDeadError] * 3
    assert not fake.core.healthy
    with pytest.raises(EngineDeadError, match="failure 2"):
        fake.core.add_request(fake.input.from_prompt("25", FREE))


def test_failures_between_good_steps_do_not_add_up() -> None:
    fake = FakeEngine()
    for _ in range(4):
        fake.executor.failures = [RuntimeError("again")]
        run(fake, fake.input.from_prompt("25", FREE))
        run(fake, fake.input.from_prompt("25", FREE))
    assert fake.core.healthy


def test_a_token_that_cannot_become_text_hurts_one_request() -> None:
    poison = FREE_TOKENS[5]
    fake = FakeEngine(poison=poison)
    victim, other = fake.input.from_prompt("258", FREE), fake.input.from_prompt("25", FREE)
    tokens = continuation([2, 5], FREE, 30)
    assert poison not in tokens
    streams = run(fake, victim, other)
    last = streams[victim.request_id][-1]
    assert last.finish_reason == "error" and isinstance(last.error, StepError) and "poison" in str(last.error)
    assert "".join(delta.text for delta in streams[other.request_id]) == text_of(tokens)


def test_a_request_id_in_use_is_refused() -> None:
    fake = FakeEngine()
    fake.core.add_request(fake.input.from_prompt("25", FREE, request_id="a"))
    with pytest.raises(InvalidValueError, match="'a' is in use"):
        fake.core.add_request(fake.input.from_prompt("25", FREE, request_id="a"))


@pytest.mark.parametrize("report", ["on_step", "on_request", "on_token_gap"])
def test_a_listener_that_raises_costs_nobody_an_answer(
    report: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeEngine()
    calls: list[object] = []

    def fail(*arguments: object) -> None:
        calls.append(arguments)
        raise ValueError("full disk")

    monkeypatch.setattr(fake.stats, report, fail)
    request = fake.input.from_prompt("258", FREE)
    stream = run(fake, request)[request.request_id]
    assert [token for delta in stream for token in delta.token_ids] == FREE_TOKENS
    assert fake.core.healthy and fake.pool.num_used == 0
    assert len(calls) == 1 and "full disk" in caplog.text
