"""Answers of a real model that must have a form."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.errors import InvalidValueError
from tests.real_models import fetch
from tests.schema_generator import realistic_schemas, validator_of

SCHEMAS = realistic_schemas(12, seed=1)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(fetch("smollm2"), max_model_len=1024, kv_cache_memory_bytes=64 * 2**20, max_num_seqs=16)


def ask(llm: LLM, schemas: list, temperature: float) -> list[str | None]:
    """An answer for each schema; None where it was cut."""
    questions = [[{"role": "user", "content": "Make up an example, as JSON."}] for _ in schemas]
    sampling = [
        SamplingParams(
            temperature=temperature, seed=7, max_tokens=250, structured_outputs=StructuredOutputsParams(json=schema)
        )
        for schema in schemas
    ]
    outputs = [output.outputs[0] for output in llm.chat(questions, sampling)]
    assert {output.finish_reason for output in outputs} <= {"stop", "length"}
    return [output.text if output.finish_reason == "stop" else None for output in outputs]


@pytest.mark.parametrize(("temperature", "num_finished"), [(0.0, 2), (1.0, 4)])
def test_finished_answers_have_the_form(llm: LLM, temperature: float, num_finished: int) -> None:
    """And each is the same whatever else is in the batch.

    How many finish within the limit changes with every kernel: usually twice what is asked for here.
    """
    answers = ask(llm, SCHEMAS, temperature)
    assert sum(answer is not None for answer in answers) >= num_finished
    for schema, answer in zip(SCHEMAS, answers, strict=True):
        if answer is not None:
            validator_of(schema).validate(json.loads(answer))
    assert ask(llm, SCHEMAS[3:5], temperature) == answers[3:5]


def test_an_answer_that_is_cut_says_so(llm: LLM) -> None:
    form = StructuredOutputsParams(json={"type": "string", "minLength": 500})
    (output,) = llm.generate("A story:", SamplingParams(max_tokens=10, structured_outputs=form))
    assert output.outputs[0].finish_reason == "length" and len(output.outputs[0].token_ids) == 10


def test_choices_and_n(llm: LLM) -> None:
    form = StructuredOutputsParams(choice=["yes", "no", "perhaps not"])
    (output,) = llm.generate("Is it so?", SamplingParams(temperature=1, seed=1, n=8, structured_outputs=form))
    assert {answer.text for answer in output.outputs} <= {"yes", "no", "perhaps not"}
    assert len({answer.text for answer in output.outputs}) > 1
    assert {answer.finish_reason for answer in output.outputs} == {"stop"}


def test_log_probabilities_of_an_answer_with_a_form(llm: LLM) -> None:
    form = StructuredOutputsParams(json={"const": {"a": "forced text"}})
    (output,) = llm.generate("A:", SamplingParams(max_tokens=40, logprobs=1, structured_outputs=form))
    (answer,) = output.outputs
    assert json.loads(answer.text) == {"a": "forced text"}
    assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)


def test_a_form_that_cannot_be_enforced_is_refused_and_the_engine_goes_on(llm: LLM) -> None:
    form = StructuredOutputsParams(json={"type": "array", "uniqueItems": True})
    with pytest.raises(InvalidValueError, match="uniqueItems"):
        llm.generate("A:", SamplingParams(structured_outputs=form))
    assert llm.generate("A:", SamplingParams(max_tokens=1))


def test_a_form_that_shuts_out_every_allowed_token_fails_its_request_alone(llm: LLM) -> None:
    form = StructuredOutputsParams(choice=["yes"])
    for logprobs in (None, 0):
        sampling = SamplingParams(allowed_token_ids=[5], logprobs=logprobs, structured_outputs=form)
        with pytest.raises(InvalidValueError, match=r"allowed_token_ids and structured_outputs.choice") as refused:
            llm.generate("A:", sampling)
        assert refused.value.code == "no_token_left"
    assert llm.generate("A:", SamplingParams(max_tokens=1))


def ids_of(llm: LLM, text: str) -> tuple[int, ...]:
    return tuple(llm._engine.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("logprobs", [None, 0])
def test_words_that_are_forbidden_are_not_forced_either(llm: LLM, logprobs: int | None) -> None:
    """Nor is the choice that has them taken, where there is another."""
    plain = SamplingParams(temperature=0, max_tokens=50, logprobs=logprobs)
    choice = StructuredOutputsParams(choice=["Ann", "Bob"])
    likely = llm.generate("A:", replace(plain, structured_outputs=choice))[0].outputs[0]
    word = llm._engine.tokenizer.decode([likely.token_ids[0]])
    other = llm.generate("A:", replace(plain, structured_outputs=choice, bad_words=(word,)))[0].outputs[0]
    assert other.text in ("Ann", "Bob") and likely.token_ids[0] not in other.token_ids
    demanded = replace(plain, structured_outputs=StructuredOutputsParams(regex="Name of the river: (Ann|Bob)"))
    word = llm._engine.tokenizer.decode([llm.generate("A:", demanded)[0].outputs[0].token_ids[0]])
    with pytest.raises(InvalidValueError, match=r"bad_words and structured_outputs.regex") as refused:
        llm.generate("A:", replace(demanded, bad_words=(word,)))
    assert refused.value.code == "no_token_left"


def test_a_bias_leaves_what_a_form_demands(llm: LLM) -> None:
    form = StructuredOutputsParams(regex="Name")
    for logprobs in (None, 0):
        sampling = SamplingParams(
            logit_bias=dict.fromkeys(ids_of(llm, "Name"), -100), logprobs=logprobs, structured_outputs=form
        )
        assert llm.generate("A:", sampling)[0].outputs[0].text == "Name"


def test_an_answer_ends_with_an_error_where_no_token_is_left(llm: LLM) -> None:
    """Not with a token that is forbidden. The other request in the batch goes on."""
    (the,) = ids_of(llm, " the")
    narrow = SamplingParams(allowed_token_ids=[the], bad_words=["the the the"], max_tokens=5)
    assert llm.generate("A:", replace(narrow, max_tokens=2))[0].outputs[0].token_ids == (the, the)
    with pytest.raises(InvalidValueError, match=r"after 2 tokens .* bad_words and allowed_token_ids forbid") as refused:
        llm.generate(["A:", "B:"], [narrow, SamplingParams(max_tokens=5)])
    assert (refused.value.param, refused.value.code) == ("bad_words", "no_token_left")
    form = StructuredOutputsParams(regex="( the){3}")
    with pytest.raises(InvalidValueError, match=r"bad_words and structured_outputs.regex forbid"):
        every = [" the", "the", "t", " t", " ", "th", " th", "h", "he", "e"]
        llm.generate("A:", SamplingParams(bad_words=every, structured_outputs=form))
