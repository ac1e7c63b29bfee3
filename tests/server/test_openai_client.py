"""What a user of the openai package sees."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.server.live import Server


def messages(text: str) -> list:
    return [{"role": "user", "content": text}]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="alphabet", messages=messages("w"))
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == "alphabet"
    choice = answer.choices[0]
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", "xyz")
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    # ">>w" and "xyz" with its EOS.
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 4, 7)
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_chat_without_a_limit_may_use_the_whole_context(client: openai.OpenAI, shared: Server) -> None:
    shared_limit = shared.engine.config.max_model_len
    answer = client.chat.completions.create(
        model="alphabet", messages=messages("a"), extra_body={"ignore_eos": True, "min_tokens": 1}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.total_tokens == shared_limit


@pytest.mark.parametrize("limit", [{"max_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 9}])
def test_chat_limits(client: openai.OpenAI, limit: dict) -> None:
    answer = client.chat.completions.create(model="alphabet", messages=messages("a"), **limit)
    assert answer.choices[0].message.content == "bcd"
    assert answer.choices[0].finish_reason == "length"


def test_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="other/name", messages=messages("a"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].model == "other/name" and chunks[0].object == "chat.completion.chunk"
    *content, last, usage = chunks
    assert content[0].choices[0].delta.role == "assistant" and content[0].choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.role is None and chunk.choices[0].delta.content for chunk in content[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in content) == "bcdefghijklmnopqrstuvwxyz"
    assert [chunk.choices[0].finish_reason for chunk in (*content, last)] == [None] * len(content) + ["stop"]
    assert last.choices[0].delta.content is None
    assert all(chunk.usage is None for chunk in (*content, last))
    assert usage.choices == [] and usage.usage is not None
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (3, 26)


def test_stream_helper_accumulates_an_answer(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="alphabet", messages=messages("t")) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "uvwxyz"
    assert final.choices[0].finish_reason == "stop"


def test_completion_defaults_to_sixteen_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="alphabet", prompt="a")
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].text == "bcdefghijklmnopq" and answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("x", ["yz"]),
        (["x", "y", "w"], ["yz", "z", "xyz"]),
        ([120], ["yz"]),
        ([[119], [120, 121], [122]], ["xyz", "z", ""]),
    ],
)
def test_prompts_of_every_shape(client: openai.OpenAI, prompt: object, texts: list[str]) -> None:
    answer = client.completions.create(model="alphabet", prompt=prompt)  # type: ignore[call-overload]
    assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(texts))

    chunks = list(
        client.completions.create(  # type: ignore[call-overload]
            model="alphabet", prompt=prompt, stream=True, stream_options={"include_usage": True}
        )
    )
    streamed = [""] * len(texts)
    reasons: list[list[str]] = [[] for _ in texts]
    for chunk in chunks[:-1]:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
        if chunk.choices[0].finish_reason:
            reasons[chunk.choices[0].index].append(chunk.choices[0].finish_reason)
    assert streamed == texts and reasons == [["stop"]] * len(texts)
    assert chunks[-1].usage == answer.usage


def test_stop_strings(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="alphabet", messages=messages("a"), stop=["zz", "klm", "jkl"])
    assert answer.choices[0].message.content == "bcdefghi"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": "jkl"}
    included = client.completions.create(
        model="alphabet", prompt="a", stop="de", extra_body={"include_stop_str_in_output": True}
    )
    assert included.choices[0].text == "bcde"
    by_token = client.completions.create(model="alphabet", prompt="a", extra_body={"stop_token_ids": [ord("e")]})
    assert by_token.choices[0].text == "bcd"
    assert by_token.choices[0].model_extra == {"stop_reason": ord("e")}


def test_many_streams_at_once(shared: Server) -> None:
    """More streams than rows: each gets its own answer, whole and in order."""
    letters = [chr(ord("a") + i % 26) for i in range(40)]

    async def ask(client: openai.AsyncOpenAI, letter: str) -> str:
        stream = await client.chat.completions.create(
            model="alphabet", messages=[{"role": "user", "content": letter}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=shared.url, api_key="none", timeout=20) as client:
            return list(await asyncio.gather(*(ask(client, letter) for letter in letters)))

    alphabet = "abcdefghijklmnopqrstuvwxyz"
    assert asyncio.run(ask_all()) == [alphabet[alphabet.index(letter) + 1 :] for letter in letters]


def test_models(client: openai.OpenAI, shared: Server) -> None:
    assert [model.id for model in client.models.list()] == ["alphabet", "other/name"]
    model = client.models.retrieve("other/name")
    assert (model.id, model.object, model.owned_by) == ("other/name", "model", "octavo")
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == shared.engine.config.max_model_len


def test_errors_are_the_client_s_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=messages("a"))
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="alphabet", messages=messages("a"), store=True)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "store")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="alphabet", prompt="a" * 300)
    assert too_long.value.code == "context_length_exceeded"
    assert "300" in too_long.value.message and "256" in too_long.value.message
    assert too_long.value.request_id
