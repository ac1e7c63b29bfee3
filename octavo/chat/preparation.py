"""From a conversation to what the engine needs: the prompt, the rules of the answer, and the plan to read it by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.chat.format import ChatFormat
from octavo.chat.plan import ChatPlan
from octavo.engine.answer_rules import AnswerRules
from octavo.engine.input import InputProcessor
from octavo.engine.truncation import Truncation
from octavo.errors import UnsupportedParameterError
from octavo.reasoning.budget import ReasoningBudget
from octavo.reasoning.markers import ReasoningState, state_after
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.structured_outputs import StructuredOutputsParams
from octavo.tokenizer.chat_messages import flattened, normalized
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.tools.enforceable import enforceable
from octavo.tools.generic_json import with_tools_described
from octavo.tools.tool import ToolChoice


@dataclass(frozen=True, slots=True)
class ChatQuestion:
    """A conversation, and what its answer may and must be.

    The template is told of `tools`; `choice` says which of them the answer may call. `form_param` is what errors call
    the field that asks for `structured`.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: ToolChoice | None = None
    structured: StructuredOutputsParams | None = None
    form_param: str = "structured_outputs"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    continue_final_message: bool = False
    shows_reasoning: bool = True
    thinking_token_budget: int | None = None
    truncation: Truncation | None = None


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A request for the answer, and how to read it."""

    request: Request
    plan: ChatPlan


class ChatPreparer:
    """Prepares chats for a model that writes calls and reasoning in `chat_format`. Raises `RequestError`s."""

    def __init__(self, engine_input: InputProcessor, tokenizer: Tokenizer, chat_format: ChatFormat) -> None:
        self._input = engine_input
        self._tokenizer = tokenizer
        self._format = chat_format

    def render(self, question: ChatQuestion) -> str:
        """The prompt. Tools that the template knows nothing of are described in a message."""
        messages, tools = question.messages, question.tools or None
        if tools and self._format.describes_tools:
            messages, tools = with_tools_described(flattened(normalized(messages)), tools), None
        return self._input.render(
            messages,
            continue_final_message=question.continue_final_message,
            chat_template=question.chat_template,
            tools=tools,
            **question.template_kwargs,
        )

    def prepare(
        self, question: ChatQuestion, sampling: SamplingParams, *, request_id: str | None = None
    ) -> PreparedChat:
        """The request, tokenised and with its rules compiled, which may take some milliseconds."""
        choice = self._enforceable(question.choice)
        prompt = self.render(question)
        plan = self._plan(question, choice, prompt)
        request = self._input.from_rendered(
            prompt,
            self._with_markers_shown(sampling, plan) if plan.marked_by else sampling,
            request_id=request_id,
            truncation=question.truncation,
            rules=self._rules(question, plan, sampling),
        )
        return PreparedChat(replace(request, unstopped=plan.reasoning), plan)

    def _enforceable(self, choice: ToolChoice | None) -> ToolChoice | None:
        """The tools to call, as far as they can be enforced. Raises a `RequestError` naming the tool."""
        if choice is None:
            return None
        check = self._input.compile
        tools = [enforceable(tool, f"tools[{index}]", check) for index, tool in enumerate(choice.tools)]
        return replace(choice, tools=tuple(tools))

    def _plan(self, question: ChatQuestion, choice: ToolChoice | None, prompt: str) -> ChatPlan:
        markers = self._format.reasoning
        return ChatPlan(
            choice=choice,
            tool_format=self._format.tools,
            structured=question.structured,
            markers=markers,
            state=ReasoningState(False, False) if markers is None else state_after(prompt, markers),
            shows_reasoning=question.shows_reasoning,
        )

    def _rules(self, question: ChatQuestion, plan: ChatPlan, sampling: SamplingParams) -> AnswerRules | None:
        """What the answer has to keep to. Tokens whose log probabilities are wanted are sampled one by one."""
        form = plan.form
        budget = self._budget(question, plan)
        if form is None and budget is None:
            return None
        param = "tools" if plan.structured is None else question.form_param
        compiled = None if form is None else self._input.compile(form, param)
        return AnswerRules(compiled, budget, jumps=sampling.logprobs is None)

    def _with_markers_shown(self, sampling: SamplingParams, plan: ChatPlan) -> SamplingParams:
        """Special tokens become text where one of them tells the parts of the answer."""
        token_bytes, special_ids = self._tokenizer.token_bytes, self._tokenizer.special_token_ids
        special = (token_bytes(token_id).decode(errors="replace") for token_id in special_ids)
        shown = any(text in marker for text in special for marker in plan.marked_by)
        return replace(sampling, skip_special_tokens=False) if shown else sampling

    def _budget(self, question: ChatQuestion, plan: ChatPlan) -> ReasoningBudget | None:
        if question.thinking_token_budget is None:
            return None
        if plan.markers is None:
            raise UnsupportedParameterError(
                "thinking_token_budget is not supported: this model has no markers of reasoning (--reasoning-parser)",
                param="thinking_token_budget",
            )
        ending = tuple(self._tokenizer.encode(plan.markers.end, add_special_tokens=False))
        token_bytes = self._tokenizer.token_bytes
        return ReasoningBudget(question.thinking_token_budget, ending, plan.markers, plan.state, token_bytes)
