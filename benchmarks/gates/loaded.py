"""A real model in an engine of its own, and how fast it reads and writes."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from octavo import LLM, SamplingParams
from octavo.config import EngineArgs
from octavo.engine.build import build_engine
from octavo.request import RequestOutput


class LoadedModel:
    """Runs greedy requests of random prompts, on memory that has been taken from the system before."""

    def __init__(self, path: Path, **engine_args: Any) -> None:
        self._rng = random.Random(0)
        engine = build_engine(EngineArgs(model=str(path), **engine_args))
        while engine.core.prepare():
            pass
        self._llm = LLM.from_engine(engine)
        self._run(1, 64, 4)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._llm.close()

    def bytes_of_a_step(self, context_len: int) -> int:
        """What must be read for one token at the end of a context: weights (one embedding row less than all) and KV."""
        config = self._llm.config
        return config.weight_bytes + config.kv_cache_bytes // config.kv_cache_tokens * context_len

    def prefill(self, prompt_len: int) -> float:
        """Prompt tokens a second until the first token of one request."""
        (output,) = self._run(1, prompt_len, 1)
        return prompt_len / _first_s(output)

    def decode(self, prompt_len: int, output_len: int, num_requests: int = 1) -> float:
        """Tokens a second of all requests together, from when each has its first to when all have their last."""
        outputs = self._run(num_requests, prompt_len, output_len)
        seconds = max(map(_last_s, outputs)) - max(map(_first_s, outputs))
        return num_requests * (output_len - 1) / seconds

    def throughput(self, workload: Sequence[tuple[list[int], int]]) -> float:
        """Output tokens a second of requests given at once."""
        prompts = [prompt for prompt, _ in workload]
        outputs = self._llm.generate(prompts, [_greedy(count) for _, count in workload], use_tqdm=False)
        return sum(count for _, count in workload) / max(map(_last_s, outputs))

    def idle_cpu(self, after_s: float, during_s: float) -> float:
        """Which part of one core this process uses when there is nothing to do, some time after a request."""
        self._run(1, 64, 4)
        time.sleep(after_s)
        began = time.process_time()
        time.sleep(during_s)
        return (time.process_time() - began) / during_s

    def _run(self, num_requests: int, prompt_len: int, output_len: int) -> list[RequestOutput]:
        vocab_size = self._llm.config.vocab_size
        prompts = [[self._rng.randrange(vocab_size) for _ in range(prompt_len)] for _ in range(num_requests)]
        return self._llm.generate(prompts, _greedy(output_len), use_tqdm=False)


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def _first_s(output: RequestOutput) -> float:
    times = output.times
    assert times is not None and times.first_token is not None
    return times.first_token - times.arrival


def _last_s(output: RequestOutput) -> float:
    times = output.times
    assert times is not None and times.last_token is not None
    return times.last_token - times.arrival
