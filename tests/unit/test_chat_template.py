"""Chat templates against transformers' rendering, and what clients may send against one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from octavo.errors import ChatTemplateError, InvalidValueError, UnsupportedParameterError
from octavo.tokenizer import chat_template
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer
from tests.unit.tokenizer_models import metadata_of, tokenizer_of

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Wetter in <Stadt> & 'Umgebung', 天気",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "Hi"}],
    "with a system message": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "several turns": [
        {"role": "user", "content": "Grüß Gott, 你好 👩‍🚀"},
        {"role": "assistant", "content": "Hello\n\n  there "},
        {"role": "user", "content": "  <b>&amp;</b> {{ 7 * 7 }} {% raw %} \u2028"},
    ],
    "a tool call": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"degrees": 21}', "tool_call_id": "call_1"},
        {"role": "tool", "content": "fine", "tool_call_id": "call_1"},
    ],
}

# Each uses what templates in the wild use, in a few lines.
TEMPLATES = {
    "blocks": "{% for m in messages %}\n    {% if m.role %}\n  [{{ m.content }}]\n    {% endif %}\n{% endfor %}\n\n",
    "variables": "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}{{ pad_token }}{{ documents }}|{{ tools }}",
    "loops": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "json": "{{ tools | tojson }}{{ tools | tojson(indent=2) }}{{ messages | tojson(sort_keys=1, ensure_ascii=1) }}",
    "separators": "{{ messages | tojson(separators=(',', ':')) }}{{ '<' | tojson }}",
    "macro": "{% macro f(m) %}-{{ m.content | trim }}{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}",
    "dict": "{% set d = dict(a=1, b=[2]) %}{{ d.a }}{{ dict.fromkeys(['x', 'y'], 3) | tojson }}{{ d.items() | list }}",
    "methods": "{{ messages[0].content.split(' ')[-1].strip().upper() }}{{ messages[-1]['role'] in ['user'] }}",
    "prompt": "{{ messages[-1].content }}{% if add_generation_prompt %}<assistant>{% endif %}",
    "undefined": "{{ messages[0].nothing }}{{ nothing is defined }}{% if nothing %}x{% endif %}",
    "year": "{{ strftime_now('%Y') }}",
}


def transformers_prompt(template: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    reference = PreTrainedTokenizerFast(
        tokenizer_object=Backend(BPE()), bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    prompt: str = reference.apply_chat_template(messages, chat_template=template, tokenize=False, **kwargs)
    return prompt


def ours(template: str) -> ChatTemplate:
    return ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"})


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_templates_render_as_in_transformers(template: str, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    for tools in (None, [WEATHER]):
        for prompted in (True, False):
            expected = transformers_prompt(template, messages, tools=tools, add_generation_prompt=prompted)
            assert ours(template).render(messages, tools=tools, add_generation_prompt=prompted) == expected


@pytest.mark.parametrize("fixture", ["smollm2_path", "qwen05_path"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_models_own_templates(fixture: str, conversation: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    messages = CONVERSATIONS[conversation]
    template = metadata_of(path)["tokenizer.chat_template"]
    for tools in (None, [WEATHER]):
        expected = transformers_prompt(template, messages, tools=tools, add_generation_prompt=True)
        tokenizer = tokenizer_of(path)
        assert tokenizer.has_chat_template
        assert tokenizer.apply_chat_template(messages, tools=tools) == expected
        assert tokenizer.encode_chat(messages, tools=tools) == tokenizer.encode(expected)


def test_template_variables_can_be_given() -> None:
    template = ours("{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}")
    assert template.render(CONVERSATIONS["one turn"], enable_thinking=True) == "Hi<think>"


def test_a_model_without_template_says_what_works(gemma3_path: Path) -> None:
    gemma = tokenizer_of(gemma3_path)
    assert not gemma.has_chat_template
    with pytest.raises(ChatTemplateError, match=r"no chat template.*/v1/completions") as refusal:
        gemma.encode_chat(CONVERSATIONS["one turn"])
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[9].content.strip() }}", "undefined|no element"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("a\n{% if %}", "does not compile: line 2"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "unsafe|not safely"),
        ("{% set ns = namespace(__init__=1) %}", "underscore"),
        ("{% for i in range(999999999) %}{% endfor %}", "[Rr]ange"),
    ],
)
def test_a_failing_template_is_an_error_of_the_request(template: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ours(template).render(CONVERSATIONS["one turn"])


def test_endless_output_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_PROMPT_CHARACTERS", 1000)
    with pytest.raises(ChatTemplateError, match="more than 1000 characters"):
        ours("{% for i in range(90000) %}{% for j in range(90000) %}xx{% endfor %}{% endfor %}").render(
            CONVERSATIONS["one turn"]
        )


TEXT_STYLE = "{% for m in messages %}<{{ m.role }}>{{ m['content'] + '' }}{% endfor %}"
PARTS_STYLE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}"
)
PARTS_ONLY_STYLE = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}"
)
PRINTING_STYLE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "between"),
    [(TEXT_STYLE, "\n"), (PRINTING_STYLE, "\n"), (PARTS_STYLE, ""), (PARTS_ONLY_STYLE, "")],
    ids=["text", "printing", "both", "parts only"],
)
def test_content_may_be_text_or_parts_whatever_the_template_takes(template: str, between: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}, {"role": "user", "content": []}]
    assert ours(template).render(messages) == f"<system>s<user>a{between}b<user>"


@pytest.mark.parametrize("template", [TEXT_STYLE, PARTS_STYLE, PARTS_ONLY_STYLE, PRINTING_STYLE])
def test_no_content_is_empty_content_in_every_spelling(template: str) -> None:
    said = ({}, {"content": None}, {"content": ""}, {"content": []})
    prompts = {ours(template).render([{"role": "assistant", "tool_calls": [CALL], **spelling}]) for spelling in said}
    assert prompts == {"<assistant>"}


def test_arguments_of_a_call_may_be_text_or_object(qwen05_path: Path) -> None:
    qwen = tokenizer_of(qwen05_path)
    as_text = {**CALL, "function": {"name": "weather", "arguments": '{"city":"Zürich"}'}}
    prompts = {
        qwen.apply_chat_template([{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}])
        for call in (CALL, as_text)
    }
    assert len(prompts) == 1 and '"arguments": {"city": "Zürich"}' in prompts.pop()
    not_json = {**CALL, "function": {"name": "weather", "arguments": "city=Zürich"}}
    assert "city=Zürich" in qwen.apply_chat_template(
        [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [not_json]}]
    )


def test_arguments_nested_too_deeply_to_be_read_stay_text() -> None:
    arguments = '{"a": ' * 2000 + "0" + "}" * 2000
    call = {**CALL, "function": {"name": "weather", "arguments": arguments}}
    template = ours("{{ messages[0].tool_calls[0].function.arguments }}")
    assert template.render([{"role": "assistant", "tool_calls": [call]}]) == arguments


@pytest.mark.parametrize("calls", [[], None])
def test_no_tool_calls_is_an_ordinary_message(calls: object, qwen05_path: Path) -> None:
    qwen = tokenizer_of(qwen05_path)
    plain = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ok"}]
    with_calls = [plain[0], {**plain[1], "tool_calls": calls}]
    assert qwen.apply_chat_template(with_calls) == qwen.apply_chat_template(plain)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages is empty"),
        ("hi", "messages must be a list"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be text or a list"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\]\.content\[0\] must be an object"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\]\.content\[0\]\.text must be text"),
        ([{"role": "user", "content": [{"type": "foo", "text": "x"}]}], r"content\[0\]\.type is 'foo'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "is 'image_url'; this model takes"),
        ([{"role": "user", "content": "x", "extra": object()}], r"messages\[0\]\.extra has a object"),
        ([{"role": "assistant", "tool_calls": "f()"}], r"messages\[0\]\.tool_calls must be a list"),
    ],
)
def test_malformed_messages_are_refused_by_name(messages: Any, where: str) -> None:
    with pytest.raises(InvalidValueError, match=where) as refusal:
        ours(PARTS_STYLE).render(messages)
    assert refusal.value.param == "messages"


def test_messages_are_not_changed(qwen05_path: Path) -> None:
    tokenizer: Tokenizer = tokenizer_of(qwen05_path)
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": None}]
    before = repr(messages)
    tokenizer.encode_chat(messages)
    assert repr(messages) == before


@pytest.mark.parametrize("fixture", ["smollm2_path", "qwen05_path"])
def test_the_last_message_can_be_left_open(fixture: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    template = metadata_of(path)["tokenizer.chat_template"]
    for text in ("The answer is", "Grüß <b>", "{\n  1"):
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
        expected = transformers_prompt(template, messages, continue_final_message=True)
        found = tokenizer_of(path).apply_chat_template(
            messages, continue_final_message=True, add_generation_prompt=False
        )
        assert found == expected and found.endswith(text)


def test_a_template_that_hides_the_last_message_cannot_continue_it(smollm2_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        tokenizer_of(smollm2_path).apply_chat_template(
            [{"role": "user", "content": "a"}], continue_final_message=True, chat_template="nothing"
        )


def test_a_template_given_with_the_call_takes_the_place_of_the_model_s(smollm2_path: Path) -> None:
    prompt = tokenizer_of(smollm2_path).apply_chat_template(
        CONVERSATIONS["one turn"], chat_template="{{ bos_token }}{{ messages[0].content }}"
    )
    assert prompt == "<|im_start|>Hi"


def test_gaps_are_filled_by_models_trained_for_it(qwen05_path: Path, smollm2_path: Path) -> None:
    """As the report of Qwen2.5-Coder writes it: prefix, suffix, middle."""
    qwen = tokenizer_of(qwen05_path)
    found = qwen.encode_infill("def f(x):\n", "\n    return y")
    assert found == qwen.encode("<|fim_prefix|>def f(x):\n<|fim_suffix|>\n    return y<|fim_middle|>")
    with pytest.raises(UnsupportedParameterError, match="no tokens for filling in the middle"):
        tokenizer_of(smollm2_path).encode_infill("a", "b")
