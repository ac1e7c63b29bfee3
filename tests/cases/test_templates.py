"""Kind 5: chat templates. The reports are listed in docs/cases.md."""

from __future__ import annotations

import itertools
from typing import Any

import openai
import pytest

from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Answer, Server, serving
from tests.server.test_reasoning import model


def render(server: Server, messages: list[dict[str, Any]]) -> Answer:
    return server.request("POST", "/v1/chat/completions/render", {"model": server.model, "messages": messages})


@pytest.mark.case("TPL-03")
def test_parts_are_joined_and_malformed_ones_refused(smollm2: Server) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "system"):
        joined = render(smollm2, [{"role": role, "content": parts}])
        assert joined.json["prompt"] == render(smollm2, [{"role": role, "content": "a\nb"}]).json["prompt"]
    for part in ({"type": "text"}, {"type": "foo"}, {}, "a", None):
        refused = render(smollm2, [{"role": "user", "content": [part]}])
        assert refused.status == 400 and refused.error["param"].startswith("messages[0].content"), part
    assert render(smollm2, [{"role": "user", "content": []}]).status in (200, 400)


@pytest.mark.case("TPL-05")
def test_a_model_without_a_template_says_how_to_go_on() -> None:
    totals = EngineTotals()
    fake = FakeEngine(totals, has_chat_template=False)
    with serving(fake.async_engine(), ServerSettings(("alphabet",)), totals) as server:
        with (
            openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=20) as client,
            pytest.raises(openai.BadRequestError, match="chat template") as refused,
        ):
            client.chat.completions.create(model="alphabet", messages=[{"role": "user", "content": "a"}])
        assert refused.value.param == "messages"
        assert server.complete("w").json["choices"][0]["text"] == "xyz"


STYLES = [
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
    "{% for m in messages %}<{{ m.role }}>{% if m.content %}{{ m.content }}{% endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.arguments.items() | list }}{% endfor %}{% endif %}"
    "{% endfor %}",
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}{% endfor %}",
]


@pytest.mark.case("TPL-06")
@pytest.mark.parametrize("template", STYLES)
def test_absent_null_and_empty_content_are_the_same(template: str) -> None:
    prompts = set()
    with model(template, "Hi") as server:
        for content, arguments in itertools.product(
            ({}, {"content": None}, {"content": ""}, {"content": []}), ('{"city": "Paris"}', {"city": "Paris"})
        ):
            call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call], **content}]
            prompts.add(render(server, messages).json["prompt"])
    (prompt,) = prompts
    assert "None" not in prompt and "Paris" in prompt


@pytest.mark.case("TPL-07")
def test_a_template_that_refuses_is_quoted() -> None:
    refusing = (
        "{% for m in messages %}{% if m.reasoning_content and m.content %}"
        "{{ raise_exception('either thought or text') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with model(refusing, "Hi") as server:
        history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "c"}]
        refused = server.request("POST", "/v1/chat/completions", {"model": "alphabet", "messages": history})
        assert (refused.status, refused.error["param"]) == (400, "messages")
        assert "either thought or text" in refused.error["message"]
        assert server.chat("a").status == 200
