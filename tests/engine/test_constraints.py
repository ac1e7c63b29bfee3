"""Answers under a constraint, in the loop: masks, tokens that are not sampled, ends, and what one of them may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest

from octavo.engine.choices import fan_out
from octavo.errors import InvalidValueError
from octavo.grammar.masks import MaskComputer
from octavo.request import OutputDelta, Request
from octavo.sampling_params import SamplingParams
from tests.engine.fake_engine import FakeEngine, run
from tests.engine.fakes import EOS, VOCAB_SIZE, continuation

FREE = SamplingParams(temperature=0, max_tokens=60)


@dataclass(frozen=True)
class Script:
    """An answer of exactly these tokens, of which `num_forced` follow every sampled one without a choice.

    `lies`: the mask allows everything, so that the model says what may not be.
    """

    tokens: tuple[int, ...]
    num_forced: int = 0
    forces_first: int = 0
    lies: bool = False

    def start(self) -> ScriptedAnswer:
        return ScriptedAnswer(self)


class ScriptedAnswer:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._position = 0
        self.matcher = self

    def accept(self, token_id: int) -> None:
        if self.ended or token_id != self._script.tokens[self._position]:
            raise InvalidValueError(f"{token_id} may not come here", param="structured_outputs")
        self._position += 1

    def take_forced(self, limit: int) -> tuple[int, ...]:
        count = self._script.num_forced if self._position else self._script.forces_first
        forced = self._script.tokens[self._position : self._position + min(count, limit)]
        self._position += len(forced)
        return forced

    @property
    def ended(self) -> bool:
        return self._position == len(self._script.tokens)

    def mask(self) -> memoryview:
        allowed = range(VOCAB_SIZE) if self._script.lies else [self._script.tokens[self._position]]
        return memoryview(sum(1 << token_id for token_id in allowed).to_bytes(16, "little"))


class ScriptedMasks:
    """Instead of the grammar library."""

    def __init__(self) -> None:
        self.num_computed = 0

    def compute(self, answers: Sequence[ScriptedAnswer]) -> list[memoryview]:
        self.num_computed += len(answers)
        return [answer.mask() for answer in answers]


def make(prompt: str, sampling: SamplingParams, script: Script | None, **limits: int) -> tuple[FakeEngine, Request]:
    fake = FakeEngine(masks=cast(MaskComputer, ScriptedMasks()), **limits)
    return fake, replace(fake.input.from_prompt(prompt, sampling), constraint=script)


def tokens_of(deltas: list[OutputDelta]) -> tuple[int, ...]:
    return tuple(token_id for delta in deltas for token_id in delta.token_ids)


TOKENS = tuple(range(20, 60))


@pytest.mark.parametrize("forces_first", [0, 1, 7, 39, 40, 50])
@pytest.mark.parametrize("num_forced", [0, 1, 3, 39, 50])
def test_an_answer_keeps_to_its_constraint_and_ends_with_it(num_forced: int, forces_first: int) -> None:
    """The least steps: one for each token that leaves a choice."""
    fake, request = make("258", FREE, Script(TOKENS, num_forced, forces_first))
    deltas = run(fake, request)[request.request_id]
    assert tokens_of(deltas) == TOKENS
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason, deltas[-1].num_output_tokens) == ("stop", None, 40)
    given_first = forces_first if forces_first < len(TOKENS) else 0
    assert len(fake.executor.plans) == -(-(len(TOKENS) - given_first) // (1 + num_forced))


def test_neither_ignored_eos_nor_min_tokens_make_a_complete_answer_longer() -> None:
    sampling = replace(FREE, ignore_eos=True, min_tokens=50)
    fake, request = make("258", sampling, Script(TOKENS, 3))
    assert tokens_of(run(fake, request)[request.request_id]) == TOKENS


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 39])
@pytest.mark.parametrize("forces_first", [0, 10])
def test_max_tokens_cut_an_answer_also_where_tokens_are_forced(max_tokens: int, forces_first: int) -> None:
    sampling = replace(FREE, max_tokens=max_tokens)
    fake, request = make("258", sampling, Script(TOKENS, 6, forces_first), max_model_len=3 + max_tokens)
    deltas = run(fake, request)[request.request_id]
    assert tokens_of(deltas) == TOKENS[:max_tokens] and deltas[-1].finish_reason == "length"


def test_a_stop_string_among_forced_tokens_ends_the_answer() -> None:
    fake, request = make("258", replace(FREE, stop=("IJ",)), Script(TOKENS, 30))
    deltas = run(fake, request)[request.request_id]
    assert "".join(delta.text for delta in deltas) == "DEFGH" and deltas[-1].stop_reason == "IJ"


def test_others_in_the_batch_do_not_notice() -> None:
    """With preemptions too: the cache is too small for all of them."""
    fake, request = make("258", FREE, Script(TOKENS, 2), num_blocks=9)
    others = [replace(fake.input.from_prompt(prompt, FREE)) for prompt in ("3", "444", "89:")]
    scripted = [replace(request, request_id=str(index)) for index in range(3)]
    mixed = [request for pair in zip(scripted, others, strict=True) for request in pair]
    deltas = run(fake, *mixed)
    assert any(stats.num_preempted for stats in fake.stats.steps)
    assert all(tokens_of(deltas[request.request_id]) == TOKENS for request in scripted)
    for other in others:
        output = tokens_of(deltas[other.request_id])
        assert list(output) == continuation(other.prompt_token_ids, FREE, len(output), [EOS])


def test_each_of_several_answers_has_its_own_state() -> None:
    fake, request = make("258", replace(FREE, n=3), Script(TOKENS, 2))
    assert {tokens_of(deltas) for deltas in run(fake, *fan_out(request)).values()} == {TOKENS}


def test_a_mask_is_computed_once_for_each_sampled_token() -> None:
    fake, request = make("2" * 300, FREE, Script(TOKENS, 1))
    masks = cast(ScriptedMasks, fake.core._constraints._computer)
    run(fake, request)
    assert len(fake.executor.plans) > 20 and masks.num_computed == 20


def test_a_token_that_may_not_come_fails_its_request_alone() -> None:
    fake, request = make("258", FREE, Script(TOKENS, 2, lies=True))
    other = fake.input.from_prompt("3", FREE)
    deltas = run(fake, request, other)
    last = deltas[request.request_id][-1]
    assert last.finish_reason == "error" and isinstance(last.error, InvalidValueError)
    assert deltas[other.request_id][-1].finish_reason in ("stop", "length") and fake.core.healthy


def test_an_id_that_is_used_again_starts_afresh() -> None:
    fake, request = make("258", FREE, Script(TOKENS))
    fake.core.add_request(request)
    fake.core.step()
    assert fake.core.abort(request.request_id) is not None
    again = replace(request, constraint=Script(TOKENS[::-1]))
    assert tokens_of(run(fake, again)[request.request_id]) == TOKENS[::-1]
