"""The routes beside completions, and what every answer has in common."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from octavo.metrics.histogram import Histogram
from octavo.metrics.totals import EngineTotals
from octavo.server.loop_lag import measure_loop_lag
from octavo.server.service import fingerprint_of
from octavo.server.settings import CrossOrigin, ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, eventually, serving

MESSAGES = [{"role": "user", "content": "hi"}]


def post(server: Server, path: str, **body: object) -> dict:
    answer = server.request("POST", path, body)
    assert answer.status == 200, answer.body
    found: dict = answer.json
    return found


def test_texts_and_conversations_are_tokenised_as_when_they_are_answered(shared: Server) -> None:
    assert post(shared, "/tokenize", prompt="hé", return_token_strs=True) == {
        "count": 3, "max_model_len": 256, "tokens": [104, 0xC3, 0xA9], "token_strs": ["h", "\ufffd", "\ufffd"],
    }  # fmt: skip
    assert post(shared, "/tokenize", model="alphabet", messages=MESSAGES)["tokens"] == [*b">>hi"]
    assert post(shared, "/tokenize", messages=MESSAGES, add_generation_prompt=False)["tokens"] == [*b"hi"]
    assert post(shared, "/detokenize", tokens=[*"hé".encode()]) == {"prompt": "hé"}
    assert post(shared, "/tokenize", prompt="")["tokens"] == []


def test_a_conversation_is_rendered_as_it_is_answered(shared: Server) -> None:
    body = {"model": "alphabet", "messages": MESSAGES, "temperature": 0.5}
    rendered = post(shared, "/v1/chat/completions/render", **body)
    assert rendered == {"prompt": ">>hi", "prompt_token_ids": [*b">>hi"], "count": 4}
    answered = post(shared, "/v1/chat/completions", **body, return_token_ids=True)
    assert answered["prompt_token_ids"] == rendered["prompt_token_ids"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "colour": 1}, "colour"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a", "colour": 1}]}, "messages[0].colour"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/v1/chat/completions/render", {"model": "alphabet", "messages": MESSAGES, "top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_wrong_bodies_are_refused_by_name(shared: Server, path: str, body: dict, param: str) -> None:
    answer = shared.request("POST", path, body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


def test_what_the_server_says_of_itself(server: Server, fake: FakeEngine) -> None:
    for path in ("/live", "/ready", "/health"):
        assert server.request("GET", path).status == 200
    info = server.request("GET", "/server_info").json
    assert info["max_model_len"] == 256 and info["served_model_names"] == ["alphabet"] and info["version"]
    fake.executor.gate.clear()
    client = threading.Thread(target=server.complete)
    client.start()
    eventually(lambda: server.request("GET", "/load").json["server_load"] == 1)
    fake.executor.gate.set()
    client.join()
    eventually(lambda: server.request("GET", "/load").json["server_load"] == 0)
    server.service.draining = True
    assert server.request("GET", "/ready").status == 503
    assert server.request("GET", "/live").status == 200


def test_answers_carry_the_same_fingerprint(shared: Server) -> None:
    found = {shared.chat().json["system_fingerprint"], shared.complete().json["system_fingerprint"]}
    found |= {event["system_fingerprint"] for event in shared.chat(stream=True).events}
    assert len(found) == 1 and found.pop().startswith("fp_")


def test_the_fingerprint_changes_with_what_changes_answers() -> None:
    config = FakeEngine().engine.config
    others = [
        replace(config, model_path="/models/other.gguf"),
        replace(config, isa="avx2"),
        replace(config, activation_dtype="bf16"),
        replace(config, quantization="int8"),
        replace(config, kv_cache_dtype="int8"),
    ]
    assert len({fingerprint_of(each) for each in (config, *others)}) == 6
    assert fingerprint_of(replace(config, threads=8, max_num_seqs=2)) == fingerprint_of(config)


def test_a_silent_stream_pings(fake: FakeEngine, totals: EngineTotals) -> None:
    """A long prefill must not look like a dead connection to what stands between."""
    settings = ServerSettings(("alphabet",), ping_interval_s=0.02)
    with serving(fake.async_engine(), settings, totals) as server:
        fake.executor.step_s = 0.2
        lines = server.chat("y", stream=True).body.decode().split("\n\n")
    pings = [position for position, line in enumerate(lines) if line == ": ping"]
    assert pings and pings[0] < next(i for i, line in enumerate(lines) if '"content":"z"' in line)
    assert [line for line in lines if line != ": ping"][-2:] == ["data: [DONE]", ""]


def test_pages_of_named_origins_may_call(fake: FakeEngine, totals: EngineTotals) -> None:
    settings = ServerSettings(("alphabet",), api_keys=("k",), cors=CrossOrigin(("https://a.example",)))
    with serving(fake.async_engine(), settings, totals) as server:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        allowed = server.request("OPTIONS", "/v1/models", headers={"Origin": "https://a.example", **asked})
        assert allowed.status == 200 and allowed.headers["access-control-allow-origin"] == "https://a.example"
        refused = server.request("OPTIONS", "/v1/models", headers={"Origin": "https://b.example", **asked})
        assert "access-control-allow-origin" not in refused.headers


def test_without_origins_nothing_is_said_to_browsers(shared: Server) -> None:
    answer = shared.request("GET", "/v1/models", headers={"Origin": "https://a.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_the_lag_of_the_loop_is_measured() -> None:
    lag = Histogram((0.001, 0.05, 10.0))

    async def block_the_loop() -> None:
        probing = asyncio.create_task(measure_loop_lag(lag))
        await asyncio.sleep(0)
        time.sleep(0.15)
        await asyncio.sleep(0.01)
        probing.cancel()

    asyncio.run(block_the_loop())
    assert lag.cumulative() == [0, 0, 1, 1]


def test_the_lag_is_on_the_metrics_page(shared: Server) -> None:
    assert shared.metric("octavo:event_loop_lag_seconds_count") >= 0
