"""From a chat request to what the engine needs: the prompt, the rules of the answer, and the plan to read it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo.engine.answer_rules import AnswerRules
from octavo.errors import UnsupportedParameterError
from octavo.reasoning.budget import ReasoningBudget
from octavo.reasoning.markers import ReasoningState, state_after
from octavo.sampling_params import SamplingParams
from octavo.server.chat_plan import ChatPlan
from octavo.server.chat_wire import ChatRequest
from octavo.server.service import Service
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.tools.enforceable import enforceable
from octavo.tools.generic_json import with_tools_described
from octavo.tools.tool import ToolChoice


def tools_to_call(service: Service, body: ChatRequest) -> ToolChoice | None:
    """The tools that the answer may call, as far as they can be enforced. Raises a `RequestError` naming the tool."""
    choice = body.choice_of_tools(strict=service.settings.strict_fields)
    if choice is None:
        return None
    check = service.engine.input.compile
    tools = [enforceable(tool, f"tools[{index}]", check) for index, tool in enumerate(choice.tools)]
    return replace(choice, tools=tuple(tools))


def render_chat(service: Service, body: ChatRequest, messages: Sequence[dict[str, Any]]) -> str:
    """The prompt. Tools that the template knows nothing of are described in a message."""
    tools = body.rendered_tools()
    if tools and service.chat_format(body.chat_template).describes_tools:
        messages, tools = with_tools_described(messages, tools), None
    return service.engine.input.render(
        messages,
        continue_final_message=body.continue_final_message is True,
        chat_template=body.chat_template,
        tools=tools,
        **body.template_kwargs(),
    )


def plan_of(service: Service, body: ChatRequest, choice: ToolChoice | None, prompt: str) -> ChatPlan:
    """What the request makes of its answer. Raises a `RequestError` for a form that is malformed."""
    chat_format = service.chat_format(body.chat_template)
    markers = chat_format.reasoning
    return ChatPlan(
        choice=choice,
        tool_format=chat_format.tools,
        structured=body.form_params(strict=service.settings.strict_fields),
        markers=markers,
        state=ReasoningState(False, False) if markers is None else state_after(prompt, markers),
        shows_reasoning=body.include_reasoning is not False,
    )


def rules_of(service: Service, body: ChatRequest, plan: ChatPlan, sampling: SamplingParams) -> AnswerRules | None:
    """What the answer has to keep to. Tokens whose log probabilities are wanted are sampled one by one."""
    form = plan.form
    budget = _budget(service, body, plan)
    if form is None and budget is None:
        return None
    param = "tools" if plan.structured is None else body.name_of(plan.structured.param)
    compiled = None if form is None else service.engine.input.compile(form, param)
    return AnswerRules(compiled, budget, jumps=sampling.logprobs is None)


def with_markers_shown(sampling: SamplingParams, plan: ChatPlan, tokenizer: Tokenizer) -> SamplingParams:
    """Special tokens become text where one of them tells the parts of the answer."""
    special = (tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in tokenizer.special_token_ids)
    shown = any(text in marker for text in special for marker in plan.marked_by)
    return replace(sampling, skip_special_tokens=False) if shown else sampling


def _budget(service: Service, body: ChatRequest, plan: ChatPlan) -> ReasoningBudget | None:
    if body.thinking_token_budget is None:
        return None
    if plan.markers is None:
        raise UnsupportedParameterError(
            "thinking_token_budget is not supported: this model has no markers of reasoning (--reasoning-parser)",
            param="thinking_token_budget",
        )
    tokenizer = service.engine.tokenizer
    ending = tuple(tokenizer.encode(plan.markers.end, add_special_tokens=False))
    return ReasoningBudget(body.thinking_token_budget, ending, plan.markers, plan.state, tokenizer.token_bytes)
