"""POST /v1/chat/completions."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from octavo import request as engine_request
from octavo.chat.plan import ChatPlan
from octavo.chat.preparation import PreparedChat
from octavo.errors import RequestError
from octavo.reasoning.count import ReasoningCount
from octavo.server.answers import collect, stream_choices, with_reasoning_counted
from octavo.server.body import read_body
from octavo.server.chat_answers import ChatShape, chat_completion, chat_events
from octavo.server.chat_preparation import preparer_for, question_of
from octavo.server.chat_wire import ChatRequest
from octavo.server.chunks import Chunks
from octavo.server.disconnect import unless_client_leaves
from octavo.server.logprobs import Spelling
from octavo.server.openapi import json_body
from octavo.server.preparation import prepare
from octavo.server.service import Service, service_of
from octavo.server.sse import EventStream
from octavo.server.stream_interval import in_pieces_of
from octavo.server.terms import Terms

logger = logging.getLogger(__name__)
router = APIRouter()

# How the endpoint calls what the engine names in an error.
_FIELDS = {"prompt": "messages", "logprobs": "top_logprobs"}


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answers the last message of a conversation."""
    service = service_of(request)
    service.check_available()
    received = await read_body(request, ChatRequest, service.settings.max_body_bytes)
    body = received.content
    service.check_model(body.model)
    settings = service.settings
    body.check(strict=settings.strict_fields, trusts_templates=settings.trust_request_chat_template)
    service.check_queue()
    terms = service.terms_of(request, body)
    compiles = body.form_field is not None or bool(body.tools)
    chat = await prepare(lambda: _prepare(service, body, terms), received.num_bytes, compiles=compiles)
    prepared, plan = chat.request, chat.plan
    service.check_queue([prepared])
    deltas = stream_choices(service.engine, [prepared])
    if plan.markers is not None:
        deltas = with_reasoning_counted(deltas, lambda: _reasoning_count(service, plan))
    if body.stream and body.stream_interval is not None:
        deltas = in_pieces_of(body.stream_interval, deltas)
    head = service.head(prepared.request_id, "chat.completion.chunk" if body.stream else "chat.completion", body)
    shape = _shape(service, body, prepared, plan)
    if body.stream:
        chunks = Chunks(head, usage=body.includes_usage, continuous=body.counts_continuously)
        return EventStream(chat_events(deltas, chunks, shape), service.settings.ping_interval_s)
    answer = await unless_client_leaves(collect(deltas, prepared.sampling), request.receive)
    return JSONResponse(head | chat_completion(answer, shape))


def _shape(service: Service, body: ChatRequest, prepared: engine_request.Request, plan: ChatPlan) -> ChatShape:
    return ChatShape(
        Spelling(service.engine.tokenizer, as_ids=body.return_tokens_as_token_ids is True),
        logprobs=body.logprobs is True,
        prompt_logprobs=body.prompt_logprobs is not None,
        echoed=body.echoed,
        prompt_token_ids=prepared.prompt_token_ids if body.return_token_ids else None,
        plan=plan,
    )


def _reasoning_count(service: Service, plan: ChatPlan) -> ReasoningCount:
    assert plan.markers is not None
    return ReasoningCount(plan.markers, plan.state, service.engine.tokenizer.token_bytes)


def _prepare(service: Service, body: ChatRequest, terms: Terms) -> PreparedChat:
    max_tokens = body.max_completion_tokens or body.max_tokens or service.default_max_tokens
    sampling = body.sampling_params(max_tokens, service.sampling_defaults, logprobs=body.num_logprobs)
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    try:
        question = question_of(body, strict=service.settings.strict_fields)
        if service.settings.log_requests:
            logger.info("%s: messages=%r %r", request_id, question.messages, sampling)
        chat = preparer_for(service, body).prepare(question, sampling, request_id=request_id)
        return replace(chat, request=terms.applied_to(chat.request))
    except RequestError as error:
        raise body.renamed(_as_chats_call_it(error)) from None


def _as_chats_call_it(error: RequestError) -> RequestError:
    name = _FIELDS.get(error.param or "")
    if name is None:
        return error
    message = str(error)
    if message.startswith(f"{error.param} is "):
        message = name + message.removeprefix(error.param or "")
    return type(error)(message, param=name, code=error.code)
