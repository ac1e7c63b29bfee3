"""Kind 2: sampling parameters. The reports are listed in docs/cases.md."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo import LLM
from octavo.errors import ConfigError
from tests.cases.models import BEGINNING, ask, said, serve_model
from tests.server.live import Server, eventually

ENDPOINTS = pytest.mark.parametrize("endpoint", ["chat", "completion"])


def text_at_one(server: Server, **fields: Any) -> str:
    """A short text drawn at temperature 1."""
    answer = ask(server, "completion", **{"temperature": 1, "max_tokens": 8, **fields})
    text: str = answer.json["choices"][0]["text"]
    return text


def refused(server: Server, field: str, value: object, *, names: str | None = None, **fields: object) -> None:
    """Both endpoints refuse the value of the field by its name, and go on."""
    for answer in (server.chat(**{field: value}, **fields), server.complete(**{field: value}, **fields)):
        assert (answer.status, answer.error["param"]) == (400, names or field), (field, value, answer.body)
    assert server.complete(max_tokens=1).status == 200


@pytest.mark.case("SMP-02")
def test_the_smallest_top_p_keeps_the_best_token(smollm2: Server) -> None:
    greedy = said(smollm2, "completion", max_tokens=8).text
    for filters in ({"top_p": 1e-4}, {"top_p": 1e-300}, {"min_p": 1.0}, {"top_p": 1e-4, "min_p": 1.0}):
        assert text_at_one(smollm2, **filters) == greedy, filters
    for top_p in (0, -0.1, 1.1):
        refused(smollm2, "top_p", top_p)


@pytest.mark.case("SMP-04")
def test_without_a_seed_each_answer_is_another(smollm2: Server) -> None:
    alone = {text_at_one(smollm2) for _ in range(6)}
    with ThreadPoolExecutor(6) as clients:
        together = set(clients.map(lambda _: text_at_one(smollm2), range(6)))
    choices = ask(smollm2, "completion", n=4, temperature=1, max_tokens=8).json["choices"]
    assert min(len(alone), len(together), len({choice["text"] for choice in choices})) > 2


@pytest.mark.case("SMP-05")
def test_top_k_of_any_size(smollm2: Server) -> None:
    vocab_size = smollm2.engine.config.vocab_size
    free = text_at_one(smollm2, seed=3)
    assert {text_at_one(smollm2, seed=3, top_k=k) for k in (vocab_size + 1, 9999999, 0, -1)} == {free}
    for top_k in (-5, 2.5, "10"):
        refused(smollm2, "top_k", top_k)


@pytest.mark.case("SMP-07")
def test_the_end_of_a_turn_can_be_forbidden(smollm2: Server) -> None:
    assert said(smollm2, "chat", content="Say hello.", max_tokens=60).finish_reason == "stop"
    forbidden = {str(token_id): -100 for token_id in smollm2.engine.tokenizer.eos_token_ids}
    answer = said(smollm2, "chat", content="Say hello.", max_tokens=60, logit_bias=forbidden)
    assert (answer.finish_reason, answer.num_tokens) == ("length", 60)
    last = smollm2.engine.config.vocab_size - 1
    assert said(smollm2, "chat", max_tokens=2, logit_bias={str(last): -100}).num_tokens == 2
    refused(smollm2, "logit_bias", {str(last + 1): 1})


@pytest.mark.case("SMP-09")
def test_millions_of_answers_are_refused_at_once(smollm2: Server) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    for field in ("n", "best_of"):
        refused(smollm2, field, 5_000_000)
    assert smollm2.request("GET", "/health").status == 200
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 50_000, "kilobytes"


@pytest.mark.case("SMP-10")
@pytest.mark.parametrize("drawn", [{"temperature": 0}, {"temperature": 1, "top_k": 3}])
def test_so_many_alternatives_as_were_asked_for(smollm2: Server, drawn: dict[str, Any]) -> None:
    for count in (0, 1, 5, 20):
        answer = ask(smollm2, "chat", logprobs=True, top_logprobs=count, max_tokens=6, **drawn).json
        entries = answer["choices"][0]["logprobs"]["content"]
        assert len(entries) == answer["usage"]["completion_tokens"]
        for entry in entries:
            values = [other["logprob"] for other in entry["top_logprobs"]]
            assert len(values) == count and values == sorted(values, reverse=True)
    for count in (0, 1, 5):
        answer = ask(smollm2, "completion", logprobs=count, max_tokens=6, **drawn).json
        logprobs = answer["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == answer["usage"]["completion_tokens"] == 6
        for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
            assert token in top and len(top) in (count, count + 1)


@pytest.mark.case("SMP-13")
def test_what_each_penalty_counts(smollm2: Server) -> None:
    """The arithmetic itself is held to that of torch in tests/native/test_sample.py."""
    prompt = "yes, yes, yes, yes, yes, yes, yes,"
    token_ids = set(smollm2.engine.tokenizer.encode(prompt))

    def first(**fields: Any) -> int:
        answer = ask(
            smollm2, "completion", prompt=prompt, temperature=0, max_tokens=1, return_token_ids=True, **fields
        ).json
        token_id: int = answer["choices"][0]["token_ids"][0]
        return token_id

    assert first() in token_ids, "the model goes on with the word"
    assert first(presence_penalty=2) == first(frequency_penalty=2) == first()
    assert first(repetition_penalty=3) not in token_ids
    later = said(smollm2, "completion", prompt=prompt, max_tokens=6, frequency_penalty=2).text
    assert later != said(smollm2, "completion", prompt=prompt, max_tokens=6).text


@pytest.mark.case("SMP-14")
def test_penalties_join_and_leave_a_running_batch(smollm2: Server) -> None:
    plain = {"temperature": 0, "max_tokens": 16}
    prompts = [f"Item {number} of the list is" for number in range(4)]
    alone = [ask(smollm2, "completion", prompt=prompt, **plain).json["choices"][0]["text"] for prompt in prompts]

    def abort() -> None:
        with openai.OpenAI(base_url=smollm2.url, api_key="none", max_retries=0, timeout=60) as client:
            next(iter(client.completions.create(
                model="model", prompt=BEGINNING, stream=True, extra_body={"repetition_penalty": 1.3, "ignore_eos": True}
            )))  # fmt: skip

    with ThreadPoolExecutor(16) as clients:
        running = [clients.submit(ask, smollm2, "completion", prompt=prompt, **plain) for prompt in prompts]
        joining = [
            clients.submit(ask, smollm2, "completion", repetition_penalty=penalty, max_tokens=8)
            for penalty in (1.3, 0.5, 1.3, 0.5)
        ]
        leaving = [clients.submit(abort) for _ in range(2)]
        assert [future.result().json["choices"][0]["text"] for future in running] == alone
        assert all(future.result().json["choices"][0]["finish_reason"] for future in joining)
        assert [future.result() for future in leaving] == [None, None]
    for penalty in (0, -1, 1001):
        refused(smollm2, "repetition_penalty", penalty)
    eventually(lambda: smollm2.engine.num_unfinished == 0)


@pytest.fixture(scope="module")
def narrow(smollm2_path: Path) -> Iterator[Server]:
    """Four answers at a time, 64 tokens each."""
    with serve_model(smollm2_path, max_num_seqs=4, max_model_len=64) as server:
        yield server


@pytest.mark.case("SMP-16")
def test_more_answers_than_rows_come_in_waves(narrow: Server) -> None:
    answer = ask(narrow, "completion", n=64, max_tokens=4, ignore_eos=True).json
    assert [choice["index"] for choice in answer["choices"]] == list(range(64))
    assert answer["usage"]["completion_tokens"] == 64 * 4
    refused(narrow, "n", 512)


@pytest.mark.case("SMP-17")
def test_best_of(smollm2: Server) -> None:
    streamed = ask(smollm2, "completion", n=2, best_of=2, stream=True, max_tokens=4).events
    assert {event["choices"][0]["index"] for event in streamed} == {0, 1}
    fields: dict[str, Any] = {"max_tokens": 6, "seed": 4, "ignore_eos": True, "logprobs": 0}
    all_three = ask(smollm2, "completion", n=3, **fields).json["choices"]
    best = ask(smollm2, "completion", n=2, best_of=3, **fields).json["choices"]
    ranking = sorted(all_three, key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
    assert [choice["text"] for choice in best] == [choice["text"] for choice in ranking[:2]]
    refused(smollm2, "best_of", 2, n=3)


@pytest.mark.case("SMP-18")
@ENDPOINTS
def test_every_value_of_max_tokens(narrow: Server, endpoint: str) -> None:
    fields: dict[str, Any] = {"ignore_eos": True, "temperature": 0}
    for absent in ({}, {"max_tokens": None}):
        usage = ask(narrow, endpoint, **fields, **absent).json["usage"]
        assert usage["completion_tokens"] == 16 if endpoint == "completion" else usage["total_tokens"] == 64
    assert ask(narrow, endpoint, **fields, max_tokens=10**9).json["usage"]["total_tokens"] == 64, "cut to the context"
    for max_tokens in (0, -1, "5", 2.7, True):
        refused(narrow, "max_tokens", max_tokens)


@pytest.mark.case("SMP-18")
def test_max_completion_tokens_comes_first(narrow: Server) -> None:
    for fields in ({"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 9}):
        assert ask(narrow, "chat", ignore_eos=True, **fields).json["usage"]["completion_tokens"] == 3
    for value in (0, -1, "5", 2.7):
        answer = narrow.chat(max_completion_tokens=value)
        assert (answer.status, answer.error["param"]) == (400, "max_completion_tokens")


@pytest.mark.case("SMP-19")
def test_the_end_of_the_context_is_exact(narrow: Server) -> None:
    fields: dict[str, Any] = {"ignore_eos": True}
    for num_prompt, max_tokens, num_output in ((10, 54, 54), (10, 55, 54), (63, 1, 1)):
        answer = ask(narrow, "completion", prompt=[5] * num_prompt, max_tokens=max_tokens, **fields).json
        assert answer["usage"]["completion_tokens"] == num_output
        assert answer["choices"][0]["finish_reason"] == "length"
    for num_prompt in (64, 65):
        answer = narrow.complete([5] * num_prompt, max_tokens=1)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert str(num_prompt) in answer.error["message"] and "64 allows at most 63" in answer.error["message"]


@pytest.fixture(scope="module")
def comma_ends(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose generation config names two end tokens: the end of a turn, and the comma."""
    config = tmp_path_factory.mktemp("config") / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": [2, COMMA]}))
    with serve_model(smollm2_path, generation_config=str(config), max_model_len=256) as server:
        assert server.engine.tokenizer.encode(",") == [COMMA]
        yield server


COMMA = 28


@pytest.mark.case("SMP-21")
def test_end_tokens_of_the_generation_config_end_and_can_be_ignored(comma_ends: Server) -> None:
    prompt = "One, two, three"
    ended = said(comma_ends, "completion", prompt=prompt, max_tokens=40)
    assert (ended.text, ended.finish_reason, ended.stop_reason) == ("", "stop", None)
    ignored = said(comma_ends, "completion", prompt=prompt, max_tokens=40, ignore_eos=True)
    assert (ignored.num_tokens, ignored.finish_reason) == (40, "length") and "," in ignored.text


@pytest.mark.case("SMP-23")
def test_min_tokens_holds_back_every_end_token(comma_ends: Server) -> None:
    fields: dict[str, Any] = {"prompt": "One, two, three", "temperature": 0, "return_token_ids": True}
    choice = ask(comma_ends, "completion", min_tokens=15, max_tokens=40, **fields).json["choices"][0]
    assert not {COMMA, *comma_ends.engine.tokenizer.eos_token_ids} & set(choice["token_ids"][:15])


@pytest.mark.case("SMP-21")
def test_an_end_token_outside_the_vocabulary_is_refused_at_the_start(smollm2_path: Path) -> None:
    with pytest.raises(ConfigError, match="eos_token_id: token id 1000000 is not in the vocabulary"):
        LLM(smollm2_path, override_generation_config='{"eos_token_id": 1000000}')


@pytest.mark.case("SMP-22")
def test_min_tokens_comes_before_stop_strings(smollm2: Server) -> None:
    full = said(smollm2, "completion", max_tokens=40).text
    stop = full.split()[0]
    assert said(smollm2, "completion", max_tokens=40, stop=stop).num_tokens < 20
    assert 20 <= said(smollm2, "completion", max_tokens=40, min_tokens=20, stop=stop).num_tokens <= 40
    refused(smollm2, "min_tokens", 41, max_tokens=40)
    refused(smollm2, "min_tokens", -1)


@pytest.mark.case("SMP-24")
def test_no_field_of_a_completion_is_dropped(smollm2: Server) -> None:
    for field, value in (("logprobs", True), ("logprobs", "5"), ("suffix", "x")):
        answer = smollm2.complete(**{field: value})
        assert (answer.status, answer.error["param"]) == (400, field)
    assert len(ask(smollm2, "completion", n=2, max_tokens=2).json["choices"]) == 2
    assert ask(smollm2, "completion", echo=True, max_tokens=2).json["choices"][0]["text"].startswith(BEGINNING)
    assert ask(smollm2, "completion", best_of=2, max_tokens=2, ignore_eos=True).json["usage"]["completion_tokens"] == 4
