"""An engine over the fake backend, put together as `build_engine` puts together a real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from octavo.config import EngineConfig, SchedulingConfig
from octavo.engine.core import EngineCore
from octavo.engine.engine import Engine
from octavo.engine.input import InputProcessor
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.masks import MaskComputer
from octavo.kvcache.kv_cache import KvCache
from octavo.metrics.stats import RequestStats, StepStats
from octavo.request import OutputDelta, Request
from octavo.scheduler.scheduler import DEFAULT_SCHEDULING
from octavo.tokenizer.tokenizer import Tokenizer
from tests.engine.fakes import VOCAB_SIZE, FakeExecutor, FakeTokenizer


@dataclass
class Recorder:
    """A listener that keeps everything."""

    steps: list[StepStats] = field(default_factory=list)
    requests: list[RequestStats] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request(self, stats: RequestStats) -> None:
        self.requests.append(stats)

    def on_token_gap(self, seconds: float, count: int) -> None:
        self.gaps.append((seconds, count))

    def on_rejection(self, limit: str) -> None:
        self.rejections.append(limit)


class FakeEngine:
    """`engine` is the real thing around `executor`; `stats` hears what it reports."""

    def __init__(
        self,
        num_blocks: int = 200,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 2048,
        poison: int | None = None,
        masks: MaskComputer | None = None,
        scheduling: SchedulingConfig = DEFAULT_SCHEDULING,
        prefix_caching: bool = True,
    ) -> None:
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        tokenizer = cast(Tokenizer, FakeTokenizer(poison))
        self.executor = FakeExecutor(num_blocks, **limits)
        self.stats = Recorder()
        kv = KvCache(num_blocks, prefix_caching=prefix_caching)
        self.pool = kv.pool
        masks = masks or MaskComputer(VOCAB_SIZE, 1)
        self.core = EngineCore(
            self.executor, tokenizer, kv, masks=masks, scheduling=scheduling, listeners=[self.stats], **limits
        )
        config = EngineConfig(
            model="fake", model_path="", architecture="fake", size_label="", isa="none", threads=1,
            activation_dtype="bf16", quantization=None, weight_bytes=0, max_model_len=max_model_len,
            num_blocks=num_blocks,
            kv_cache_bytes=0, vocab_size=VOCAB_SIZE, seed=0, enable_prefix_caching=True,
            prefix_eviction_policy="lru", **limits,
        )  # fmt: skip
        self.input = InputProcessor(
            tokenizer,
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            kv_cache_tokens=config.kv_cache_tokens,
            grammars=GrammarCompiler(tokenizer, VOCAB_SIZE),
        )
        self.engine = Engine(config, tokenizer, self.input, self.core)


def run(fake: FakeEngine, *requests: Request) -> dict[str, list[OutputDelta]]:
    """All deltas of each request. What is held is checked after every step; in the end it must be nothing."""
    deltas: dict[str, list[OutputDelta]] = {request.request_id: [] for request in requests}
    for request in requests:
        fake.core.add_request(request)
    while fake.core.has_requests:
        for delta in fake.core.step():
            deltas[delta.request_id].append(delta)
        fake.core.check_integrity()
    for stream in deltas.values():
        assert [delta.finished for delta in stream] == [False] * (len(stream) - 1) + [True]
    assert fake.pool.num_used == 0
    return deltas
