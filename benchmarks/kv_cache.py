"""What the KV cache's bookkeeping costs, and how full it keeps the memory.

    python -m benchmarks.kv_cache [--json OUT]

Costs: a prompt of 100,000 tokens that is new, and one of which all but the last token is known. Use: the real scheduler
over a backend that only counts, with requests of ShareGPT-like lengths and memory for a fifth of them; at each step,
tokens held over slots allocated.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import workload
from benchmarks.planned_rows import PlannedRows
from octavo.config import BLOCK_TOKENS
from octavo.kvcache.block_table import BlockTable, blocks_for
from octavo.kvcache.kv_cache import KvCache
from octavo.kvcache.prefix_tree import TOKEN_TYPE, TokenIds
from octavo.request import PrefixKey, Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from octavo.step import RowStep, StepOutput, StepPlan

LONG_PROMPT = 100_000
REPEATS = 15
MAX_NUM_SEQS = 256
VOCAB = 49_000


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds, medians."""

    new_prompt: float
    known_prompt: float
    leaving: float
    decoded_block_us: float


@dataclass(frozen=True, slots=True)
class Use:
    """Shares of the memory, 0 to 1, over the steps while requests wait."""

    utilization: float
    lowest_utilization: float
    num_steps: int
    num_preemptions: int


def measure_costs() -> Costs:
    rng = random.Random(0)
    runs = [_costs(array(TOKEN_TYPE, [rng.randrange(VOCAB) for _ in range(LONG_PROMPT)])) for _ in range(REPEATS)]
    return Costs(*(statistics.median(column) for column in zip(*runs, strict=True)))


def _costs(tokens: TokenIds) -> tuple[float, float, float, float]:
    kv = KvCache(2 * blocks_for(LONG_PROMPT) + 100)
    first, second = kv.open(PrefixKey()), kv.open(PrefixKey())
    return (
        1e3 * _seconds(lambda: _enter_and_publish(kv, first, tokens)),
        1e3 * _seconds(lambda: _enter_and_publish(kv, second, tokens)),
        1e3 * _seconds(lambda: kv.leave(second, tokens, LONG_PROMPT)),
        1e6 * _seconds(lambda: _decode(kv, first, tokens, 50 * BLOCK_TOKENS)) / 50,
    )


def measure_use(num_requests: int) -> Use:
    requests = [
        Request(
            str(index),
            tuple(request["prompt_token_ids"]),
            SamplingParams(max_tokens=request["max_tokens"], seed=0),
            frozenset(),
            0.0,
        )
        for index, request in enumerate(workload.requests(num_requests, 0, VOCAB))
    ]
    longest = sum(len(request.prompt_token_ids) + (request.sampling.max_tokens or 0) for request in requests)
    kv = KvCache(blocks_for(longest // 5))
    scheduler = Scheduler(kv, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=512)
    for request in requests:
        scheduler.add(request)
    rows, held = PlannedRows(), dict[int, _Held]()
    left = {request.request_id: request.sampling.max_tokens or 0 for request in requests}
    shares: list[float] = []
    num_preemptions = 0
    while scheduler.has_requests:
        plan = scheduler.schedule()
        steps = rows.steps(plan)
        num_preemptions += scheduler.step_counts.num_preempted
        for token in scheduler.update(_answer(plan)):
            left[token.request_id] -= 1
            if left[token.request_id] == 0:
                scheduler.remove(token.request_id)
        if scheduler.num_waiting:
            shares.append(_utilization(plan, steps, held))
    return Use(statistics.mean(shares), min(shares), len(shares), num_preemptions)


@dataclass(slots=True)
class _Held:
    num_tokens: int = 0
    num_blocks: int = 0


def _utilization(plan: StepPlan, steps: list[RowStep], rows: dict[int, _Held]) -> float:
    """Of the rows in the plan: tokens they hold over slots of the blocks they were given."""
    for start in plan.starts:
        rows[start.row] = _Held()
    for step in steps:
        held = rows[step.row]
        held.num_tokens = step.num_computed_tokens + step.num_tokens
        held.num_blocks += len(step.new_block_ids[0]) if step.new_block_ids else 0
    running = [rows[step.row] for step in steps]
    return sum(held.num_tokens for held in running) / (BLOCK_TOKENS * sum(held.num_blocks for held in running))


def _answer(plan: StepPlan) -> StepOutput:
    return StepOutput([7] * len(plan.sampling_rows))


def _enter_and_publish(kv: KvCache, table: BlockTable, tokens: TokenIds) -> None:
    match = kv.match(table, tokens, len(tokens) - 1)
    assert kv.enter(table, tokens, match, num_tokens=len(tokens))
    kv.start_moves()
    kv.finish_moves()
    kv.publish(table, tokens, len(tokens))


def _decode(kv: KvCache, table: BlockTable, tokens: TokenIds, count: int) -> None:
    """The KV cache's share of `count` steps of one request."""
    for _ in range(count):
        tokens.append(7)
        missing = table.num_missing(len(tokens))
        if missing:
            table.append(missing)
        if len(tokens) >= table.publish_at:
            kv.publish(table, tokens, len(tokens))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-requests", type=int, default=2000)
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    costs, use = measure_costs(), measure_use(args.num_requests)
    print(f"100,000 tokens, new:    {costs.new_prompt:7.2f} ms")
    print(f"100,000 tokens, known:  {costs.known_prompt:7.2f} ms, leaving {costs.leaving:.2f} ms")
    print(f"a block of decoding:    {costs.decoded_block_us:7.2f} us for 16 tokens")
    print(
        f"utilisation:            {use.utilization:7.1%} on average, {use.lowest_utilization:.1%} at least, over "
        f"{use.num_steps} steps with {use.num_preemptions} preemptions"
    )
    if args.json is not None:
        args.json.write_text(json.dumps({**asdict(costs), **asdict(use)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
