"""Answers of /v1/completions, whole and as events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from octavo.request import PlacedLogprobs
from octavo.server.answers import Answer, Choice, ChoiceDelta, UsageMeter
from octavo.server.chunks import Chunks, compact
from octavo.server.echo import Echo
from octavo.server.logprobs import PlacedToken, ShownLogprobs, Spelling, completion_logprobs, prompt_logprobs
from octavo.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """What of an answer is written. `echoes` has one entry for each prompt if they are echoed, else none.

    With `drops_output` the prompts are all there is: the one token that had to be computed is left out.
    """

    spelling: Spelling
    choices_per_prompt: int
    logprobs: bool
    prompt_logprobs: bool
    token_ids: bool
    prompts: Sequence[Sequence[int]]
    echoes: Sequence[Echo]
    drops_output: bool

    def echo_of(self, choice: int) -> Echo | None:
        return self.echoes[choice // self.choices_per_prompt] if self.echoes else None

    def prompt_of(self, choice: int) -> Sequence[int]:
        return self.prompts[choice // self.choices_per_prompt]


def completion(answer: Answer, shape: CompletionShape) -> dict[str, object]:
    """The fields of the whole answer but for its head."""
    usage = answer.usage.without_output() if shape.drops_output else answer.usage
    return {"choices": [_whole(choice, answer, shape) for choice in answer.choices], "usage": usage.as_json()}


def _whole(choice: Choice, answer: Answer, shape: CompletionShape) -> dict[str, object]:
    echo = shape.echo_of(choice.index)
    first = answer.choices[choice.index - choice.index % shape.choices_per_prompt]  # the one that scored the prompt
    text = "" if shape.drops_output else choice.text
    written: dict[str, object] = {
        "index": choice.index,
        "text": text if echo is None else echo.text + text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if shape.logprobs:
        tokens = () if shape.drops_output else choice.logprobs
        written["logprobs"] = completion_logprobs(_placed(tokens, echo, first.prompt_logprobs), shape.spelling)
    if shape.prompt_logprobs:
        written["prompt_logprobs"] = prompt_logprobs(first.prompt_logprobs, shape.spelling)
    if shape.token_ids:
        written["token_ids"] = [] if shape.drops_output else list(choice.token_ids)
        written["prompt_token_ids"] = list(shape.prompt_of(choice.index))
    return written


def _placed(tokens: Sequence[PlacedLogprobs], echo: Echo | None, scored: Sequence[TokenLogprobs]) -> list[PlacedToken]:
    """The tokens of an echoed prompt, if any, and of what follows it."""
    if echo is None:
        return [PlacedToken(token.token.token_id, token.text_offset, token.token) for token in tokens]
    known = (None, *scored)
    before = [PlacedToken(*placed) for placed in zip(echo.token_ids, echo.text_offsets, known, strict=True)]
    start = len(echo.text)
    return before + [PlacedToken(token.token.token_id, start + token.text_offset, token.token) for token in tokens]


async def completion_events(
    deltas: AsyncGenerator[ChoiceDelta, None], chunks: Chunks, shape: CompletionShape
) -> AsyncGenerator[bytes, None]:
    """The text as it comes, the last of each choice with the reason it ended; and the usage if asked for."""
    meter = UsageMeter(counts_output=not shape.drops_output)
    writers: defaultdict[int, _ChoiceWriter] = defaultdict(lambda: _ChoiceWriter(shape))
    async with aclosing(deltas):
        async for item in deltas:
            usage = meter.add(item)
            written = writers[item.index].write(item)
            if written is not None:
                yield chunks.choice(written, usage)
    if chunks.ends_with_usage:
        yield chunks.usage(meter.usage)


class _ChoiceWriter:
    """Writes the chunks of one choice."""

    __slots__ = ("_shape", "_shown", "_started")

    def __init__(self, shape: CompletionShape) -> None:
        self._shape = shape
        self._shown = ShownLogprobs()
        self._started = False

    def write(self, item: ChoiceDelta) -> bytes | None:
        """The choice as JSON; None if there is nothing to say."""
        shape, delta = self._shape, item.delta
        echo = None if self._started else shape.echo_of(item.index)
        first, self._started = not self._started, True
        tokens = () if shape.drops_output else self._shown.take(delta)
        text = "" if shape.drops_output else delta.text
        if echo is not None:
            text = echo.text + text
        if not text and not tokens and not delta.finished and not (shape.token_ids and delta.token_ids):
            return None
        choice: dict[str, object] = {
            "index": item.index,
            "text": text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if delta.finished:
            choice["stop_reason"] = delta.stop_reason
        if shape.logprobs:
            choice["logprobs"] = completion_logprobs(self._tokens(item, tokens, echo), shape.spelling)
        if shape.token_ids:
            choice["token_ids"] = [] if shape.drops_output else list(delta.token_ids)
            choice["prompt_token_ids"] = list(shape.prompt_of(item.index)) if first else None
        return compact(choice)

    def _tokens(self, item: ChoiceDelta, tokens: Sequence[PlacedLogprobs], echo: Echo | None) -> list[PlacedToken]:
        echoed = self._shape.echo_of(item.index)
        if echo is not None or echoed is None:
            return _placed(tokens, echo, item.delta.prompt_logprobs)
        start = len(echoed.text)
        return [PlacedToken(token.token.token_id, start + token.text_offset, token.token) for token in tokens]
