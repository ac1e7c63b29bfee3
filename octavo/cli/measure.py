"""The measurements behind `octavo bench`."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from octavo.backends.native.library import Context
from octavo.cli.progress import ProgressReport
from octavo.config import EngineArgs, EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.machine import read_machine
from octavo.errors import ConfigError
from octavo.json_text import parse_json
from octavo.llm import LLM
from octavo.request import RequestOutput
from octavo.sampling_params import SamplingParams

# More than any cache holds.
_READ_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One line of a workload file."""

    prompt_token_ids: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class LatencySettings:
    input_len: int
    output_len: int
    batch_size: int
    num_runs: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Of a batch: seconds until its last request had a first token, seconds between tokens, and tokens a second."""

    ttft_s: float
    tpot_s: float
    prefill_tokens_per_s: float
    output_tokens_per_s: float


def measure_throughput(args: EngineArgs, workload: Path, json_out: Path | None) -> None:
    """Runs a workload file as one batch and reports. Raises `ConfigError` for a malformed file."""
    requests = read_workload(workload)
    _check_writable(json_out)
    machine = _measure_machine(args)
    with _load(args) as llm:
        _check_lengths(requests, llm.config.max_model_len)
        llm.generate([[0] * 16], _greedy(4))
        prompts = [request.prompt_token_ids for request in requests]
        params = [_greedy(request.max_tokens) for request in requests]
        began = time.perf_counter()
        outputs = llm.generate(prompts, params)
        seconds = time.perf_counter() - began
        config = llm.config
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(output.outputs[0].token_ids) for output in outputs)
    figures = {
        "output_tokens_per_s": num_output / seconds,
        "total_tokens_per_s": (num_prompt + num_output) / seconds,
        "seconds": seconds,
        "num_requests": len(outputs),
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": num_output,
    }
    _report(figures, config, {"workload": str(workload)}, machine, json_out)


def measure_latency(args: EngineArgs, settings: LatencySettings, json_out: Path | None) -> None:
    """Runs batches of random prompts and reports medians. Raises `ConfigError` if they do not fit the context."""
    _check_writable(json_out)
    machine = _measure_machine(args)
    with _load(args) as llm:
        config = llm.config
        if settings.input_len + settings.output_len > config.max_model_len:
            raise ConfigError(
                f"--input-len {settings.input_len} and --output-len {settings.output_len} exceed the context length "
                f"of {config.max_model_len}"
            )
        rng = random.Random(args.seed)
        _run_batch(llm, rng, settings)
        runs = [_run_batch(llm, rng, settings) for _ in range(settings.num_runs)]
    _report(median_latency(runs), config, asdict(settings), machine, json_out)


def read_workload(path: Path) -> list[WorkloadRequest]:
    """Raises `ConfigError`, naming the line, unless every line is a request."""
    try:
        with path.open(encoding="utf-8") as file:
            lines = list(file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text: {error}") from None
    requests = [_workload_request(line, f"{path}, line {n}") for n, line in enumerate(lines, start=1)]
    if not requests:
        raise ConfigError(f"{path} has no requests")
    return requests


def median_latency(runs: list[Latency]) -> dict[str, float]:
    """Each figure's own median."""
    figures = [asdict(run) for run in runs]
    return {name: statistics.median(figure[name] for figure in figures) for name in figures[0]}


def _workload_request(line: str, place: str) -> WorkloadRequest:
    try:
        match parse_json(line):
            case {"prompt_token_ids": [*token_ids], "max_tokens": int(max_tokens)} if token_ids and max_tokens > 0:
                return WorkloadRequest(token_ids, max_tokens)
    except ValueError as error:
        raise ConfigError(f"{place}: not JSON: {error}") from None
    raise ConfigError(f"{place}: needs prompt_token_ids, a list with at least one id, and max_tokens, at least 1")


def _check_lengths(requests: list[WorkloadRequest], max_model_len: int) -> None:
    """A request that would be cut short measures another workload."""
    for number, request in enumerate(requests, start=1):
        length = len(request.prompt_token_ids) + request.max_tokens
        if length > max_model_len:
            raise ConfigError(
                f"line {number} of the workload needs {length} tokens, more than the context length of {max_model_len}"
            )


def _check_writable(json_out: Path | None) -> None:
    """Before the measurement, not after it. Raises `OSError`."""
    if json_out is not None:
        json_out.open("a").close()


def _load(args: EngineArgs) -> LLM:
    """An engine that has done what a server does while it waits for the first request."""
    with ProgressReport() as progress:
        engine = build_engine(args, progress=progress)
        while engine.core.prepare():
            pass
        return LLM.from_engine(engine)


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def _run_batch(llm: LLM, rng: random.Random, settings: LatencySettings) -> Latency:
    vocab_size = llm.config.vocab_size
    prompts = [[rng.randrange(vocab_size) for _ in range(settings.input_len)] for _ in range(settings.batch_size)]
    outputs = llm.generate(prompts, _greedy(settings.output_len), use_tqdm=False)
    firsts, lasts = zip(*(_token_times(output) for output in outputs), strict=True)
    num_gaps = settings.output_len - 1
    return Latency(
        ttft_s=max(firsts),
        tpot_s=statistics.mean((last - first) / num_gaps for first, last in zip(firsts, lasts, strict=True)),
        prefill_tokens_per_s=settings.batch_size * settings.input_len / max(firsts),
        output_tokens_per_s=settings.batch_size * settings.output_len / max(lasts),
    )


def _token_times(output: RequestOutput) -> tuple[float, float]:
    """Seconds from arrival to the first and to the last token."""
    times = output.times
    assert times is not None and times.first_token is not None and times.last_token is not None
    return times.first_token - times.arrival, times.last_token - times.arrival


def _measure_machine(args: EngineArgs) -> dict[str, object]:
    """What the machine allows at this moment: figures mean little without it."""
    context = Context(None, args.threads or read_machine().num_cores)
    try:
        return {
            "isa": context.isa,
            "threads": context.threads,
            "barrier_ns": context.barrier_ns(),
            "read_gb_per_s": context.read_gbps(_READ_BYTES),
        }
    finally:
        context.close()


def _report(
    figures: Mapping[str, float],
    config: EngineConfig,
    settings: Mapping[str, object],
    machine: Mapping[str, object],
    json_out: Path | None,
) -> None:
    table = Table(show_header=False)
    chosen = {"model": config.model, "activations": config.activation_dtype}
    for name, value in {**chosen, **settings, **figures, **machine}.items():
        table.add_row(name, _spell(value))
    Console().print(table)
    if json_out is not None:
        result = {
            **figures,
            "model": config.model,
            "settings": {**settings, **asdict(config)},
            "machine": machine,
        }
        json_out.write_text(json.dumps(result, indent=2) + "\n")


def _spell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.1f}" if value >= 10 else f"{value:.4g}"
