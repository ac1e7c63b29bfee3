"""Several choices over HTTP, as the openai package sees them."""

from __future__ import annotations

import openai
import pytest

from tests.server.fakes import FakeEngine
from tests.server.live import Server, eventually
from tests.server.test_disconnects import post


def test_chat_choices_count_the_prompt_once(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="alphabet", messages=[{"role": "user", "content": "w"}], n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(i, "xyz") for i in range(3)]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 12, 15)


def test_completion_choices_lie_prompt_by_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="alphabet", prompt=["w", "ax"], n=3)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == ["xyz"] * 3 + ["yz"] * 3
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 3 * 4 + 3 * 3)


def test_streamed_choices_interleave(server: Server, fake: FakeEngine) -> None:
    fake.executor.step_s = 0.01
    *chunks, usage = server.chat("a", n=3, stream=True, stream_options={"include_usage": True}).events
    choices = [chunk["choices"][0] for chunk in chunks]
    for index in range(3):
        first, *content, last = [choice for choice in choices if choice["index"] == index]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"]["content"] for choice in content) == "bcdefghijklmnopqrstuvwxyz"
        assert last["delta"] == {} and last["finish_reason"] == "stop"
    order = [choice["index"] for choice in choices]
    assert order != sorted(order), "the choices came one after the other"
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (3, 3 * 26)


def test_the_sdk_s_stream_helper_accumulates_every_choice(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="alphabet", messages=[{"role": "user", "content": "t"}], n=2) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["uvwxyz"] * 2


def test_streamed_completions_of_several_prompts_and_choices(shared: Server) -> None:
    *chunks, usage = shared.complete(["w", "x"], n=2, stream=True, stream_options={"include_usage": True}).events
    texts = [""] * 4
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["xyz", "xyz", "yz", "yz"]
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (2, 2 * 4 + 2 * 3)


@pytest.mark.parametrize("n", [0, -1, 129, 5_000_000, True, "2", 1.5])
def test_a_wrong_n_is_refused_by_name(shared: Server, n: object) -> None:
    for answer in (shared.chat(n=n), shared.complete(n=n)):
        assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "n", "invalid_value")


def test_the_best_are_kept_and_all_are_counted(shared: Server) -> None:
    for answer in (shared.chat("w", n=2, best_of=3), shared.complete("w", n=2, best_of=3)):
        assert answer.status == 200, answer.body
        assert [choice["index"] for choice in answer.json["choices"]] == [0, 1]
        assert answer.json["usage"]["completion_tokens"] == 3 * 4
    two_prompts = shared.complete(["w", "x"], best_of=3).json
    assert [choice["text"] for choice in two_prompts["choices"]] == ["xyz", "yz"]
    assert two_prompts["usage"]["prompt_tokens"] == 2


def test_the_best_cannot_be_streamed(shared: Server) -> None:
    answer = shared.complete("w", best_of=3, stream=True)
    assert (answer.status, answer.error["param"]) == (400, "best_of")
    assert shared.complete("w", n=3, best_of=3, stream=True).status == 200


@pytest.mark.parametrize("fields", [{"best_of": 1, "n": 2}, {"best_of": 129}, {"best_of": "3"}, {"best_of": 0}])
def test_a_wrong_best_of_is_refused_by_name(shared: Server, fields: dict) -> None:
    for answer in (shared.chat(**fields), shared.complete(**fields)):
        assert (answer.status, answer.error["param"]) == (400, "best_of")


def test_prompts_times_n_are_limited(shared: Server) -> None:
    answer = shared.complete(["a", "b", "c"], n=3)
    assert (answer.status, answer.error["param"]) == (400, "n")
    assert "at most 2" in answer.error["message"]


def test_an_error_in_a_step_ends_all_choices(server: Server, fake: FakeEngine) -> None:
    fake.executor.failures = 1
    assert server.chat("a", n=4).status == 500
    assert server.chat("w", n=2).status == 200
    eventually(lambda: server.engine.num_unfinished == 0)
    assert fake.pool.num_used == 0


@pytest.mark.parametrize(("fields", "num_requests"), [({"n": 5}, 5), ({"n": 4, "use_beam_search": True}, 1)])
def test_a_client_that_leaves_takes_all_its_choices_along(
    server: Server, fake: FakeEngine, fields: dict, num_requests: int
) -> None:
    fake.executor.step_s = 0.05
    connection = post(server, "/v1/completions", {"prompt": "a", "ignore_eos": True, "max_tokens": 200, **fields})
    eventually(lambda: server.engine.num_unfinished == num_requests and fake.pool.num_used > 0)
    connection.close()
    eventually(lambda: server.engine.num_unfinished == 0 and fake.pool.num_used == 0)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == num_requests


def test_beam_search_over_http(client: openai.OpenAI) -> None:
    beams = {"use_beam_search": True, "best_of": 4, "length_penalty": 0.0, "early_stopping": True}
    chat = client.chat.completions.create(
        model="alphabet", messages=[{"role": "user", "content": "w"}], n=2, temperature=0, extra_body=beams
    )
    assert [choice.index for choice in chat.choices] == [0, 1]
    assert chat.choices[0].message.content == "xyz" and chat.choices[0].finish_reason == "stop"
    assert chat.choices[1].message.content != "xyz"
    assert chat.usage is not None and chat.usage.prompt_tokens == 3
    del beams["best_of"]
    text = client.completions.create(
        model="alphabet", prompt=["w", "ax"], n=2, best_of=3, max_tokens=8, temperature=0, extra_body=beams
    )
    assert [choice.index for choice in text.choices] == [0, 1, 2, 3]
    assert (text.choices[0].text, text.choices[2].text) == ("xyz", "yz")
    assert text.usage is not None and text.usage.prompt_tokens == 3


def test_beams_stream_when_the_search_is_over(shared: Server) -> None:
    *chunks, usage = shared.chat(
        "w", n=2, use_beam_search=True, stream=True, stream_options={"include_usage": True}
    ).events
    texts = ["", ""]
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts[0] == "xyz" and texts[1] != "xyz"
    assert usage["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"use_beam_search": True, "early_stopping": "sometimes"}, "early_stopping"),
        ({"use_beam_search": True, "length_penalty": 1000}, "length_penalty"),
        ({"use_beam_search": True, "temperature": 0.7}, "temperature"),
        ({"use_beam_search": True, "top_p": 0.9}, "top_p"),
        ({"use_beam_search": True, "top_k": 5}, "top_k"),
        ({"use_beam_search": True, "stop": ["x"]}, "stop"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
    ],
)
def test_what_does_not_go_with_beam_search_is_refused_by_name(shared: Server, fields: dict, param: str) -> None:
    for answer in (shared.chat(**fields), shared.complete(**fields)):
        assert (answer.status, answer.error["param"]) == (400, param), answer.body
