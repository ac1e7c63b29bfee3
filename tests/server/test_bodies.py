"""Every body a client may send is honoured, or refused with an error that names the field at fault."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import ValidationError

from octavo.server import unsupported
from octavo.server.chat_wire import ChatRequest
from octavo.server.completion_wire import CompletionRequest
from tests.server.live import Server

VLLM_EXTRAS = {
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "echo",
    "ignore_eos",
    "include_stop_str_in_output",
    "kv_transfer_params",
    "length_penalty",
    "logit_bias",
    "min_p",
    "min_tokens",
    "priority",
    "prompt_logprobs",
    "repetition_penalty",
    "request_id",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "structured_outputs",
    "top_k",
    "truncate_prompt_tokens",
    "use_beam_search",
    "vllm_xargs",
}
VLLM_CHAT_EXTRAS = {
    "add_generation_prompt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "include_reasoning",
    "mm_processor_kwargs",
    "parallel_tool_calls",
    "reasoning_effort",
    "thinking_token_budget",
}


def sdk_fields(params: Any) -> set[str]:
    names: set[str] = set()
    for kind in ("NonStreaming", "Streaming"):
        names |= set(get_type_hints(getattr(params, f"CompletionCreateParams{kind}")))
    return names


@pytest.mark.parametrize(
    ("model", "table", "fields"),
    [
        (ChatRequest, unsupported.CHAT, sdk_fields(chat_params) | VLLM_EXTRAS | VLLM_CHAT_EXTRAS),
        (CompletionRequest, unsupported.COMPLETION, sdk_fields(completion_params) | VLLM_EXTRAS),
    ],
)
def test_every_known_field_is_honoured_or_refused_by_name(model: Any, table: Any, fields: set[str]) -> None:
    declared = set(model.model_fields)
    assert fields <= declared | set(table), fields - declared - set(table)
    assert not declared & set(table), "a field is either honoured or refused"


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_every_field_is_documented(model: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    assert not [name for name in model.model_fields if f"`{name}`" not in page]


NOTHING_ASKED_OF_CHAT = {
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "user": "me",
    "safety_identifier": "x",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "modalities": ["text"],
    "prompt_cache_key": "k",
    "prediction": {"type": "content", "content": [{"type": "text", "text": "x"}]},
    "stop": [],
    "chat_template_kwargs": {"colour": "blue"},
    "add_generation_prompt": True,
}


def test_fields_that_ask_for_nothing_pass(shared: Server) -> None:
    answer = shared.chat(**NOTHING_ASKED_OF_CHAT)
    assert answer.status == 200, answer.body


def test_null_is_the_same_as_absent(shared: Server) -> None:
    fields = {*ChatRequest.model_fields, *unsupported.CHAT} - {"model", "messages"}
    answer = shared.chat(**dict.fromkeys(fields))
    assert answer.status == 200, answer.body
    fields = {*CompletionRequest.model_fields, *unsupported.COMPLETION} - {"model", "prompt"}
    answer = shared.complete(**dict.fromkeys(fields))
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("store", True),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("metadata", {"a": 1}),
        ("metadata", {"a" * 65: "b"}),
        ("metadata", {"a": "b" * 513}),
        ("guided_decoding_backend", "outlines"),
        ("web_search_options", {}),
        ("logprob_token_ids", [1]),
        ("repetition_detection", {"max_pattern_size": 3}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(shared: Server, field: str, value: object) -> None:
    answer = shared.chat(**{field: value})
    assert answer.status == 400
    assert answer.error["param"] == field
    assert answer.error["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("field", "value"),
    [("logprobs", True), ("logprobs", 21), ("prompt_logprobs", -1)],
)
def test_legacy_fields_are_refused_by_name(shared: Server, field: str, value: object) -> None:
    answer = shared.complete(**{field: value})
    assert (answer.status, answer.error["param"]) == (400, field)


@pytest.mark.parametrize("body", [{"model": "alphabet", "prompt": "a", "tempratur": 1}])
def test_unknown_fields_are_refused_by_name(shared: Server, body: dict) -> None:
    answer = shared.request("POST", "/v1/completions", body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "tempratur", "unknown_parameter")


HONOURED = sorted({*ChatRequest.model_fields} - {"messages", "model"})
JUNK = [True, 0, -1, 2.5, 1e308, "", "x", "5", [], {}, [None], {"a": {}}, "y" * 50_000, -(2**70)]


@pytest.mark.parametrize("field", HONOURED)
def test_junk_in_a_field_never_breaks_the_server(shared: Server, field: str) -> None:
    """Each answer is 200 or a 400 about that field, and the server goes on."""
    for value in JUNK:
        if field == "stream" and value is True:
            continue
        answer = (
            shared.chat(max_completion_tokens=2, **{field: value})
            if field != "max_completion_tokens"
            else (shared.chat(**{field: value}))
        )
        assert answer.status in (200, 400), (field, value, answer.body)
        if answer.status == 400:
            assert answer.error["param"].startswith(field), (value, answer.error)
    assert shared.chat().json["choices"][0]["message"]["content"] == "xyz"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": -5}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"top_k": "10"}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-46}, "repetition_penalty"),
        ({"logit_bias": {"3": 101}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"logit_bias": {"3": "1"}}, "logit_bias.3"),
        ({"allowed_token_ids": [300]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncation_side": "top"}, "truncation_side"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"max_tokens": 2.7}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids[0]"),
        ({"seed": 2**64}, "seed"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"include_all": True}}, "stream_options.include_all"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_values_out_of_range(shared: Server, fields: dict, param: str) -> None:
    answer = shared.chat(**fields)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert param in answer.error["message"]
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("fields", [{"top_k": 9_999_999}, {"top_k": -1}, {"top_k": 0}, {"max_tokens": 10**9}])
def test_generous_values_pass(shared: Server, fields: dict) -> None:
    assert shared.chat(**fields).status == 200


@pytest.mark.parametrize(
    "prompt", [None, 5, True, "", [], [[]], [1, "a"], ["a", [1]], {"a": 1}, [300], [-1], [1.5], ["a"] * 9]
)
def test_prompts_that_are_none(shared: Server, prompt: object) -> None:
    answer = shared.complete(prompt)
    assert answer.status == 400 and answer.error["param"].startswith("prompt")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        ([5], "messages[0]"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "robot", "content": "a"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "a", "colour": 1}], "messages[0].colour"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls[0].function"),
    ],
)
def test_messages_that_are_none(shared: Server, messages: object, param: str) -> None:
    answer = shared.request("POST", "/v1/chat/completions", {"model": "alphabet", "messages": messages})
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


def test_conversations_of_every_shape(shared: Server) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]},
        {"role": "user", "content": "Hi", "name": "me"},
        # As the openai package dumps an answer of ours.
        {"role": "assistant", "content": "Hello", "refusal": None, "annotations": None, "tool_calls": None},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
        {"role": "user", "content": "w"},
    ]
    answer = shared.request("POST", "/v1/chat/completions", {"model": "alphabet", "messages": messages})
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["message"]["content"] == "xyz"
    text = ">>Be brief.Be\nkind.HiHello42w"
    assert answer.json["usage"]["prompt_tokens"] == len(text)


def test_generation_prompt_can_be_left_out(shared: Server) -> None:
    assert shared.chat(add_generation_prompt=False).json["usage"]["prompt_tokens"] == 1
    assert shared.chat().json["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        '{"model": "alphabet", "prompt": "Grüße"}'.encode("latin-1"),
        b'{"model": "alphabet", "prompt": "\\ud800"}',
        b'{"model": "alphabet", "prompt": "a", "temperature": NaN}',
        b'{"model": "alphabet", "prompt": "a", "temperature": Infinity}',
        b'{"model": "alphabet", "prompt": "a", "temperature": 1e999}',
        b'{"model": "alphabet", "prompt": "a", "presence_penalty": NaN}',
        b"[" * 50_000,
        b'{"a":' * 10_000,
    ],
)
def test_bodies_that_are_not_json(shared: Server, body: bytes) -> None:
    answer = shared.request("POST", "/v1/completions", body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    answer.body.decode("utf-8")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused_where_a_field_may_be_anything(shared: Server, number: str) -> None:
    value = float(number.replace("Infinity", "inf"))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": value}}}
    for fields in ({"tools": [tool]}, {"chat_template_kwargs": {"a": value}}):
        body = json.dumps({"model": "alphabet", "messages": [{"role": "user", "content": "a"}], **fields})
        assert number in body
        assert shared.request("POST", "/v1/chat/completions", body.encode()).error["code"] == "invalid_json"
    assert shared.chat(messages=[{"role": "user", "content": f'"{number}"'}]).status == 200


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("APPLICATION/JSON", 200),
        ("application/json; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
def test_content_types(shared: Server, content_type: str, status: int) -> None:
    body = json.dumps({"model": "alphabet", "prompt": "a"}).encode()
    answer = shared.request("POST", "/v1/completions", body, {"Content-Type": content_type})
    assert answer.status == status
    if status != 200:
        assert answer.error["code"] == "unsupported_media_type"


def test_unicode_and_nul_pass_through(shared: Server) -> None:
    answer = shared.complete("naïve 日本 \x00 😀 w")
    assert answer.json["choices"][0]["text"] == "xyz"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused(shared: Server, chunked: bool) -> None:
    """And the client, which sends it all before it reads, hears so."""
    limit = shared.service.settings.max_body_bytes
    body = json.dumps({"model": "alphabet", "prompt": "a" * (100 * limit)}).encode()
    headers = {"Transfer-Encoding": "chunked"} if chunked else {}
    sent: Any = (f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n") if chunked else body
    answer = shared.request("POST", "/v1/completions", sent, headers)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [None] * 1000},
        {"prompt": [[None]] * 1000},
        {"prompt": [[None] * 1000]},
        {"prompt": "a", "stop": [None] * 1000},
        {"prompt": "a", "stop_token_ids": [None] * 1000},
        {"prompt": "a", "messages": [None] * 1000},
        {"prompt": "a", "messages": [{"role": "user", "content": [None] * 1000}]},
    ],
)
def test_a_thousand_mistakes_cost_no_more_than_one(fields: dict[str, Any]) -> None:
    """An error for each item of a body of 16 MiB would hold up everybody for half a minute."""
    model = ChatRequest if "messages" in fields else CompletionRequest
    with pytest.raises(ValidationError) as refusal:
        model.model_validate_json(json.dumps({"model": "alphabet", **fields}), strict=True)
    assert refusal.value.error_count() <= 4


def test_missing_and_unknown_models(shared: Server) -> None:
    for model in ("", "x" * 5000, "alphabet ", "Alphabet"):
        answer = shared.request("POST", "/v1/completions", {"model": model, "prompt": "a"})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
        assert len(answer.body) < 600
    answer = shared.request("POST", "/v1/completions", {"prompt": "a"})
    assert (answer.status, answer.error["param"]) == (400, "model")
    assert answer.error["code"] == "missing_required_parameter"


def test_numbers_of_the_answer_are_finite(shared: Server) -> None:
    usage = shared.chat().json["usage"]
    assert all(math.isfinite(value) for value in usage.values() if isinstance(value, int))


def test_the_openapi_document_describes_the_bodies(shared: Server) -> None:
    document = shared.request("GET", "/openapi.json").json
    for path, model in (("/v1/chat/completions", ChatRequest), ("/v1/completions", CompletionRequest)):
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == set(model.model_fields)
        assert "$ref" not in json.dumps(schema)
