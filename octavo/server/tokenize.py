"""POST /tokenize, /detokenize and /v1/chat/completions/render: what becomes of a text before the model sees it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from octavo.errors import InvalidValueError
from octavo.server.body import read_body
from octavo.server.chat_preparation import preparer_for, question_of
from octavo.server.chat_wire import ChatMessage, ChatRequest
from octavo.server.logprobs import Spelling
from octavo.server.openapi import json_body
from octavo.server.preparation import prepare
from octavo.server.service import Service, service_of
from octavo.server.tool_wire import ToolDefinition
from octavo.server.wire import Array, TokenIds, WireModel

router = APIRouter()


class TokenizeRequest(WireModel):
    """A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Array[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Array[ToolDefinition] | None = None

    def check(self) -> None:
        """Raises `InvalidValueError` for what the types cannot say; a conversation is checked as a chat."""
        for name in self.undeclared():
            raise InvalidValueError(f"{name[:200]} is not a known field", param=name[:200], code="unknown_parameter")
        if (self.prompt is None) == (self.messages is None):
            raise InvalidValueError("there must be either prompt or messages", param="prompt")

    def as_chat(self) -> ChatRequest:
        """The conversation as the chat endpoint would get it."""
        return ChatRequest(
            model=self.model or "",
            messages=self.messages or [],
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
            tools=self.tools,
        )


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: TokenIds


@router.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """The token ids of a text, or of a conversation as the chat template writes it."""
    service = service_of(request)
    received = await read_body(request, TokenizeRequest, service.settings.max_body_bytes)
    body = received.content
    if body.model is not None:
        service.check_model(body.model)
    body.check()
    token_ids = await prepare(lambda: _tokenize(service, body), received.num_bytes)
    spelling = Spelling(service.engine.tokenizer)
    return JSONResponse(
        {
            "count": len(token_ids),
            "max_model_len": service.engine.config.max_model_len,
            "tokens": token_ids,
            "token_strs": [spelling.text(token_id) for token_id in token_ids] if body.return_token_strs else None,
        }
    )


def _tokenize(service: Service, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        adds = body.add_special_tokens is not False
        return service.engine.tokenizer.encode(body.prompt, add_special_tokens=adds)
    chat = body.as_chat()
    chat.check(strict=True, trusts_templates=service.settings.trust_request_chat_template)
    return service.engine.tokenizer.encode_rendered(_render(service, chat))


@router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    service = service_of(request)
    received = await read_body(request, DetokenizeRequest, service.settings.max_body_bytes)
    body = received.content
    if body.model is not None:
        service.check_model(body.model)
    token_ids = service.engine.input.checked_token_ids(body.tokens, "tokens")
    tokenizer = service.engine.tokenizer
    text = await prepare(lambda: tokenizer.decode(token_ids, skip_special_tokens=False), received.num_bytes)
    return JSONResponse({"prompt": text})


@router.post("/v1/chat/completions/render", openapi_extra=json_body(ChatRequest))
async def render(request: Request) -> Response:
    """The prompt that the same body would have answered, as text and as token ids."""
    service = service_of(request)
    received = await read_body(request, ChatRequest, service.settings.max_body_bytes)
    body = received.content
    service.check_model(body.model)
    settings = service.settings
    body.check(strict=settings.strict_fields, trusts_templates=settings.trust_request_chat_template)
    text = await prepare(lambda: _render(service, body), received.num_bytes)
    token_ids = await prepare(lambda: service.engine.tokenizer.encode_rendered(text), received.num_bytes)
    return JSONResponse({"prompt": text, "prompt_token_ids": token_ids, "count": len(token_ids)})


def _render(service: Service, body: ChatRequest) -> str:
    return preparer_for(service, body).render(question_of(body, strict=service.settings.strict_fields))
