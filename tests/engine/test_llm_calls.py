"""`LLM` over the fake backend: forms of prompts, order of results, errors, interruption, threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, ContextLengthError, EngineError, InvalidValueError, ShuttingDownError, StepError
from octavo.request import RequestOutput
from octavo.step import StepOutput, StepPlan
from tests.engine.fake_engine import FakeEngine
from tests.engine.fakes import continuation, text_of

FREE = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


def token_ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize(
    "prompts",
    ["258", ["258"], [2, 5, 8], (2, 5, 8), [[2, 5, 8]], {"prompt": "258"}, [{"prompt_token_ids": [2, 5, 8]}],
     {"prompt_token_ids": [2, 5, 8], "prompt": "258"}],
)  # fmt: skip
def test_every_form_of_a_prompt(llm: LLM, prompts: object) -> None:
    (output,) = llm.generate(prompts, FREE)  # type: ignore[arg-type]
    expected = continuation([2, 5, 8], FREE, 30)
    assert output.prompt_token_ids == (2, 5, 8)
    assert token_ids([output]) == [expected] and output.outputs[0].text == text_of(expected)
    assert output.outputs[0].finish_reason == "length"


def test_priorities_are_one_for_all_or_one_each(llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    add = fake.engine.core.add_request
    monkeypatch.setattr(fake.engine.core, "add_request", lambda one: (taken.append(one.priority), add(one)))
    llm.generate(["25", "3"], FREE, priority=[4, -1])
    llm.generate(["25", "3"], FREE, priority=7)
    llm.generate("25", FREE)
    llm.chat([{"role": "user", "content": "25"}], FREE, priority=[2])
    assert taken == [4, -1, 7, 7, 0, 2]
    for wrong, message in (([1], "1 priorities were given for 2 prompts"), ([0, 200], r"prompts\[1\]: priority is 200"),
                           (["a", 0], "priority is 'a'"), ("high", "integer"), (True, "priority is True")):  # fmt: skip
        with pytest.raises(InvalidValueError, match=message) as refused:
            llm.generate(["25", "3"], FREE, priority=wrong)  # type: ignore[arg-type]
        assert refused.value.param == "priority"


def test_arrays_are_token_ids_too(llm: LLM) -> None:
    for prompts in (np.array([2, 5, 8]), [np.array([2, 5, 8])], np.array([[2, 5, 8]]), [np.array([3])]):
        (output,) = llm.generate(prompts, FREE)  # type: ignore[arg-type]
        assert output.prompt_token_ids in {(2, 5, 8), (3,)}


@pytest.mark.parametrize(
    "prompts",
    [None, 5, 1.5, True, b"258", {"2"}, iter(["2"]), [None], [1.5], [b"258"], [{2, 5}],
     {"prompt_token_ids": "258"}, {"prompt_token_ids": b"258"}, {"prompt_token_ids": None}],
)  # fmt: skip
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"it must be .*token ids"):
        llm.generate(prompts, FREE)


def test_what_is_no_conversation_and_no_parameters_is_refused(llm: LLM) -> None:
    wrong: Any
    for wrong in (None, 5, "25", {"role": "user", "content": "25"}):
        with pytest.raises(InvalidValueError, match=r"^messages is .*; it must be a list of messages"):
            llm.chat(wrong, FREE)
    for wrong in (5, "x", {}, [5], [None], [{}]):
        with pytest.raises(InvalidValueError, match=r"^sampling_params.* it must be a SamplingParams"):
            llm.generate(["25"], wrong)


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [[2 + i % 90] * (1 + 37 * i % 50) for i in range(80)]
    params = [replace(FREE, max_tokens=1 + 13 * i % 40, temperature=i % 2, seed=i) for i in range(80)]
    expected = [continuation(p, s, s.max_tokens or 0) for p, s in zip(prompts, params, strict=True)]
    assert token_ids(llm.generate(prompts, params)) == expected


def test_conversations(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "25"}]
    one = llm.chat(conversation, FREE)
    two = llm.chat([conversation, conversation], FREE)
    assert token_ids(one) * 2 == token_ids(two) == [continuation([2, 5, 14], FREE, 30)] * 2


def test_nothing_to_do(llm: LLM) -> None:
    assert llm.generate([]) == [] and llm.chat([]) == []


def test_a_bad_request_is_named_before_anything_runs(llm: LLM, fake: FakeEngine) -> None:
    with pytest.raises(ContextLengthError, match=r"prompts\[2\]: .*960"):
        llm.generate(["25", "258", [3] * 1000], FREE)
    with pytest.raises(InvalidValueError, match=r"prompts\[1\]: .*prompt_token_ids or prompt") as caught:
        llm.generate(["25", {"text": "258"}], FREE)
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidValueError, match="1 sampling_params were given for 2 prompts"):
        llm.generate(["25", "25"], [FREE])
    assert not fake.executor.plans


def test_a_request_that_cannot_be_taken_in_raises_and_the_next_call_works(
    llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fake.core, "add_request", lambda request: 1 // 0)
        with pytest.raises(EngineError, match="could not be taken in: integer division"):
            llm.generate(["25"] * 3, FREE)
    assert token_ids(llm.generate("25", FREE)) == [continuation([2, 5], FREE, 30)]


def test_a_failing_step_raises_and_the_next_call_works(llm: LLM, fake: FakeEngine) -> None:
    fake.executor.failures = [RuntimeError("cosmic ray")]
    with pytest.raises(StepError, match="cosmic ray"):
        llm.generate(["25"] * 40, FREE)
    assert token_ids(llm.generate("25", FREE)) == [continuation([2, 5], FREE, 30)]


@pytest.mark.parametrize("to_main", [True, False])
def test_an_interrupt_aborts_the_call_and_leaves_the_engine_usable(llm: LLM, fake: FakeEngine, to_main: bool) -> None:
    """Also one that does not end the wait of the main thread: taken by another thread, or just before the wait."""
    execute = fake.executor.execute
    abort = llm._thread.abort
    interrupted = threading.Event()

    def abort_and_tell(request_ids: Sequence[str]) -> None:
        abort(request_ids)
        interrupted.set()

    def interrupt_third_step(plan: StepPlan) -> StepOutput:
        if len(fake.executor.plans) == 2:
            thread = threading.main_thread() if to_main else threading.current_thread()
            signal.pthread_kill(thread.ident or 0, signal.SIGINT)
            interrupted.wait(20)
        return execute(plan)

    fake.executor.execute = interrupt_third_step  # type: ignore[method-assign]
    llm._thread.abort = abort_and_tell  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["25"] * 5, replace(FREE, max_tokens=900))
    assert token_ids(llm.generate("258", FREE)) == [continuation([2, 5, 8], FREE, 30)]
    assert [stats.finish_reason for stats in fake.stats.requests] == ["abort"] * 5 + ["length"]


def test_threads_share_one_llm(llm: LLM) -> None:
    barrier = threading.Barrier(4)

    def call(index: int) -> list[list[int]]:
        barrier.wait(10)
        return token_ids(llm.generate([[2 + index, 3 + i] for i in range(20)], FREE))

    with ThreadPoolExecutor(4) as threads:
        for index, outputs in enumerate(threads.map(call, range(4))):
            assert outputs == [continuation([2 + index, 3 + i], FREE, 30) for i in range(20)]


def test_a_closed_llm_says_so(llm: LLM) -> None:
    llm.close()
    llm.close()
    with pytest.raises(ShuttingDownError):
        llm.generate("25", FREE)


def test_a_progress_bar_when_asked_for(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["25"] * 7, FREE, use_tqdm=True)
    captured = capsys.readouterr()
    assert "7/7" in captured.err and not captured.out
    llm.generate(["25"] * 7, FREE)
    assert not capsys.readouterr().err


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no argument 'max_modellen'.*max_model_len"):
        LLM("smollm2", max_modellen=5)
