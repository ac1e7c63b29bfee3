"""The real models end to end: reading prompts, one stream, many streams, the workload of 64 requests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gates.gate import Gate
from benchmarks.gates.loaded import LoadedModel, Speed
from benchmarks.workload import requests
from octavo.backends.native.library import Context

ROOT = Path(__file__).parents[2]
WORKLOAD_REQUESTS, WORKLOAD_SEED, WORKLOAD_VOCAB = 64, 0, 49000
PEER_ROUNDS = 2

Workload = Sequence[tuple[list[int], int]]


@dataclass(frozen=True, slots=True)
class Files:
    """Where the models lie."""

    smollm2: Path
    gemma3: Path
    qwen_small: Path
    qwen_large: Path


def prefill(context: Context, files: Files) -> Iterator[Gate]:
    """SmolLM2. Its file's own precision is the fastest within the accuracy bar."""
    with LoadedModel(files.smollm2, context) as model:
        quantised = {512: model.prefill(512), 2048: model.prefill(2048)}
    with LoadedModel(files.smollm2, context, activation_dtype="bf16") as model:
        bf16 = model.prefill(512)
    yield _speed("prefill", "SmolLM2 512, fastest precision", 5500, quantised[512])
    yield _speed("prefill", "SmolLM2 2048, fastest precision", 3600, quantised[2048])
    yield _speed("prefill", "SmolLM2 512, Q4_1 file", 4300, quantised[512])
    yield _speed("prefill", "SmolLM2 512, bf16", 3300, bf16)


def single(context: Context, files: Files) -> Iterator[Gate]:
    with LoadedModel(files.smollm2, context) as model:
        for name, required, prompt_len, output_len in (("<= 256", 420, 128, 128), ("500", 350, 436, 64)):
            speed = model.decode(prompt_len, output_len)
            num_bytes = model.bytes_of_a_step(prompt_len + output_len // 2)
            yield _speed("single", f"SmolLM2, context {name}", required, speed, "", num_bytes, 0.78)


def throughput(context: Context, files: Files, openvino: Path | None) -> Iterator[Gate]:
    """64 requests; with OpenVINO taking turns if its interpreter is given."""
    workload = [
        (request["prompt_token_ids"], request["max_tokens"])
        for request in requests(WORKLOAD_REQUESTS, WORKLOAD_SEED, WORKLOAD_VOCAB)
    ]
    own, theirs = [], []
    for _ in range(PEER_ROUNDS):
        with LoadedModel(files.smollm2, context) as model:
            own.append(model.throughput(workload))
        if openvino is not None:
            theirs.append(_openvino(openvino, files.smollm2, workload))
    speed = max(own, key=lambda found: found.tokens_per_s)
    spread = ", ".join(f"{found.tokens_per_s:.0f}" for found in own)
    yield _speed("throughput", "SmolLM2, 64 requests", 1750, speed, f"runs: {spread}")
    if theirs:
        ratio = speed.tokens_per_s / max(theirs)
        note = "OpenVINO: " + ", ".join(f"{found:.0f} tok/s" for found in theirs)
        yield Gate("throughput", "SmolLM2, 64 requests, over OpenVINO", "x", 3.0, ratio, speed.state, note=note)


def larger(context: Context, files: Files) -> Iterator[Gate]:
    for name, path, prefill_rate, stream_rate, streams_rate in (
        ("Qwen2.5-Coder-0.5B", files.qwen_small, 1300, 90, 750),
        ("Gemma-3-270M", files.gemma3, 4000, 165, 1000),
        ("Qwen2.5-Coder-1.5B", files.qwen_large, 420, None, 260),
    ):
        with LoadedModel(path, context) as model:
            yield _speed("models", f"{name}, prefill 512", prefill_rate, model.prefill(512))
            speed, num_bytes = model.decode(32, 48), model.bytes_of_a_step(56)
            if stream_rate is not None:
                yield _speed("models", f"{name}, 1 stream", stream_rate, speed, "", num_bytes)
            else:
                yield _of_bandwidth(f"{name}, 1 stream", 0.88, speed, num_bytes)
            yield _speed("models", f"{name}, 16 streams", streams_rate, model.decode(32, 32, 16))


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


def _share_of_bandwidth(speed: Speed, num_bytes: int) -> float:
    return speed.tokens_per_s * num_bytes / (speed.state.read_gb_per_s * 1e9)


def _openvino(python: Path, model: Path, workload: Workload) -> float:
    """Output tokens a second of the same requests by OpenVINO GenAI, in its own environment."""
    script = ROOT / "benchmarks" / "peer_openvino.py"
    result = subprocess.run(
        [python, script, model], input=json.dumps(workload), check=True, stdout=subprocess.PIPE, text=True
    )
    return float(result.stdout.splitlines()[-1])
