"""Write the throughput workload as JSONL: workload.py OUT.jsonl [--num-requests N] [--seed S] [--vocab V]

ShareGPT-like lengths: prompt and output lengths are drawn from a lognormal distribution (mu 4.6, sigma 0.8) and clipped
to 8..512; prompts are random token ids. The default is 64 requests with 8,568 prompt and 8,274 output tokens.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import TypedDict

FIRST_TOKEN_ID = 100
MIN_TOKENS, MAX_TOKENS = 8, 512


class WorkloadRequest(TypedDict):
    prompt_token_ids: list[int]
    max_tokens: int


def requests(num_requests: int, seed: int, vocab: int) -> list[WorkloadRequest]:
    rng = random.Random(seed)

    def token_ids(count: int) -> list[int]:
        return [rng.randrange(FIRST_TOKEN_ID, vocab) for _ in range(count)]

    def length() -> int:
        return int(min(MAX_TOKENS, max(MIN_TOKENS, rng.lognormvariate(4.6, 0.8))))

    token_ids(64)  # published figures were taken with the stream at this point
    drawn: list[WorkloadRequest] = []
    for _ in range(num_requests):
        prompt_length, output_length = length(), length()
        drawn.append({"prompt_token_ids": token_ids(prompt_length), "max_tokens": output_length})
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab", type=int, default=49000)
    args = parser.parse_args()
    drawn = requests(args.num_requests, args.seed, args.vocab)
    args.out.write_text("".join(json.dumps(request) + "\n" for request in drawn))
    print(f"{args.out}: {len(drawn)} requests")


if __name__ == "__main__":
    main()
