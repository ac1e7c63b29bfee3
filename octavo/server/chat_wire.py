"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.errors import InvalidValueError, UnsupportedParameterError
from octavo.server import unsupported
from octavo.server.structured_wire import StructuredFields
from octavo.server.tool_wire import ToolCall, ToolDefinition, rendered, rendered_call, tools_of
from octavo.server.wire import Array, WireModel
from octavo.tools.choice import choice_of
from octavo.tools.tool import ToolChoice

# Names that the chat template's caller sets itself.
_RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "request_id",
        "sampling",
        "self",
        "tokenize",
        "tools",
        "truncation",
    }
)


class ContentPart(WireModel):
    type: str
    text: str | None = None


class ChatMessage(WireModel):
    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | Array[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Array[ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def check(self, path: str, *, strict: bool) -> None:
        unsupported.check_undeclared(self.undeclared(), unsupported.MESSAGE, path, strict=strict)
        for i, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if part.type == "text":
                unsupported.check_undeclared(
                    part.undeclared(), unsupported.CONTENT_PART, f"{path}.content[{i}]", strict=strict
                )


class ChatRequest(StructuredFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[Array[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=-1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Array[ToolDefinition] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None

    @property
    def gives_max_tokens(self) -> bool:
        return self.max_tokens is not None or self.max_completion_tokens is not None

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self, *, strict: bool, trusts_templates: bool) -> None:
        """Raises a `RequestError` for what the types cannot say."""
        unsupported.check_undeclared(self.undeclared(), unsupported.CHAT, strict=strict)
        for i, message in enumerate(self.messages):
            message.check(f"messages[{i}]", strict=strict)
        self.check_streaming(strict=strict)
        if self.max_tokens == 0:
            raise InvalidValueError("max_tokens is 0; it must be at least 1", param="max_tokens")
        if self.top_logprobs and not self.logprobs:
            raise InvalidValueError("top_logprobs may be given only with logprobs=true", param="top_logprobs")
        check_template_source(self.chat_template, trusts_templates)
        self._check_final_message()
        reserved = _RESERVED_TEMPLATE_KWARGS.intersection(self.chat_template_kwargs or {})
        if reserved:
            raise InvalidValueError(
                f"chat_template_kwargs must not set {min(reserved)!r}", param="chat_template_kwargs"
            )

    def _check_final_message(self) -> None:
        if not self.continue_final_message:
            return
        if self.add_generation_prompt:
            raise InvalidValueError(
                "continue_final_message and add_generation_prompt cannot both be true", param="continue_final_message"
            )
        if not self.messages[-1].content:
            raise InvalidValueError(
                "continue_final_message is true, but the last message has no content", param="continue_final_message"
            )

    @property
    def echoed(self) -> str:
        """What `echo` puts before the answer: the last message, if the answer continues in its role."""
        last = self.messages[-1]
        return _text(last, "") if self.echo and last.role == "assistant" else ""

    def choice_of_tools(self, *, strict: bool) -> ToolChoice | None:
        """The tools that the answer may call; None if it may call none. Raises a `RequestError`."""
        tools = tools_of(self.tools or (), strict=strict)
        return choice_of(self.tool_choice, tools, several=self.parallel_tool_calls is not False)

    def rendered_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the template is told of."""
        return rendered(self.tools) if self.tools and self.tool_choice != "none" else None

    def template_messages(self) -> list[dict[str, Any]]:
        """The conversation as chat templates know it: text only, and OpenAI's developer is everybody else's system."""
        return [_template_message(message, f"messages[{i}]") for i, message in enumerate(self.messages)]

    def template_kwargs(self) -> dict[str, Any]:
        """What goes to the template besides the messages."""
        generates = self.add_generation_prompt is not False and not self.continue_final_message
        reasoning: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            reasoning = {"reasoning_effort": self.reasoning_effort}
        if self.reasoning_effort == "none":
            reasoning["enable_thinking"] = False
        return {"add_generation_prompt": generates, **reasoning, **(self.chat_template_kwargs or {})}


def check_template_source(chat_template: str | None, trusts_templates: bool) -> None:
    """Raises `UnsupportedParameterError` for a template where none is taken."""
    if chat_template is not None and not trusts_templates:
        raise UnsupportedParameterError(
            "chat_template is not taken from requests; --trust-request-chat-template allows it", param="chat_template"
        )


def _template_message(message: ChatMessage, path: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    converted: dict[str, Any] = {"role": role, "content": _text(message, path)}
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        converted["reasoning_content"] = reasoning
    if message.tool_calls:
        converted["tool_calls"] = [rendered_call(call) for call in message.tool_calls]
    if message.name is not None:
        converted["name"] = message.name
    if message.tool_call_id is not None:
        converted["tool_call_id"] = message.tool_call_id
    return converted


def _text(message: ChatMessage, path: str) -> str:
    if message.content is None:
        if message.role != "assistant":
            raise InvalidValueError(f"{path}.content is missing", param=f"{path}.content")
        return ""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(_part_text(part, f"{path}.content[{i}]") for i, part in enumerate(message.content))


def _part_text(part: ContentPart, path: str) -> str:
    if part.type != "text":
        raise UnsupportedParameterError(
            f"{path} has type {part.type[:50]!r}; this model reads parts of type 'text' only", param=path
        )
    if part.text is None:
        raise InvalidValueError(f"{path}.text is missing", param=f"{path}.text")
    return part.text
