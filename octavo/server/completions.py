"""POST /v1/completions."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from octavo import request as engine_request
from octavo.engine.answer_rules import AnswerRules
from octavo.errors import InvalidValueError, RequestError
from octavo.grammar.definition import form_of
from octavo.sampling_params import SamplingParams
from octavo.server.answers import collect, stream_choices
from octavo.server.body import read_body
from octavo.server.chunks import Chunks
from octavo.server.completion_answers import CompletionShape, completion, completion_events
from octavo.server.completion_wire import CompletionRequest
from octavo.server.disconnect import unless_client_leaves
from octavo.server.echo import echo_of
from octavo.server.logprobs import Spelling
from octavo.server.openapi import json_body
from octavo.server.preparation import prepare
from octavo.server.service import Service, service_of
from octavo.server.sse import EventStream
from octavo.server.stream_interval import in_pieces_of
from octavo.server.terms import Terms

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
    body.check(strict=service.settings.strict_fields)
    completion_id = f"cmpl-{uuid.uuid4().hex}"
    service.check_queue()
    terms = service.terms_of(request, body)
    compiles = body.form_field is not None
    try:
        prepared = await prepare(
            lambda: _prepare(service, body, completion_id, terms), received.num_bytes, compiles=compiles
        )
    except RequestError as error:
        raise body.renamed(error) from None
    service.check_queue(prepared)
    deltas = stream_choices(service.engine, prepared)
    if body.stream and body.stream_interval is not None:
        deltas = in_pieces_of(body.stream_interval, deltas)
    head = service.head(completion_id, "text_completion", body)
    shape = _shape(service, body, prepared)
    if body.stream:
        chunks = Chunks(head, usage=body.includes_usage, continuous=body.counts_continuously)
        return EventStream(completion_events(deltas, chunks, shape), service.settings.ping_interval_s)
    answer = await unless_client_leaves(collect(deltas, prepared[0].sampling), request.receive)
    return JSONResponse(head | completion(answer, shape))


def _shape(service: Service, body: CompletionRequest, prepared: list[engine_request.Request]) -> CompletionShape:
    tokenizer = service.engine.tokenizer
    return CompletionShape(
        Spelling(tokenizer, as_ids=body.return_tokens_as_token_ids is True),
        choices_per_prompt=body.n or 1,
        logprobs=body.logprobs is not None,
        prompt_logprobs=body.prompt_logprobs is not None,
        token_ids=body.return_token_ids is True,
        prompts=[one.prompt_token_ids for one in prepared],
        echoes=[echo_of(one, tokenizer) for one in prepared] if body.echo else (),
        drops_output=body.max_tokens == 0,
    )


def _prepare(
    service: Service, body: CompletionRequest, completion_id: str, terms: Terms
) -> list[engine_request.Request]:
    prompts = body.prompts()
    max_tokens = max(1, body.max_tokens) if body.max_tokens is not None else service.default_max_tokens
    sampling = body.sampling_params(
        max_tokens or _DEFAULT_MAX_TOKENS, service.sampling_defaults, logprobs=body.logprobs
    )
    if body.echo and body.logprobs is not None:
        sampling = replace(sampling, prompt_logprobs=body.logprobs)
    _check_number(len(prompts), sampling.num_samples, service.settings.max_choices)
    if service.settings.log_requests:
        logger.info("%s: prompts=%r %r", completion_id, prompts, sampling)
    rules = _rules(service, body, sampling)
    return [
        terms.applied_to(
            service.engine.input.from_prompt(
                prompt,
                sampling,
                request_id=f"{completion_id}-{index}",
                suffix=body.suffix,
                truncation=body.truncation,
                add_special_tokens=body.add_special_tokens is not False,
                rules=rules,
            )
        )
        for index, prompt in enumerate(prompts)
    ]


def _rules(service: Service, body: CompletionRequest, sampling: SamplingParams) -> AnswerRules | None:
    params = body.form_params(strict=service.settings.strict_fields)
    if params is None:
        return None
    form = service.engine.input.compile(form_of(params), body.name_of(params.param))
    return AnswerRules(form, jumps=sampling.logprobs is None)


def _check_number(num_prompts: int, num_samples: int, max_choices: int) -> None:
    if num_prompts > max_choices:
        raise InvalidValueError(f"prompt has {num_prompts} prompts; at most {max_choices} are allowed", param="prompt")
    if num_prompts * num_samples > max_choices:
        raise InvalidValueError(
            f"n or best_of is {num_samples}; with {num_prompts} prompts it may be at most {max_choices // num_prompts}",
            param="n",
        )
