"""Request bodies as they come over the wire. They exist at this edge only; what goes on is a `Request`.

Fields that are known but not acted on are in unsupported.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from octavo.errors import InvalidValueError, UnsupportedParameterError
from octavo.sampling_params import SamplingParams
from octavo.server import unsupported

_INT64 = 2**63

T = TypeVar("T")
# Checked up to the first bad item only: an error for each of a million would take minutes.
Array = Annotated[list[T], Field(fail_fast=True)]
TokenIds = Array[int]
Stop = str | Array[str] | None
Seed = Annotated[int, Field(ge=-_INT64, lt=_INT64)]

# Names that the chat template's caller sets itself.
_RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "conversation",
        "documents",
        "messages",
        "request_id",
        "sampling",
        "self",
        "tokenize",
        "tools",
    }
)


class WireModel(BaseModel):
    """Keeps undeclared fields, so that they can be refused by name."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, hide_input_in_errors=True)

    def undeclared(self) -> Mapping[str, Any]:
        return self.model_extra or {}


class StreamOptions(WireModel):
    include_usage: bool | None = None


class SamplingFields(WireModel):
    """What both endpoints accept. Null means the same as leaving a field out."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: Seed | None = None
    stop: Stop = None
    n: int | None = None

    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    def check_stream_options(self) -> None:
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidValueError("stream_options may be given only with stream=true", param="stream_options")
        unsupported.check_undeclared(self.stream_options.undeclared(), unsupported.STREAM_OPTIONS, "stream_options")

    def sampling_params(self, max_tokens: int | None) -> SamplingParams:
        """Raises `InvalidValueError` for a value out of range. OpenAI's defaults are those of `SamplingParams`."""
        given = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "min_tokens": self.min_tokens,
            "n": self.n,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop,
            "stop_token_ids": self.stop_token_ids,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
        }
        set_fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(seed=self.seed, max_tokens=max_tokens, **set_fields)


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: str | Array[str] | TokenIds | Array[TokenIds]

    def check(self) -> None:
        """Raises a `RequestError` for what the types cannot say."""
        unsupported.check_undeclared(self.undeclared(), unsupported.COMPLETION)
        self.check_stream_options()

    def prompts(self) -> list[str | TokenIds]:
        """One prompt or several, as several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidValueError("prompt is empty; it must have at least one token", param="prompt")
        if isinstance(self.prompt[0], int):
            return [[token_id for token_id in self.prompt if isinstance(token_id, int)]]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]


class ContentPart(WireModel):
    type: str
    text: str | None = None


class ChatMessage(WireModel):
    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | Array[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[Array[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises a `RequestError` for what the types cannot say."""
        unsupported.check_undeclared(self.undeclared(), unsupported.CHAT)
        self.check_stream_options()
        reserved = _RESERVED_TEMPLATE_KWARGS.intersection(self.chat_template_kwargs or {})
        if reserved:
            raise InvalidValueError(
                f"chat_template_kwargs must not set {min(reserved)!r}", param="chat_template_kwargs"
            )

    def template_messages(self) -> list[dict[str, str]]:
        """The conversation as chat templates know it: text only, and OpenAI's developer is everybody else's system."""
        return [_template_message(message, f"messages[{i}]") for i, message in enumerate(self.messages)]

    def template_kwargs(self) -> dict[str, Any]:
        return {"add_generation_prompt": self.add_generation_prompt is not False, **(self.chat_template_kwargs or {})}


def _template_message(message: ChatMessage, path: str) -> dict[str, str]:
    unsupported.check_undeclared(message.undeclared(), unsupported.MESSAGE, path)
    role = "system" if message.role == "developer" else message.role
    converted = {"role": role, "content": _text(message, path)}
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
    unsupported.check_undeclared(part.undeclared(), unsupported.CONTENT_PART, path)
    if part.text is None:
        raise InvalidValueError(f"{path}.text is missing", param=f"{path}.text")
    return part.text
