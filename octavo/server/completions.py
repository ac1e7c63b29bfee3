"""POST /v1/completions."""

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
from octavo.errors import InvalidValueError
from octavo.server.answers import Answer, ChoiceDelta, Usage, collect, interleave
from octavo.server.body import read_body
from octavo.server.chunks import Chunks, compact
from octavo.server.disconnect import unless_client_leaves
from octavo.server.openapi import json_body
from octavo.server.preparation import prepare
from octavo.server.service import Service, service_of
from octavo.server.sse import EventStream
from octavo.server.wire import CompletionRequest

logger = logging.getLogger(__name__)
router = APIRouter()

_DEFAULT_MAX_TOKENS = 16


@router.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continues one or several prompts; choices i*n to i*n + n - 1 continue prompt i."""
    service = service_of(request)
    service.check_available()
    received = await read_body(request, CompletionRequest, service.settings.max_body_bytes)
    body = received.content
    service.check_model(body.model)
    body.check()
    completion_id = f"cmpl-{uuid.uuid4().hex}"
    prepared = await prepare(lambda: _prepare(service, body, completion_id), received.num_bytes)
    deltas = interleave([service.engine.generate(one) for one in prepared], body.n or 1)
    head = {"id": completion_id, "object": "text_completion", "created": int(time.time()), "model": body.model}
    if body.stream:
        return EventStream(_events(deltas, Chunks(head, usage=body.includes_usage), usage=body.includes_usage))
    answer = await unless_client_leaves(collect(deltas, len(prepared)), request.receive)
    return JSONResponse(head | _completion(answer))


def _prepare(service: Service, body: CompletionRequest, completion_id: str) -> list[engine_request.Request]:
    prompts = body.prompts()
    sampling = body.sampling_params(body.max_tokens or _DEFAULT_MAX_TOKENS)
    _check_number(len(prompts), sampling.n, service.settings.max_choices)
    if service.settings.log_requests:
        logger.info("%s: prompts=%r %r", completion_id, prompts, sampling)
    return [
        choice
        for index, prompt in enumerate(prompts)
        for choice in fan_out(service.engine.input.from_prompt(prompt, sampling, request_id=f"{completion_id}-{index}"))
    ]


def _check_number(num_prompts: int, n: int, max_choices: int) -> None:
    if num_prompts > max_choices:
        raise InvalidValueError(f"prompt has {num_prompts} prompts; at most {max_choices} are allowed", param="prompt")
    if num_prompts * n > max_choices:
        raise InvalidValueError(
            f"n is {n}; with {num_prompts} prompts it may be at most {max_choices // num_prompts}", param="n"
        )


def _completion(answer: Answer) -> dict[str, object]:
    choices = [
        {
            "index": choice.index,
            "text": choice.text,
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
    """The text as it comes, the last of each choice with the reason it ended; and the usage if asked for."""
    total = Usage()
    async with aclosing(deltas):
        async for item in deltas:
            if item.delta.finished:
                total = total.plus(item)
            if item.delta.text or item.delta.finished:
                yield chunks.choice(_choice(item))
    if usage:
        yield chunks.usage(total)


def _choice(item: ChoiceDelta) -> bytes:
    delta = item.delta
    choice = {"index": item.index, "text": delta.text, "logprobs": None, "finish_reason": delta.finish_reason}
    if delta.finished:
        choice["stop_reason"] = delta.stop_reason
    return compact(choice)
