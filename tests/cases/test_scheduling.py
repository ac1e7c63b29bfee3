"""Kind 6: scheduling and the KV cache. The reports are listed in docs/cases.md."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ContextLengthError
from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.cases.models import ask, serve_model
from tests.server.fakes import FakeEngine
from tests.server.live import Server, eventually, serving
from tests.server.test_disconnects import ENDLESS, is_idle, post

KV_BYTES_A_TOKEN = 2 * 30 * 3 * 64 * 2
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.mark.case("SCH-02")
@pytest.mark.parametrize("order", [1, -1])
def test_what_can_never_run_holds_up_nobody(order: int) -> None:
    """Four blocks of 16 tokens; requests of one to five blocks, and one with three answers."""
    totals = EngineTotals()
    fake = FakeEngine(totals, num_blocks=4)
    with serving(fake.async_engine(), ServerSettings(("alphabet",)), totals) as server:
        prompts = ["w" * (16 * blocks - 6) for blocks in (1, 2, 3, 4, 5)][::order]
        with ThreadPoolExecutor(6) as clients:
            answers = list(clients.map(lambda prompt: server.complete(prompt, max_tokens=4), prompts))
            several = clients.submit(server.complete, "w" * 20, n=3, max_tokens=4).result()
        assert [answer.status for answer in answers] == [200, 200, 200, 200, 400][::order]
        assert answers[::order][4].error["code"] == "context_length_exceeded"
        assert len(several.json["choices"]) == 3
        eventually(lambda: is_idle(server, fake))


@pytest.mark.case("SCH-04", "SCH-13")
def test_little_memory_changes_no_text(smollm2_path: Path) -> None:
    """Memory for six of 24 answers: they queue and are preempted, and that is all."""
    prompts = [f"Item {number} of the list is" for number in range(8)]
    sampling = [
        SamplingParams(n=3, temperature=0.8, seed=number, max_tokens=40, ignore_eos=True) for number in range(8)
    ]
    texts = []
    for num_tokens in (4096, 256):
        llm = LLM(smollm2_path, max_model_len=256, kv_cache_memory_bytes=num_tokens * KV_BYTES_A_TOKEN, max_num_seqs=32)
        texts.append([[choice.text for choice in out.outputs] for out in llm.generate(prompts, sampling)])
    assert texts[0] == texts[1]
    assert all(len(choices) == 3 for choices in texts[1])


@pytest.mark.case("SCH-06")
def test_a_client_that_leaves_stops_costing(smollm2: Server) -> None:
    """Streaming, whole, while it waits, and while its long prompt is computed."""
    long_prompt = [5 + n % 1000 for n in range(900)]
    bodies: list[dict[str, Any]] = [
        {"model": "model", "prompt": prompt, "stream": stream, **ENDLESS}
        for prompt in ("a", long_prompt)
        for stream in (True, False)
    ]
    connections = [post(smollm2, "/v1/completions", body) for body in bodies * 6]
    eventually(lambda: smollm2.totals.num_running == 16 and smollm2.totals.num_waiting > 0)
    for connection in connections:
        connection.close()
    eventually(lambda: smollm2.engine.num_unfinished == 0)
    eventually(lambda: smollm2.totals.num_running == smollm2.totals.num_waiting == 0)


@pytest.mark.case("SCH-07")
def test_leaving_while_the_end_is_on_its_way(caplog: pytest.LogCaptureFixture) -> None:
    totals = EngineTotals()
    fake = FakeEngine(totals)
    draw = random.Random(7)
    with (
        caplog.at_level(logging.WARNING),
        serving(fake.async_engine(), ServerSettings(("alphabet",)), totals) as server,
    ):
        for _ in range(300):
            connection = post(
                server, "/v1/completions", {"prompt": "a", "max_tokens": draw.randint(1, 3), "stream": True}
            )
            connection.settimeout(draw.choice([0.0001, 0.001, 0.003]))
            with suppress(TimeoutError):
                connection.recv(1)
            connection.close()
        eventually(lambda: is_idle(server, fake))
        assert {server.complete("w").json["choices"][0]["text"] for _ in range(20)} == {"xyz"}
    assert not caplog.records


@pytest.mark.case("SCH-12")
def test_ids_outside_the_vocabulary(smollm2: Server) -> None:
    vocab_size = smollm2.engine.config.vocab_size
    for prompt in ([-1], [vocab_size], [1, 2, 10**12], [1.5], ["a", 1], [[1], "text"], [1, 10**30], ["a"] * 5000):
        answer = smollm2.complete(prompt, max_tokens=1)
        assert answer.status == 400 and answer.error["param"].startswith("prompt"), prompt[:3]
    assert len(ask(smollm2, "completion", prompt=["a"] * 100, max_tokens=1).json["choices"]) == 100


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    yield LLM(smollm2_path, max_model_len=256, kv_cache_memory_bytes=64 * 2**20, max_num_seqs=32)


@pytest.mark.case("SCH-14")
def test_every_call_has_its_own_results(llm: LLM) -> None:
    for prompts in (["One", "Two", "Three"], ["Four", "Five"], [], [[5 + n] for n in range(300)]):
        outputs = llm.generate(prompts, replace(GREEDY, max_tokens=1))
        assert [output.prompt_token_ids for output in outputs] == [
            tuple(llm._engine.tokenizer.encode(prompt)) if isinstance(prompt, str) else tuple(prompt)
            for prompt in prompts
        ]
        assert all(len(output.outputs[0].token_ids) == 1 for output in outputs)


@pytest.mark.case("SCH-15", "SCH-17")
def test_together_each_says_what_it_says_alone(smollm2: Server) -> None:
    fields: dict[str, Any] = {"temperature": 0, "return_token_ids": True, "ignore_eos": True}

    def tokens(number: int) -> list[int]:
        prompt = f"Item {number} of the list is " + "and so on " * (number % 7)
        choice = ask(smollm2, "completion", prompt=prompt, max_tokens=4 + number % 9, **fields).json["choices"][0]
        assert choice["finish_reason"] == "length" and len(choice["token_ids"]) == 4 + number % 9
        token_ids: list[int] = choice["token_ids"]
        return token_ids

    alone = [tokens(number) for number in range(32)]
    with ThreadPoolExecutor(32) as clients:
        assert list(clients.map(tokens, range(32))) == alone


@pytest.mark.case("SCH-17")
def test_chunks_of_prompts_change_no_token(smollm2_path: Path, llm: LLM) -> None:
    prompts = [f"Item {number} of the list is " + "and so on " * number for number in range(8)]
    chunked = LLM(
        smollm2_path, max_model_len=256, kv_cache_memory_bytes=2**24, max_num_batched_tokens=16, max_num_seqs=8
    )
    whole, parts = ([out.outputs[0].token_ids for out in each.generate(prompts, GREEDY)] for each in (llm, chunked))
    assert whole == parts


@pytest.mark.case("SCH-16")
def test_answers_end_where_the_context_ends(llm: LLM) -> None:
    for num_prompt in (240, 255):
        (output,) = llm.generate([[5] * num_prompt], SamplingParams(max_tokens=None, ignore_eos=True))
        assert num_prompt + len(output.outputs[0].token_ids) == 256 and output.outputs[0].finish_reason == "length"
    with pytest.raises(ContextLengthError, match="256"):
        llm.generate([[5] * 256], GREEDY)


@pytest.mark.case("SCH-15")
def test_a_stopping_server_waits_for_no_stream(smollm2_path: Path) -> None:
    """Leaving the server within its streams; that it has stopped is checked by `serving`."""
    with serve_model(smollm2_path) as server:
        connections = [post(server, "/v1/completions", {"model": "model", "prompt": "a", **ENDLESS}) for _ in range(4)]
        eventually(lambda: server.totals.num_running == 4)
    for connection in connections:
        connection.close()
