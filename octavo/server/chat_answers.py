"""Answers of /v1/chat/completions, whole and as events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from octavo.chat.plan import ChatPlan
from octavo.chat.reader import ChoiceReader
from octavo.request import OutputDelta
from octavo.server.answers import Answer, Choice, ChoiceDelta, UsageMeter
from octavo.server.chat_parts import delta_of, message_of
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
    plan: ChatPlan

    @property
    def plain(self) -> bool:
        """Whether the text is all that is written of a token."""
        return not self.logprobs and self.prompt_token_ids is None and not self.plan.has_parts


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
    reader = shape.plan.reader()
    parts = [*reader.append(choice.text), *reader.flush()]
    written: dict[str, object] = {
        "index": choice.index,
        "message": message_of(parts, shape.echoed, short_ids=shape.plan.tool_format.short_ids),
        "logprobs": chat_logprobs(choice.logprobs, shape.spelling) if shape.logprobs else None,
        "finish_reason": reader.finish_reason(choice.finish_reason),
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
    readers: defaultdict[int, ChoiceReader] = defaultdict(shape.plan.reader)
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
                for choice in _detailed(item, readers[index], shown[index], shape):
                    yield chunks.choice(choice, usage)
            if delta.finish_reason is not None:
                yield chunks.choice(_last(index, delta, readers[index].finish_reason(delta.finish_reason)), usage)
    if chunks.ends_with_usage:
        yield chunks.usage(meter.usage)


_TEXT = b'{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":null}'


def _first(index: int, shape: ChatShape) -> bytes:
    delta = {"role": "assistant", "content": shape.echoed}
    return compact({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})


def _prompt_of(shape: ChatShape) -> bytes:
    return b"" if shape.prompt_token_ids is None else b',"prompt_token_ids":' + compact(list(shape.prompt_token_ids))


def _detailed(item: ChoiceDelta, reader: ChoiceReader, shown: ShownLogprobs, shape: ChatShape) -> Iterator[bytes]:
    """The parts that a delta makes certain; what is known of its tokens comes with the first, or alone."""
    delta = item.delta
    parts = reader.append(delta.text) + (reader.flush() if delta.finished else [])
    deltas = [delta_of(part, short_ids=shape.plan.tool_format.short_ids) for part in parts]
    logprobs = shown.take(delta) if shape.logprobs else []
    about_tokens: dict[str, object] = {"logprobs": chat_logprobs(logprobs, shape.spelling) if shape.logprobs else None}
    if shape.prompt_token_ids is not None:
        about_tokens["token_ids"] = list(delta.token_ids)
    if not deltas and (logprobs or (delta.token_ids and shape.prompt_token_ids is not None)):
        deltas.append({"content": ""})
    for position, fields in enumerate(deltas):
        about = about_tokens if position == 0 else {"logprobs": None}
        yield compact({"index": item.index, "delta": fields, **about, "finish_reason": None})


def _last(index: int, delta: OutputDelta, finish_reason: str) -> bytes:
    return compact(
        {
            "index": index,
            "delta": {},
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": delta.stop_reason,
        }
    )
