"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from octavo.errors import InvalidValueError
from octavo.server import unsupported
from octavo.server.structured_wire import StructuredFields
from octavo.server.wire import Array, TokenIds


class CompletionRequest(StructuredFields):
    """The body of POST /v1/completions."""

    prompt: str | Array[str] | TokenIds | Array[TokenIds]
    suffix: str | None = None
    logprobs: Annotated[int, Field(ge=-1)] | None = None
    add_special_tokens: bool | None = None

    def check(self, *, strict: bool) -> None:
        """Raises a `RequestError` for what the types cannot say."""
        unsupported.check_undeclared(self.undeclared(), unsupported.COMPLETION, strict=strict)
        self.check_streaming(strict=strict)
        if self.max_tokens == 0 and not self.echo:
            raise InvalidValueError("max_tokens is 0; it must be at least 1, unless echo is true", param="max_tokens")
        if self.suffix and self.echo:
            raise InvalidValueError("echo cannot be had together with suffix", param="echo")
        if self.echo and self.logprobs is not None and self.stream and (self.n or 1) > 1:
            raise InvalidValueError("echo with logprobs cannot be streamed for n above 1", param="echo")

    def prompts(self) -> list[str | TokenIds]:
        """One prompt or several, as several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidValueError("prompt is empty; it must have at least one token", param="prompt")
        if isinstance(self.prompt[0], int):
            return [[token_id for token_id in self.prompt if isinstance(token_id, int)]]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]
