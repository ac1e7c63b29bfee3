"""POST /v1/chat/completions."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from octavo import request as engine_request
from octavo.engine.choices import fan_out
from octavo.errors import RequestError
from octavo.server.answers import Answer, ChoiceDelta, Usage, collect, interleave
from octavo.server.body import read_body
from octavo.server.chunks import Chunks, compact
from octavo.server.disconnect import unless_client_leaves
from octavo.server.openapi import json_body
from octavo.server.preparation import prepare
from octavo.server.service import Service, service_of
from octavo.server.sse import EventStream
from octavo.server.wire import ChatRequest

logger = logging.getLogger(__name__)
router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answers the last message of a conversation."""
    service = service_of(request)
    service.check_available()
    received = await read_body(request, ChatRequest, service.settings.max_body_bytes)
    body = received.content
    service.check_model(body.model)
    body.check()
    prepared = await prepare(lambda: _prepare(service, body), received.num_bytes)
    choices = fan_out(prepared)
    deltas = interleave([service.engine.generate(choice) for choice in choices], len(choices))
    head = {"id": prepared.request_id, "object": "", "created": int(time.time()), "model": body.model}
    if body.stream:
        head["object"] = "chat.completion.chunk"
        return EventStream(_events(deltas, Chunks(head, usage=body.includes_usage), usage=body.includes_usage))
    head["object"] = "chat.completion"
    answer = await unless_client_leaves(collect(deltas, len(choices)), request.receive)
    return JSONResponse(head | _completion(answer))


def _prepare(service: Service, body: ChatRequest) -> engine_request.Request:
    messages = body.template_messages()
    sampling = body.sampling_params(body.max_completion_tokens or body.max_tokens)
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    if service.settings.log_requests:
        logger.info("%s: messages=%r %r", request_id, messages, sampling)
    try:
        return service.engine.input.from_messages(messages, sampling, request_id=request_id, **body.template_kwargs())
    except RequestError as error:
        if error.param == "prompt":
            error.param = "messages"
        raise


def _completion(answer: Answer) -> dict[str, object]:
    choices = [
        {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        for choice in answer.choices
    ]
    return {"choices": choices, "usage": answer.usage.as_json()}


async def _events(
    deltas: AsyncGenerator[ChoiceDelta, None], chunks: Chunks, *, usage: bool
) -> AsyncGenerator[bytes, None]:
    """Of each choice the role, then the text as it comes, then the reason it ended; and the usage if asked for."""
    started: set[int] = set()
    total = Usage()
    async with aclosing(deltas):
        async for item in deltas:
            index, delta = item.index, item.delta
            if index not in started:
                started.add(index)
                yield chunks.choice(_choice(index, {"role": "assistant", "content": ""}))
            if delta.text:
                yield chunks.choice(_TEXT % (index, compact(delta.text)))
            if delta.finish_reason is not None:
                total = total.plus(item)
                yield chunks.choice(_choice(index, {}, delta.finish_reason, delta.stop_reason))
    if usage:
        yield chunks.usage(total)


_TEXT = b'{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":null}'


def _choice(
    index: int, delta: dict[str, str], finish_reason: str | None = None, stop_reason: int | str | None = None
) -> bytes:
    choice: dict[str, object] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    if finish_reason is not None:
        choice["stop_reason"] = stop_reason
    return compact(choice)
