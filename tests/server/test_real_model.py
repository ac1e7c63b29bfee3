"""The whole way down to a model and back."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from octavo.config import EngineArgs
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine
from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.live import Server, eventually, serving
from tests.server.process import server_process

QUESTION = [{"role": "user", "content": "Name three rivers in Europe."}]
ENGINE_ARGS = {"max_model_len": 1024, "kv_cache_memory_bytes": 64 * 2**20, "max_num_seqs": 16}


def serve_model(path: Path, stack: ExitStack) -> Server:
    totals = EngineTotals()
    engine = AsyncEngine(build_engine(EngineArgs(str(path), **ENGINE_ARGS), listeners=(totals,)))
    return stack.enter_context(serving(engine, ServerSettings(("model",)), totals))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Server]:
    with ExitStack() as stack:
        yield serve_model(smollm2_path, stack)
    gc.collect()


@pytest.fixture(scope="module")
def client(smollm2: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=smollm2.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def chat_text(client: openai.OpenAI, **fields: object) -> str:
    answer = client.chat.completions.create(model="model", messages=QUESTION, **fields)  # type: ignore[call-overload]
    return answer.choices[0].message.content


def test_chat_streamed_and_whole_are_the_same(client: openai.OpenAI, smollm2: Server) -> None:
    fields = {"model": "model", "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    whole = client.chat.completions.create(**fields)  # type: ignore[call-overload]
    chunks = list(
        client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert streamed == whole.choices[0].message.content and len(streamed) > 20
    again = chunks[-1].usage
    assert again is not None and again.total_tokens == whole.usage.total_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    prompt = smollm2.engine.tokenizer.encode_chat(QUESTION)
    assert whole.usage.prompt_tokens == len(prompt)
    assert whole.usage.completion_tokens <= 32
    assert again.prompt_tokens_details.cached_tokens == len(prompt) - 1, "the same prompt a second time"


def test_prefixes_can_be_kept_apart_and_forgotten(client: openai.OpenAI, smollm2: Server) -> None:
    def num_cached(salt: str | None) -> int:
        answer = client.completions.create(
            model="model", prompt=[700 + n for n in range(50)], max_tokens=1, extra_body={"cache_salt": salt}
        )
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert [num_cached(salt) for salt in ("a", "a", "b", None, None)] == [0, 49, 0, 0, 49]
    reset = smollm2.request("POST", "/reset_prefix_cache")
    assert reset.status == 200 and reset.json["num_blocks"] >= 9
    assert num_cached("a") == 0


def test_completion_knows_its_capitals(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="model", prompt="The capital of France is", temperature=0, max_tokens=8)
    assert "Paris" in answer.choices[0].text
    assert answer.usage is not None and answer.usage.completion_tokens == 8


def test_text_prompts_and_their_token_ids_are_the_same(client: openai.OpenAI, smollm2: Server) -> None:
    prompts = ["Once upon a time", "def main():\n"]
    ids = [smollm2.engine.tokenizer.encode(prompt) for prompt in prompts]
    texts = [
        [choice.text for choice in client.completions.create(model="model", prompt=prompt, temperature=0).choices]
        for prompt in (prompts, ids)
    ]
    assert texts[0] == texts[1]


def test_a_stop_string_inside_a_token_cuts_there(client: openai.OpenAI) -> None:
    full = chat_text(client, temperature=0, max_tokens=40)
    stop = full[len(full) // 2 : len(full) // 2 + 3]
    assert chat_text(client, temperature=0, max_tokens=40, stop=[stop]) == full[: full.index(stop)]


def test_seeds_repeat_and_their_absence_does_not(client: openai.OpenAI) -> None:
    seeded = {chat_text(client, temperature=1, max_tokens=8, seed=5) for _ in range(2)}
    assert len(seeded) == 1
    unseeded = {chat_text(client, temperature=1, max_tokens=8) for _ in range(4)}
    assert len(unseeded) > 1


def test_thirty_two_streams_at_once(smollm2: Server) -> None:
    """Twice as many as rows: all complete, and each says what it says alone."""
    prompts = [f"Item {i} of the list is" for i in range(32)]

    async def ask(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(
            model="model", prompt=prompt, stream=True, temperature=0, max_tokens=12
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        return "".join(chunk.choices[0].text for chunk in chunks)

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=smollm2.url, api_key="none", max_retries=0, timeout=120) as client:
            return list(await asyncio.gather(*(ask(client, prompt) for prompt in prompts)))

    together = asyncio.run(ask_all())
    fields = {"model": "model", "temperature": 0, "max_tokens": 12}
    alone = [smollm2.request("POST", "/v1/completions", {**fields, "prompt": prompt}) for prompt in prompts[:4]]
    assert together[:4] == [answer.json["choices"][0]["text"] for answer in alone]
    assert all(together)


def test_leaving_frees_the_row_and_its_blocks(client: openai.OpenAI, smollm2: Server) -> None:
    with client.chat.completions.create(
        model="model", messages=QUESTION, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        for _, _chunk in zip(range(3), stream, strict=False):
            pass
        assert smollm2.totals.num_blocks_used > 0
    eventually(lambda: smollm2.engine.num_unfinished == 0)
    eventually(lambda: smollm2.totals.num_running == 0 and smollm2.totals.num_blocks_used == 0)
    assert smollm2.metric("vllm:num_requests_running") == 0


def test_too_long_a_prompt_is_refused_with_both_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="model", prompt=[1] * 1025)
    assert refused.value.code == "context_length_exceeded"
    assert "1025" in refused.value.message and "1024" in refused.value.message


def test_a_base_model_completes_and_says_why_it_does_not_chat(gemma3_path: Path) -> None:
    with ExitStack() as stack:
        server = serve_model(gemma3_path, stack)
        prompt = {"model": "model", "prompt": "One, two, three, four,", "temperature": 0, "max_tokens": 8}
        answer = server.request("POST", "/v1/completions", prompt)
        assert answer.json["choices"][0]["text"].startswith(" five, six")
        answer = server.request("POST", "/v1/chat/completions", {"model": "model", "messages": QUESTION})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "chat_template_error", "messages")
        assert "chat template" in answer.error["message"] and "/v1/completions" in answer.error["message"]


def test_the_command_serves_drains_and_exits_with_zero(smollm2_path: Path, tmp_path: Path) -> None:
    sizes = ["--port", "0", "--max-model-len", "512", "--kv-cache-memory", "32MiB", "--threads", "1"]
    with server_process(
        "octavo", "serve", str(smollm2_path), *sizes, "--served-model-name", "m", cwd=tmp_path
    ) as server:
        assert "512 tokens a request" in server.output and "m\n" in server.output
        assert server.request("GET", "/health")[0] == 200
        body = {"model": "m", "prompt": "One", "max_tokens": 64, "ignore_eos": True}
        answers: list[tuple[int, bytes]] = []
        client = threading.Thread(target=lambda: answers.append(server.request("POST", "/v1/completions", body)))
        client.start()
        one_runs = b'vllm:num_requests_running{engine="0",model_name="m"} 1'
        eventually(lambda: one_runs in server.request("GET", "/metrics")[1])
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait(60) == 0
        client.join()
    status, content = answers[0]
    assert (status, json.loads(content)["usage"]["completion_tokens"]) == (200, 64)
