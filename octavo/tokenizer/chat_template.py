"""Chat templates: from a conversation to the prompt its model was trained on.

Templates are untrusted code from model files, written against the Jinja environment of transformers; this one has the
same language (block trimming, `break` and `continue`, `generation` blocks, plain `tojson`) and the same sandbox.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import ChatTemplateError
from octavo.tokenizer.chat_messages import flattened, normalized, split_into_parts

MAX_PROMPT_CHARACTERS = 64 << 20
MAX_RENDER_S = 10.0


class ChatTemplate:
    """A compiled template. `variables` are what it sees besides the conversation: `bos_token`, `eos_token`.

    A template that does not compile is no error until it is used, so that such a model still completes plain text.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self._variables = dict(variables)
        self._error: str | None = None
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            self._error = f"the model's chat template does not compile: line {error.lineno}: {error.message}"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt. Messages are as in the OpenAI API; `variables` add to what the template sees.

        Raises `ChatTemplateError` with the template's own message where it refuses or fails, `InvalidValueError` for
        messages that are malformed.
        """
        conversation = normalized(messages)
        shape = self._content_shape
        if not shape.takes_parts:
            conversation = flattened(conversation)
        elif not shape.takes_text:
            conversation = split_into_parts(conversation)
        return self._render(
            conversation, **variables, add_generation_prompt=add_generation_prompt, tools=list(tools) if tools else None
        )

    @cached_property
    def _content_shape(self) -> _ContentShape:
        """Found by trial: a form is taken if its text arrives, and lists if they give the prompt that text gives."""
        probe = "octavo probe"
        as_text = self._try([{"role": "user", "content": probe}])
        as_parts = self._try([{"role": "user", "content": [{"type": "text", "text": probe}]}])
        takes_text = as_text is not None and probe in as_text
        takes_parts = as_parts is not None and (as_parts == as_text if takes_text else probe in as_parts)
        return _ContentShape(takes_text, takes_parts)

    def _try(self, conversation: list[dict[str, Any]]) -> str | None:
        try:
            return self._render(conversation, add_generation_prompt=False, tools=None)
        except ChatTemplateError:
            return None

    def _render(self, conversation: list[dict[str, Any]], **variables: Any) -> str:
        if self._error is not None:
            raise ChatTemplateError(self._error, param="messages")
        seen = {"documents": None, **self._variables, **variables, "messages": conversation}
        try:
            return _bounded(self._template, seen)
        except ChatTemplateError:
            raise
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error}", param="messages") from error
        except Exception as error:
            # A template is a program: on messages it did not expect it may fail in any way Python can.
            raise ChatTemplateError(
                f"the chat template failed on the messages: {type(error).__name__}: {error}", param="messages"
            ) from error


@dataclass(frozen=True, slots=True)
class _ContentShape:
    """Whether a template takes the content of a message as text, and as a list of parts."""

    takes_text: bool
    takes_parts: bool


def _bounded(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Renders, giving up on a template that writes without end."""
    deadline = time.monotonic() + MAX_RENDER_S
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_PROMPT_CHARACTERS:
            raise ChatTemplateError(f"the chat template wrote more than {MAX_PROMPT_CHARACTERS} characters")
        if time.monotonic() > deadline:
            raise ChatTemplateError(f"the chat template wrote for more than {MAX_RENDER_S:g} s")
    return "".join(pieces)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here its content is simply part of the text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> str:
        return str(caller())


class _Namespace(jinja2.utils.Namespace):
    """Jinja's `namespace`, refusing names that lead into Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no parameter named self, so that a template may set that name
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _require_plain_name(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_plain_name(name)
        super().__setitem__(name, value)


def _require_plain_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace attribute may not begin with an underscore: {name!r}")


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, and nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it: Jinja's own filter would escape what HTML needs escaped."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


_ENVIRONMENT = _environment()
