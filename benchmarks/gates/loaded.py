"""A real model in an engine of its own, and how fast it reads and writes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.machine import State, measure_state
from octavo import LLM, SamplingParams
from octavo.backends.native.library import Context
from octavo.request import RequestOutput

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Speed:
    """The median of a few runs, and the machine beside the run it is from."""

    tokens_per_s: float
    state: State


class LoadedModel:
    """Runs greedy requests of random prompts."""

    def __init__(self, path: Path, context: Context, **engine_args: Any) -> None:
        self._context = context
        self._rng = random.Random(0)
        self._llm = LLM(path, **engine_args)
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

    def prefill(self, prompt_len: int) -> Speed:
        """Prompt tokens a second until the first token of one request."""

        def run() -> float:
            (output,) = self._run(1, prompt_len, 1)
            return prompt_len / _first_s(output)

        return self._median(run)

    def decode(self, prompt_len: int, output_len: int, num_requests: int = 1) -> Speed:
        """Tokens a second of all requests together, from when each has its first to when all have their last."""

        def run() -> float:
            outputs = self._run(num_requests, prompt_len, output_len)
            seconds = max(map(_last_s, outputs)) - max(map(_first_s, outputs))
            return num_requests * (output_len - 1) / seconds

        return self._median(run)

    def throughput(self, workload: Sequence[tuple[list[int], int]]) -> Speed:
        """Output tokens a second of requests given at once."""

        def run() -> float:
            prompts = [prompt for prompt, _ in workload]
            outputs = self._llm.generate(prompts, [_greedy(count) for _, count in workload], use_tqdm=False)
            return sum(count for _, count in workload) / max(map(_last_s, outputs))

        return self._median(run, 1)

    def _run(self, num_requests: int, prompt_len: int, output_len: int) -> list[RequestOutput]:
        vocab_size = self._llm.config.vocab_size
        prompts = [[self._rng.randrange(vocab_size) for _ in range(prompt_len)] for _ in range(num_requests)]
        return self._llm.generate(prompts, _greedy(output_len), use_tqdm=False)

    def _median(self, run: Callable[[], float], repeats: int = REPEATS) -> Speed:
        found = []
        for _ in range(repeats):
            state = measure_state(self._context)
            found.append(Speed(run(), state))
        return sorted(found, key=lambda speed: speed.tokens_per_s)[len(found) // 2]


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
