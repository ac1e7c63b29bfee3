"""Reasoning over the whole engine, from a GGUF file with its template to the `openai` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from octavo.config import EngineArgs
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine
from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.models.chain_file import write_chain
from tests.server.live import serving
from tests.unit.small_tokenizer import small_tokenizer, small_tokenizer_metadata

# As Qwen3's, where the answer opens its reasoning unless the prompt closed it, and as DeepSeek-R1's, which opens it.
TURNS = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- set text = message.content %}"
    "{%- if message.role == 'assistant' and '</think>' in text %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- text + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
)
QWEN3 = TURNS + (
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
DEEPSEEK_R1 = TURNS + "{{- '<think>\n' }}{%- endif %}"
END = "<|im_end|>"
QUESTION: Any = [{"role": "user", "content": "Why?"}]


def chain(*texts: str) -> dict[int, tuple[int, ...]]:
    """What follows each token of these texts, which are written a character, or a marker, at a time."""
    tokenizer = small_tokenizer()
    followers: dict[int, tuple[int, ...]] = {}
    for text in texts:
        token_ids: list[int] = []
        for piece in text.replace("<", "\0<").replace(">", ">\0").split("\0"):
            single = [piece] if piece.startswith("<") else list(piece)
            token_ids += [tokenizer.encode(each, add_special_tokens=False)[0] for each in single]
        for token_id, following in pairwise(token_ids):
            followers[token_id] = tuple(dict.fromkeys([*followers.get(token_id, ()), following]))
    return followers


# The reasoning is "hm", "hmhm" and so on, the answer "Yes.".
THOUGHT = ("hmh", f"m</think>Yes.{END}")
MODELS = {"qwen3": (QWEN3, chain("\n<think>h", *THOUGHT)), "deepseek_r1": (DEEPSEEK_R1, chain("\nh", *THOUGHT))}


@pytest.fixture(scope="module", params=list(MODELS))
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    template, followers = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    path = write_chain(folder / "chain.gguf", small_tokenizer_metadata(template), followers)
    totals = EngineTotals()
    engine = build_engine(EngineArgs(str(path), max_model_len=512, kv_cache_memory_bytes=2**24), listeners=(totals,))
    with (
        serving(AsyncEngine(engine), ServerSettings(("model",)), totals) as server,
        openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def reasoning_of(message: Any) -> str | None:
    assert getattr(message, "reasoning", None) == getattr(message, "reasoning_content", None)
    reasoning: str | None = getattr(message, "reasoning_content", None)
    return reasoning


def num_reasoning_tokens(usage: Any) -> int:
    count: int = usage.completion_tokens_details.reasoning_tokens
    return count


def is_opened_by_prompt(request: pytest.FixtureRequest) -> bool:
    return "deepseek" in request.node.callspec.id


@pytest.mark.parametrize("seed", range(4))
def test_reasoning_is_told_from_the_answer(client: openai.OpenAI, seed: int, request: pytest.FixtureRequest) -> None:
    fields: Any = {"model": "model", "messages": QUESTION, "seed": seed, "temperature": 1, "max_tokens": 200}
    answer = client.chat.completions.create(**fields)
    message = answer.choices[0].message
    reasoning = reasoning_of(message)
    assert reasoning is not None and set(reasoning.split("hm")) == {""}
    assert (message.content, answer.choices[0].finish_reason) == ("Yes.", "stop")
    num_markers = 1 if is_opened_by_prompt(request) else 2
    assert num_reasoning_tokens(answer.usage) == len(reasoning) + num_markers
    assert answer.usage is not None and answer.usage.completion_tokens == len(reasoning) + num_markers + len("Yes.") + 1

    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(reasoning_of(delta) or "" for delta in deltas) == reasoning
    assert "".join(delta.content or "" for delta in deltas) == "Yes."
    kinds = [
        "reasoning" if reasoning_of(delta) else "content" for delta in deltas if reasoning_of(delta) or delta.content
    ]
    assert kinds == sorted(kinds, reverse=True), "all of the reasoning comes first"
    assert num_reasoning_tokens(chunks[-1].usage) == num_reasoning_tokens(answer.usage)


@pytest.mark.parametrize("budget", [0, 1, 5, 6, 40])
def test_a_budget_ends_the_reasoning(client: openai.OpenAI, budget: int, request: pytest.FixtureRequest) -> None:
    """The model would go on for ever: its own end marker is forbidden until the budget puts one in."""
    (end,) = small_tokenizer().encode("</think>", add_special_tokens=False)
    answer = client.chat.completions.create(
        model="model", messages=QUESTION, temperature=0, max_tokens=100, logit_bias={str(end): -100},
        extra_body={"thinking_token_budget": budget},
    )  # fmt: skip
    message = answer.choices[0].message
    num_opening = 0 if is_opened_by_prompt(request) else 1
    num_thought = max(budget - num_opening, 0)
    assert reasoning_of(message) == (("hm" * 50)[:num_thought] or None)
    assert num_reasoning_tokens(answer.usage) == num_opening + num_thought + 1
    assert (message.content, answer.choices[0].finish_reason) == ("Yes.", "stop")


def test_reasoning_that_fills_the_answer(client: openai.OpenAI) -> None:
    (end,) = small_tokenizer().encode("</think>", add_special_tokens=False)
    answer = client.chat.completions.create(
        model="model", messages=QUESTION, temperature=0, max_tokens=20, logit_bias={str(end): -100}
    )
    assert answer.choices[0].finish_reason == "length" and not answer.choices[0].message.content
    assert num_reasoning_tokens(answer.usage) == 20


class Verdict(BaseModel):
    right: bool
    why: Literal["luck", "skill"]


@pytest.mark.parametrize("extra", [{}, {"thinking_token_budget": 7}])
def test_a_form_follows_the_reasoning(client: openai.OpenAI, extra: dict[str, int]) -> None:
    for seed in range(4):
        answer = client.chat.completions.parse(
            model="model", messages=QUESTION, seed=seed, max_tokens=400, response_format=Verdict,
            extra_body=extra,
        )  # fmt: skip
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "stop" and message.parsed is not None
        reasoning = reasoning_of(message)
        assert reasoning is not None and set(reasoning.split("hm")) <= {"", "h"}
        assert Verdict.model_validate_json(message.content or "") == message.parsed
        assert num_reasoning_tokens(answer.usage) <= extra.get("thinking_token_budget", 400) + 1


def test_calls_after_the_reasoning(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    answer = client.chat.completions.create(
        model="model", messages=QUESTION, tools=tools, tool_choice="required", seed=3, max_tokens=300
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    call: Any = choice.message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert set((reasoning_of(choice.message) or "").split("hm")) == {""}


def test_thinking_can_be_off_or_hidden(client: openai.OpenAI, request: pytest.FixtureRequest) -> None:
    hidden = client.chat.completions.create(
        model="model", messages=QUESTION, seed=1, extra_body={"include_reasoning": False}
    )
    assert reasoning_of(hidden.choices[0].message) is None and hidden.choices[0].message.content == "Yes."
    assert num_reasoning_tokens(hidden.usage) > 0
    if is_opened_by_prompt(request):
        return
    off = client.chat.completions.create(
        model="model", messages=QUESTION, max_tokens=3, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
    )
    assert num_reasoning_tokens(off.usage) == 0 and reasoning_of(off.choices[0].message) is None
    assert off.choices[0].message.content == "<think>hm"
