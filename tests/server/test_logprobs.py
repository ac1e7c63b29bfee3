"""Log probabilities over the wire. The fake backend gives every token -0.5, rank 2, behind the space."""

from __future__ import annotations

from itertools import chain

import openai
import pytest

from octavo.request import OutputDelta, PlacedLogprobs
from octavo.server.logprobs import ShownLogprobs, Spelling
from octavo.step import TokenLogprobs
from tests.server.live import Server


def messages(text: str) -> list:
    return [{"role": "user", "content": text}]


def test_chat(client: openai.OpenAI) -> None:
    """One entry a token of the text: the end of the answer is none."""
    answer = client.chat.completions.create(model="alphabet", messages=messages("w"), logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and logprobs.refusal is None
    assert [entry.token for entry in logprobs.content] == ["x", "y", "z"]
    assert [entry.bytes for entry in logprobs.content] == [[120], [121], [122]]
    assert {entry.logprob for entry in logprobs.content} == {-0.5}
    top = [(entry.token, entry.logprob) for entry in logprobs.content[0].top_logprobs]
    assert top == [(" ", -0.25), ("x", -0.5), ("A", -0.75)]
    plain = client.chat.completions.create(model="alphabet", messages=messages("w"), logprobs=True)
    assert plain.choices[0].logprobs is not None and plain.choices[0].logprobs.content is not None
    assert [entry.top_logprobs for entry in plain.choices[0].logprobs.content] == [[], [], []]


def test_streamed_chat_has_the_same(client: openai.OpenAI) -> None:
    fields: dict = {"model": "alphabet", "messages": messages("a"), "logprobs": True, "top_logprobs": 2, "stop": "lmn"}
    whole = client.chat.completions.create(**fields).choices[0]
    text, entries = "", []
    for chunk in client.chat.completions.create(**fields, stream=True):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        entries += choice.logprobs.content or [] if choice.logprobs else []
        assert "".join(entry.token for entry in entries) == text, "a token is told before its text, or after"
    assert text == whole.message.content == "bcdefghijk"
    assert whole.logprobs is not None and entries == whole.logprobs.content
    with client.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.logprobs is not None and final.logprobs.content == whole.logprobs.content


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="alphabet", prompt=["v", "x"], logprobs=1, stop="z")
    first, second = (choice.logprobs for choice in answer.choices)
    assert first is not None and second is not None
    assert (first.tokens, first.text_offset, first.token_logprobs) == (["w", "x", "y"], [0, 1, 2], [-0.5] * 3)
    assert first.top_logprobs == [{" ": -0.25, token: -0.5} for token in "wxy"]
    assert second.tokens == ["y"]
    assert client.completions.create(model="alphabet", prompt="x", logprobs=0).choices[0].logprobs is not None


@pytest.mark.parametrize("prompt", ["hello w", [*b"hello w"]])
def test_echoed_prompts_are_scored(client: openai.OpenAI, prompt: object) -> None:
    fields: dict = {"model": "alphabet", "prompt": prompt, "logprobs": 2, "echo": True}
    answer = client.completions.create(**fields, n=2)
    for choice in answer.choices:
        assert choice.text == "hello wxyz"
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.tokens == list("hello wxyz") and logprobs.text_offset == list(range(10))
        assert logprobs.token_logprobs == [None] + [-0.5] * 9
        assert logprobs.top_logprobs is not None and logprobs.top_logprobs[0] is None
    chunks = list(client.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "hello wxyz"
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [*chain.from_iterable(part.text_offset or [] for part in parts)] == list(range(10))
    assert [*chain.from_iterable(part.token_logprobs or [] for part in parts)] == [None] + [-0.5] * 9


def test_scoring_a_prompt_alone(client: openai.OpenAI) -> None:
    """What evaluation harnesses do."""
    answer = client.completions.create(model="alphabet", prompt="hello w", logprobs=1, echo=True, max_tokens=0)
    choice = answer.choices[0]
    assert choice.logprobs is not None and choice.text == "hello w" and choice.logprobs.tokens == list("hello w")
    assert answer.usage is not None and answer.usage.completion_tokens == 0
    streamed = list(
        client.completions.create(
            model="alphabet", prompt="hello w", echo=True, max_tokens=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == "hello w"
    assert streamed[-1].usage is not None and streamed[-1].usage.completion_tokens == 0


def test_prompt_logprobs_are_vllm_s(shared: Server) -> None:
    space = {"logprob": -0.25, "rank": 1, "decoded_token": " "}
    expected = [None] + [
        {"32": space, str(ord(letter)): {"logprob": -0.5, "rank": 2, "decoded_token": letter}} for letter in ">w"
    ]
    assert shared.chat("w", prompt_logprobs=1).json["prompt_logprobs"] == expected
    body = shared.complete(["xw", "aw"], prompt_logprobs=1, n=2).json
    assert [len(choice["prompt_logprobs"]) for choice in body["choices"]] == [2] * 4


def test_tokens_can_be_written_as_ids(shared: Server) -> None:
    body = shared.chat("y", logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True).json
    (entry,) = body["choices"][0]["logprobs"]["content"]
    assert entry["token"] == "token_id:122" and entry["top_logprobs"][0]["token"] == "token_id:32"
    assert shared.complete("y", logprobs=1, return_tokens_as_token_ids=True).json["choices"][0]["logprobs"][
        "top_logprobs"
    ] == [{"token_id:32": -0.25, "token_id:122": -0.5}]


class Pieces:
    """Token 0 is an e, 1 and 2 are the two bytes of an e with an acute accent."""

    def token_bytes(self, token_id: int) -> bytes:
        return (b"e", b"\xc3", b"\xa9")[token_id]


def test_parts_of_a_character_are_told_apart() -> None:
    spelling = Spelling(Pieces())
    assert [spelling.text(token_id) for token_id in range(3)] == ["e", "\ufffd", "\ufffd"]
    assert [spelling.key(token_id) for token_id in range(3)] == ["e", "bytes:\\xc3", "bytes:\\xa9"]


def delta(text: str, offset: int, finish_reason: str | None = None) -> OutputDelta:
    placed = PlacedLogprobs(TokenLogprobs(0, -1.0, 1), offset)
    return OutputDelta("a", text, (0,), finish_reason, logprobs=(placed,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deltas", "shown"),
    [
        ([delta("a", 0), delta("b", 1), delta("", 2, "stop")], [1, 1, 0]),  # EOS has no text
        ([delta("", 0), delta("é", 0), delta("", 1, "length")], [0, 2, 1]),  # two halves of a character
        ([delta("", 0), delta("", 1), delta("", 2, "stop")], [0, 0, 0]),  # all of it was the stop string
        ([delta("", 0), delta("ab", 1), delta("", 2, "length")], [0, 2, 1]),  # held back, then let go
    ],
)
def test_log_probabilities_go_when_their_text_goes(deltas: list[OutputDelta], shown: list[int]) -> None:
    logprobs = ShownLogprobs()
    assert [len(logprobs.take(delta)) for delta in deltas] == shown
