"""The real models end to end: reading prompts, one stream, many streams, the workload of 64 requests."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import peer_llama_cpp
from benchmarks.gates.gate import Gate
from benchmarks.gates.loaded import LoadedModel
from benchmarks.gates.turns import Speed, median, take_turns, timed
from benchmarks.workload import requests
from octavo.backends.native.library import Context

ROOT = Path(__file__).parents[2]
WORKLOAD_REQUESTS, WORKLOAD_SEED, WORKLOAD_VOCAB = 64, 0, 49000
TURNS = 3

# What keeps SmolLM2 within the accuracy bar (docs/log.md has how far within); the file's own precision first.
INT8, INT8_KV, BF16 = "int8", "int8 with int8 KV", "bf16"
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    INT8: {"activation_dtype": "int8"},
    INT8_KV: {"activation_dtype": "int8", "kv_cache_dtype": "int8"},
    BF16: {"activation_dtype": "bf16"},
}
QUANTISED = (INT8, INT8_KV)

Workload = Sequence[tuple[list[int], int]]


@dataclass(frozen=True, slots=True)
class Files:
    """Where the models lie."""

    smollm2: Path
    gemma3: Path
    qwen_small: Path
    qwen_large: Path


def prefill(context: Context, files: Files) -> Iterator[Gate]:
    """SmolLM2 in each precision within the bar, in turns."""
    with ExitStack() as stack:
        models = {name: stack.enter_context(LoadedModel(files.smollm2, **args)) for name, args in PRECISIONS.items()}
        runs = {
            f"{name} {count}": partial(model.prefill, count) for name, model in models.items() for count in (512, 2048)
        }
        speeds = take_turns(context, runs, TURNS)
    for count, required in ((512, 5500), (2048, 3600)):
        found = {name: speeds[f"{name} {count}"] for name in PRECISIONS}
        yield _fastest("prefill", f"SmolLM2 {count}, fastest precision", required, found)
    yield _speed("prefill", "SmolLM2 512, Q4_1 file", 4300, speeds[f"{INT8} 512"])
    yield _speed("prefill", "SmolLM2 512, bf16", 3300, speeds[f"{BF16} 512"])


def single(context: Context, files: Files) -> Iterator[Gate]:
    """SmolLM2's 4-bit file, in turns with either kind of KV cache; contexts grow from the prompt to all of it."""
    cases = (("<= 256", 420, 128, 128), ("500", 350, 468, 64))
    with ExitStack() as stack:
        models = {name: stack.enter_context(LoadedModel(files.smollm2, **PRECISIONS[name])) for name in QUANTISED}
        for title, required, prompt_len, output_len in cases:
            runs = {name: partial(model.decode, prompt_len, output_len) for name, model in models.items()}
            found = take_turns(context, runs, TURNS)
            num_bytes = {name: model.bytes_of_a_step(prompt_len + output_len // 2) for name, model in models.items()}
            yield _fastest("single", f"SmolLM2, context {title}", required, found, num_bytes, 0.78)


def throughput(context: Context, files: Files, openvino: Path | None) -> Iterator[Gate]:
    """64 requests, each time by an engine that has not seen them; with OpenVINO taking turns if there is one."""
    workload = [
        (request["prompt_token_ids"], request["max_tokens"])
        for request in requests(WORKLOAD_REQUESTS, WORKLOAD_SEED, WORKLOAD_VOCAB)
    ]
    own: dict[str, list[Speed]] = {name: [] for name in QUANTISED}
    avx2, theirs = [], []
    for _ in range(TURNS):
        for name in QUANTISED:
            with LoadedModel(files.smollm2, **PRECISIONS[name]) as model:
                own[name].append(timed(context, partial(model.throughput, workload)))
        with _instruction_set("avx2"), LoadedModel(files.smollm2) as model:
            avx2.append(timed(context, partial(model.throughput, workload)))
        if openvino is not None:
            theirs.append(_openvino(openvino, files.smollm2, workload))
    found = {name: median(speeds) for name, speeds in own.items()}
    best = _fastest("throughput", "SmolLM2, 64 requests", 1750, found)
    yield best
    if theirs:
        note = "OpenVINO: " + ", ".join(f"{rate:.0f}" for rate in theirs) + " tok/s"
        ratio = best.measured / statistics.median(theirs)
        yield Gate("throughput", "SmolLM2, 64 requests, over OpenVINO", "x", 3.0, ratio, best.state, note=note)
    narrow = median(avx2)
    note = f"AVX2 {narrow.tokens_per_s:.0f}, best {found[INT8].tokens_per_s:.0f} tok/s"
    share = narrow.tokens_per_s / found[INT8].tokens_per_s
    yield Gate("throughput", "SmolLM2, 64 requests, AVX2 over AVX-512", "%", 0.35, share, narrow.state, note=note)


def larger(context: Context, files: Files, llama_bench: Path | None) -> Iterator[Gate]:
    """One stream of the largest must be as fast as llama.cpp's too, which takes turns if there is one."""
    for name, path, prefill_rate, stream_rate, streams_rate in (
        ("Qwen2.5-Coder-0.5B", files.qwen_small, 1300, 90, 750),
        ("Gemma-3-270M", files.gemma3, 4000, 165, 1000),
        ("Qwen2.5-Coder-1.5B", files.qwen_large, 420, None, 260),
    ):
        with LoadedModel(path) as model:
            runs = {
                "prefill": partial(model.prefill, 512),
                "1": partial(model.decode, 32, 48),
                "16": partial(model.decode, 32, 32, 16),
            }
            if llama_bench is not None and stream_rate is None:
                runs["llama.cpp"] = partial(peer_llama_cpp.decode, llama_bench, path, 32, 48, context.threads)
            speeds = take_turns(context, runs, TURNS)
            num_bytes = model.bytes_of_a_step(56)
        yield _speed("models", f"{name}, prefill 512", prefill_rate, speeds["prefill"])
        if stream_rate is not None:
            yield _speed("models", f"{name}, 1 stream", stream_rate, speeds["1"], "", num_bytes)
        else:
            yield _of_bandwidth(f"{name}, 1 stream", 0.88, speeds["1"], num_bytes)
        if "llama.cpp" in speeds:
            yield _over(f"{name}, 1 stream, over llama.cpp", speeds["1"], speeds["llama.cpp"])
        yield _speed("models", f"{name}, 16 streams", streams_rate, speeds["16"])


def _fastest(
    section: str,
    name: str,
    required: float,
    found: Mapping[str, Speed],
    num_bytes: Mapping[str, int] | None = None,
    required_of_floor: float | None = None,
) -> Gate:
    """The gate of the fastest precision; the note has them all."""
    best = max(found, key=lambda precision: found[precision].tokens_per_s)
    note = ", ".join(f"{precision}: {speed.tokens_per_s:,.0f}" for precision, speed in found.items())
    read = None if num_bytes is None else num_bytes[best]
    return _speed(section, name, required, found[best], note, read, required_of_floor)


def _speed(
    section: str,
    name: str,
    required: float,
    speed: Speed,
    note: str = "",
    num_bytes: int | None = None,
    required_of_floor: float | None = None,
) -> Gate:
    of_floor = None if num_bytes is None else _share_of_bandwidth(speed, num_bytes)
    return Gate(section, name, "tok/s", required, speed.tokens_per_s, speed.state, of_floor, required_of_floor, note)


def _of_bandwidth(name: str, required: float, speed: Speed, num_bytes: int) -> Gate:
    share = _share_of_bandwidth(speed, num_bytes)
    note = f"{speed.tokens_per_s:.1f} tok/s, {num_bytes / 1e6:.0f} MB a token"
    return Gate("models", name, "%", required, share, speed.state, share, note=note)


def _over(name: str, speed: Speed, peer: Speed) -> Gate:
    note = f"{speed.tokens_per_s:.1f} and {peer.tokens_per_s:.1f} tok/s"
    return Gate("models", name, "x", 1.0, speed.tokens_per_s / peer.tokens_per_s, speed.state, note=note)


def _share_of_bandwidth(speed: Speed, num_bytes: int) -> float:
    return speed.tokens_per_s * num_bytes / (speed.state.read_gb_per_s * 1e9)


@contextmanager
def _instruction_set(name: str) -> Iterator[None]:
    """Engines made meanwhile use it."""
    before = os.environ.get("OCTAVO_CPU_ISA")
    os.environ["OCTAVO_CPU_ISA"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["OCTAVO_CPU_ISA"]
        else:
            os.environ["OCTAVO_CPU_ISA"] = before


def _openvino(python: Path, model: Path, workload: Workload) -> float:
    """Output tokens a second of the same requests by OpenVINO GenAI, in its own environment."""
    script = ROOT / "benchmarks" / "peer_openvino.py"
    result = subprocess.run(
        [python, script, model], input=json.dumps(workload), check=True, stdout=subprocess.PIPE, text=True
    )
    return float(result.stdout.splitlines()[-1])
