"""How far a model's next-token distributions are from float32 on the same dequantised weights.

    accuracy.py MODEL.gguf [--activation-dtype int8|bf16] [--quantization int8] [--kv-cache-dtype bf16|int8]
        [--windows N] [--isa ISA]

Oracle: transformers in float32 on the dequantised weights of the same file. Both are teacher-forced over real English
prose (the language reference that ships inside every CPython); compared are the mean Kullback-Leibler divergence
KL(oracle || octavo) in nats and how often both have the same most likely token.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo.backends.native.executor import NativeExecutor
from octavo.config import Quantization
from octavo.weights.loader import open_checkpoint

WINDOW_TOKENS = 1024
NUM_WINDOWS = 2
BF16_TOKENS = 512
ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Accuracy:
    num_positions: int
    mean_kl: float  # nats
    top1_agreement: float  # 0..1

    def __str__(self) -> str:
        return (
            f"{self.num_positions} positions: mean KL {self.mean_kl:.2e} nats, "
            f"top-1 agreement {self.top1_agreement:.2%}"
        )


class Oracle:
    """transformers in float32, and the windows of text both engines read.

    `bf16_logprobs` is what transformers itself makes in bf16 of the beginning of the first window: log probabilities of
    BF16_TOKENS tokens but the first.
    """

    def __init__(self, path: Path, num_windows: int = NUM_WINDOWS) -> None:
        folder, file = str(path.parent), path.name
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        self.model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
        self.windows = windows(tokenizer, num_windows)
        self.logits = [self._logits(window) for window in self.windows]
        self.model.to(torch.bfloat16)
        beginning = self.windows[0][:BF16_TOKENS]
        self.bf16_logprobs = logprobs_of(beginning, self._logits(beginning))
        del self.model

    @torch.inference_mode()
    def _logits(self, token_ids: list[int]) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self.model(torch.tensor([token_ids])).logits[0].float().numpy()
        return logits


def logprobs_of(token_ids: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Of each token but the first, from the logits after the one before it."""
    rows = torch.from_numpy(logits[: len(token_ids) - 1])
    chosen = rows.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
    logprobs: npt.NDArray[np.float64] = (chosen.double() - rows.double().logsumexp(-1)).numpy()
    return logprobs


def windows(tokenizer: object, num_windows: int) -> list[list[int]]:
    """`num_windows` stretches of prose of WINDOW_TOKENS tokens each, from the beginnings of different topics."""
    prose = [topics.topics[name] for name in ("objects", "typesmapping", "execmodel", "class", "with", "import")]
    found = []
    for start in range(num_windows):
        text = "\n".join(prose[start:] + prose[:start])
        token_ids = tokenizer(text).input_ids[:WINDOW_TOKENS]  # type: ignore[operator]
        assert len(token_ids) == WINDOW_TOKENS
        found.append(token_ids)
    return found


def compare(
    oracle: Oracle,
    path: Path,
    activation_dtype: Literal["int8", "bf16"],
    isa: str | None = None,
    quantization: Quantization | None = None,
    kv_cache_dtype: Literal["bf16", "int8"] = "bf16",
) -> Accuracy:
    with open_checkpoint(path) as checkpoint:
        executor = NativeExecutor(
            checkpoint,
            isa=isa,
            threads=len(os.sched_getaffinity(0)),
            activation_dtype=activation_dtype,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
        )
    try:
        kl: list[float] = []
        agreements: list[bool] = []
        for window, expected in zip(oracle.windows, oracle.logits, strict=True):
            _collect(expected, executor.score(window), kl, agreements)
    finally:
        executor.close()
    return Accuracy(len(kl), float(np.mean(kl)), float(np.mean(agreements)))


def _collect(
    expected: npt.NDArray[np.float32], found: npt.NDArray[np.float32], kl: list[float], agreements: list[bool]
) -> None:
    for start in range(0, len(expected), ROWS_AT_ONCE):
        p = torch.from_numpy(expected[start : start + ROWS_AT_ONCE])
        q = torch.from_numpy(found[start : start + ROWS_AT_ONCE])
        log_ratio = p - q - (p.logsumexp(-1, keepdim=True) - q.logsumexp(-1, keepdim=True))
        kl.extend((p.softmax(-1) * log_ratio).sum(-1, dtype=torch.float64).tolist())
        agreements.extend((p.argmax(-1) == q.argmax(-1)).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--activation-dtype", choices=["int8", "bf16"])
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--kv-cache-dtype", choices=["bf16", "int8"], default="bf16")
    parser.add_argument("--windows", type=int, default=NUM_WINDOWS)
    parser.add_argument("--isa")
    args = parser.parse_args()
    oracle = Oracle(args.model, args.windows)
    if args.quantization is not None:
        found = compare(oracle, args.model, "int8", args.isa, args.quantization, args.kv_cache_dtype)
        print(f"{args.model.name} with weights in {args.quantization}: {found}")
        return
    for dtype in [args.activation_dtype] if args.activation_dtype else ["int8", "bf16"]:
        found = compare(oracle, args.model, dtype, args.isa, None, args.kv_cache_dtype)
        print(f"{args.model.name} {dtype}, {args.kv_cache_dtype} KV cache: {found}", flush=True)


if __name__ == "__main__":
    main()
