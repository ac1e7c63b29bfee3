"""The parts of an answer as OpenAI's API writes them: as the deltas of a stream, and as a whole message."""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Sequence

from octavo.chat.reader import ChatPart, Reasoning, put_together
from octavo.tools.reader import CallArguments, CallBegin, Content

Fields = dict[str, object]


def delta_of(part: ChatPart, *, short_ids: bool) -> Fields:
    """A call's id, type and name come once; clients add up all other text."""
    match part:
        case Reasoning(text):
            return {"reasoning_content": text, "reasoning": text}
        case Content(text):
            return {"content": text}
        case CallBegin(index, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": _call_id(short_ids), "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def message_of(parts: Sequence[ChatPart], echoed: str, *, short_ids: bool) -> Fields:
    """The whole message; `echoed` text comes before its content. Calls alone have no content."""
    answer = put_together(parts)
    content, reasoning = echoed + answer.content, answer.reasoning
    calls = [
        {"id": _call_id(short_ids), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.tool_calls
    ]
    message: Fields = {"role": "assistant", "content": None if calls and not content else content, "refusal": None}
    if reasoning:
        message |= {"reasoning_content": reasoning, "reasoning": reasoning}
    return message | ({"tool_calls": calls} if calls else {})


def _call_id(short: bool) -> str:
    if short:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
    return f"call_{uuid.uuid4().hex[:24]}"
