"""Answers of /v1/chat/completions, whole and as events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from octavo.request import OutputDelta, PlacedLogprobs
from octavo.server.answers import Answer, Choice, ChoiceDelta, UsageMeter
from octavo.server.chunks import Chunks, compact
from octavo.server.logprobs import ShownLogprobs, Spelling, chat_logprobs, prompt_logprobs


@dataclass(frozen=True, slots=True)
class ChatShape:
    """What of an answer is written. `echoed` text comes before it; token ids only if `prompt_token_ids` are given."""

    spelling: Spelling
    logprobs: bool
    prompt_logprobs: bool
    echoed: str
    prompt_token_ids: Sequence[int] | None

    @property
    def plain(self) -> bool:
        """Whether the text is all that is written of a token."""
        return not self.logprobs and self.prompt_token_ids is None


def chat_completion(answer: Answer, shape: ChatShape) -> dict[str, object]:
    """The fields of the whole answer but for its head."""
    body: dict[str, object] = {
        "choices": [_choice(choice, shape) for choice in answer.choices],
        "usage": answer.usage.as_json(),
    }
    if shape.prompt_logprobs:
        body["prompt_logprobs"] = prompt_logprobs(answer.choices[0].prompt_logprobs, shape.spelling)
    if shape.prompt_token_ids is not None:
        body["prompt_token_ids"] = list(shape.prompt_token_ids)
    return body


def _choice(choice: Choice, shape: ChatShape) -> dict[str, object]:
    written: dict[str, object] = {
        "index": choice.index,
        "message": {"role": "assistant", "content": shape.echoed + choice.text, "refusal": None},
        "logprobs": chat_logprobs(choice.logprobs, shape.spelling) if shape.logprobs else None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if shape.prompt_token_ids is not None:
        written["token_ids"] = list(choice.token_ids)
    return written


async def chat_events(
    deltas: AsyncGenerator[ChoiceDelta, None], chunks: Chunks, shape: ChatShape
) -> AsyncGenerator[bytes, None]:
    """Of each choice the role, then the text as it comes, then the reason it ended; and the usage if asked for."""
    started: set[int] = set()
    meter = UsageMeter()
    shown: defaultdict[int, ShownLogprobs] = defaultdict(ShownLogprobs)
    async with aclosing(deltas):
        async for item in deltas:
            index, delta = item.index, item.delta
            usage = meter.add(item)
            if index not in started:
                yield chunks.choice(_first(index, shape), usage, _prompt_of(shape) if not started else b"")
                started.add(index)
            if shape.plain:
                if delta.text:
                    yield chunks.choice(_TEXT % (index, compact(delta.text)), usage)
            else:
                logprobs = shown[index].take(delta)
                if delta.text or delta.token_ids or logprobs:
                    yield chunks.choice(_detailed(index, delta, logprobs, shape), usage)
            if delta.finish_reason is not None:
                yield chunks.choice(_last(index, delta), usage)
    if chunks.ends_with_usage:
        yield chunks.usage(meter.usage)


_TEXT = b'{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":null}'


def _first(index: int, shape: ChatShape) -> bytes:
    delta = {"role": "assistant", "content": shape.echoed}
    return compact({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})


def _prompt_of(shape: ChatShape) -> bytes:
    return b"" if shape.prompt_token_ids is None else b',"prompt_token_ids":' + compact(list(shape.prompt_token_ids))


def _detailed(index: int, delta: OutputDelta, logprobs: Sequence[PlacedLogprobs], shape: ChatShape) -> bytes:
    choice: dict[str, object] = {
        "index": index,
        "delta": {"content": delta.text},
        "logprobs": chat_logprobs(logprobs, shape.spelling) if shape.logprobs else None,
        "finish_reason": None,
    }
    if shape.prompt_token_ids is not None:
        choice["token_ids"] = list(delta.token_ids)
    return compact(choice)


def _last(index: int, delta: OutputDelta) -> bytes:
    return compact(
        {
            "index": index,
            "delta": {},
            "logprobs": None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
    )
