"""What shared prefixes save on a real model: prefix_sharing.py [MODEL] [--num-requests N] [--num-uncached N]

Three measurements:

    system prompt   requests that share a system prompt of 1,500 tokens, with prefix caching on and off
    conversation    20 turns of an agent: the time to the first token of each, beside how many tokens were new
    choices         KV blocks that n=8 answers to a prompt of 1,000 tokens hold, beside those of one answer

`--num-uncached` runs fewer requests without prefix caching, which takes long: a rate stays comparable.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from octavo import LLM, SamplingParams
from octavo.backends.native.library import Context
from octavo.config import EngineArgs
from octavo.engine.build import build_engine
from octavo.metrics.stats import RequestStats, StepStats
from octavo.request import RequestOutput

SYSTEM_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 1500, 20, 16
NUM_TURNS, TURN_TOKENS, REPLY_TOKENS = 20, 60, 16
CHOICES_PROMPT_TOKENS = 1000
FIRST_TOKEN_ID = 100


@dataclass
class Counted:
    """A listener that adds up what the steps report."""

    prompt_tokens: int = 0
    most_blocks: int = 0

    def on_step(self, stats: StepStats) -> None:
        self.prompt_tokens += stats.num_prompt_tokens
        self.most_blocks = max(self.most_blocks, stats.num_blocks_used)

    def on_request(self, stats: RequestStats) -> None:
        pass

    def on_token_gap(self, seconds: float, count: int) -> None:
        pass


class Bench:
    """One engine. Every prompt is random token ids, so that nothing is shared but what is meant to be."""

    def __init__(self, model: str, *, prefix_caching: bool) -> None:
        self.counted = Counted()
        args = EngineArgs(model, kv_cache_memory_bytes=2**31, enable_prefix_caching=prefix_caching)
        self.llm = LLM.from_engine(build_engine(args, listeners=(self.counted,)))
        self._rng = random.Random(1)
        self.llm.generate([self.tokens(64)], _answer(4), use_tqdm=False)

    def tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(FIRST_TOKEN_ID, self.llm.config.vocab_size) for _ in range(count)]

    def generate(self, prompts: Sequence[list[int]], params: SamplingParams) -> tuple[list[RequestOutput], float]:
        """The answers, and the seconds they took together."""
        self.counted.prompt_tokens = self.counted.most_blocks = 0
        began = time.perf_counter()
        outputs = self.llm.generate(list(prompts), params, use_tqdm=False)
        return outputs, time.perf_counter() - began


def shared_system_prompt(bench: Bench, num_requests: int) -> float:
    """Requests a second."""
    system = bench.tokens(SYSTEM_TOKENS)
    prompts = [system + bench.tokens(QUESTION_TOKENS) for _ in range(num_requests)]
    _, seconds = bench.generate(prompts, _answer(ANSWER_TOKENS))
    given, computed = sum(map(len, prompts)), bench.counted.prompt_tokens
    print(
        f"  {num_requests} requests in {seconds:.2f} s: {num_requests / seconds:.2f} requests/s; "
        f"prompt tokens computed {computed:,} of {given:,}, 1/{given / computed:.1f}"
    )
    return num_requests / seconds


def conversation(bench: Bench) -> None:
    history: list[int] = []
    for turn in range(1, NUM_TURNS + 1):
        history += bench.tokens(TURN_TOKENS)
        (output,), _ = bench.generate([history], _answer(REPLY_TOKENS))
        times = output.times
        assert times is not None and times.first_token is not None
        history += output.outputs[0].token_ids
        if turn in (1, 2, 5, 10, 15, NUM_TURNS):
            print(
                f"  turn {turn:2}: prompt {len(output.prompt_token_ids):5} tokens, "
                f"computed {bench.counted.prompt_tokens:5}, "
                f"first token after {(times.first_token - times.arrival) * 1e3:6.1f} ms"
            )


def choices(bench: Bench) -> None:
    blocks = []
    for n in (1, 8):
        prompt = bench.tokens(CHOICES_PROMPT_TOKENS)
        bench.generate([prompt], SamplingParams(n=n, seed=1, max_tokens=8, ignore_eos=True))
        blocks.append(bench.counted.most_blocks)
        print(f"  n={n}: {blocks[-1]} blocks, prompt tokens computed {bench.counted.prompt_tokens:,}")
    print(f"  ratio {blocks[1] / blocks[0]:.2f}")


def _answer(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)


def _print_machine(threads: int) -> None:
    context = Context(None, threads)
    print(f"machine: barrier_ns {context.barrier_ns():.0f}, read_gb_per_s {context.read_gbps(2**28):.1f}")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument("--num-uncached", type=int, default=64)
    arguments = parser.parse_args()
    rates = {}
    for prefix_caching in (True, False):
        print(f"prefix caching {'on' if prefix_caching else 'off'}")
        bench = Bench(arguments.model, prefix_caching=prefix_caching)
        with bench.llm:
            if prefix_caching:
                _print_machine(bench.llm.config.threads)
            number = arguments.num_requests if prefix_caching else arguments.num_uncached
            rates[prefix_caching] = shared_system_prompt(bench, number)
            if prefix_caching:
                conversation(bench)
            choices(bench)
    print(f"system prompt: {rates[True] / rates[False]:.1f} times the throughput of prefix caching off")


if __name__ == "__main__":
    main()
