"""Servers over real models, and what their answers say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config import EngineArgs
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine
from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.live import Answer, Server, serving

QUESTION = "Name three rivers in Europe."
BEGINNING = "The capital of France is"
_SMALL = {"max_model_len": 1024, "kv_cache_memory_bytes": 64 * 2**20, "max_num_seqs": 16}


@contextmanager
def serve_model(path: Path, settings: ServerSettings | None = None, **engine_args: Any) -> Iterator[Server]:
    """A server of `path`, small enough to start quickly."""
    totals = EngineTotals()
    engine = AsyncEngine(build_engine(EngineArgs(str(path), **(_SMALL | engine_args)), listeners=(totals,)))
    with serving(engine, settings or ServerSettings(("model",)), totals) as server:
        yield server


@dataclass(frozen=True)
class Said:
    """What an answer says, however it came."""

    text: str
    finish_reason: str
    stop_reason: int | str | None
    num_tokens: int


def said(server: Server, endpoint: str, **fields: Any) -> Said:
    """One answer at temperature 0, asked for whole and as a stream, which must agree."""
    fields = {"temperature": 0, **fields}
    whole = whole_answer(ask(server, endpoint, **fields))
    streamed = streamed_answer(ask(server, endpoint, stream=True, stream_options={"include_usage": True}, **fields))
    assert whole == streamed
    return whole


def ask(server: Server, endpoint: str, **fields: Any) -> Answer:
    if endpoint == "chat":
        answer = server.chat(**{"content": QUESTION, **fields})
    else:
        answer = server.complete(**{"prompt": BEGINNING, **fields})
    assert answer.status == 200, answer.body
    return answer


def whole_answer(answer: Answer) -> Said:
    choice = answer.json["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return Said(text or "", choice["finish_reason"], choice["stop_reason"], answer.json["usage"]["completion_tokens"])


def streamed_answer(answer: Answer) -> Said:
    *events, usage = answer.events
    choices = [event["choices"][0] for event in events]
    text = "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
    last = choices[-1]
    return Said(text, last["finish_reason"], last["stop_reason"], usage["usage"]["completion_tokens"])
