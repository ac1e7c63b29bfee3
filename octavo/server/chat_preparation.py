"""From the body of a chat request to the question that it asks."""

from __future__ import annotations

from octavo.chat.preparation import ChatPreparer, ChatQuestion
from octavo.server.chat_wire import ChatRequest
from octavo.server.service import Service


def preparer_for(service: Service, body: ChatRequest) -> ChatPreparer:
    """For the model's own template, or that of the body."""
    return ChatPreparer(service.engine.input, service.engine.tokenizer, service.chat_format(body.chat_template))


def question_of(body: ChatRequest, *, strict: bool) -> ChatQuestion:
    """Raises a `RequestError` for what is malformed; `strict` refuses fields that nobody knows."""
    choice = body.choice_of_tools(strict=strict)
    structured = body.form_params(strict=strict)
    return ChatQuestion(
        messages=body.template_messages(),
        tools=body.rendered_tools() or (),
        choice=choice,
        structured=structured,
        form_param="" if structured is None else body.name_of(structured.param),
        template_kwargs=body.template_kwargs(),
        chat_template=body.chat_template,
        continue_final_message=body.continue_final_message is True,
        shows_reasoning=body.include_reasoning is not False,
        thinking_token_budget=body.thinking_token_budget,
        truncation=body.truncation,
    )
