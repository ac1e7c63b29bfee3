"""Many streaming clients at once against the same requests run offline.

    python -m benchmarks.streams MODEL.gguf --workload workload.jsonl [--times 2]

Both run the engine in a process of its own with the same flags. The clients share one process and only count what
arrives: on a machine of few cores they take part of what is measured. Prefix caching is off, since requests repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import state_now
from octavo import LLM, SamplingParams

FLAGS = ["--no-enable-prefix-caching"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--times", type=int, default=2, help="how often each request is sent")
    args = parser.parse_args()
    requests = [json.loads(line) for line in args.workload.read_text().splitlines()] * args.times
    state = state_now()
    offline = offline_rate(args.model, requests)
    with server(args.model) as port:
        asyncio.run(stream_all(port, requests[:8]))
        served = served_rate(port, requests)
        lag = loop_lag_p99(port)
    print(f"{len(requests)} requests; {state}")
    print(f"  offline   {offline:8.1f} output tokens/s")
    print(f"  streamed  {served:8.1f} output tokens/s   {served / offline:.1%} of it")
    print(f"  event loop lag, P99: at most {1000 * lag:g} ms")


def offline_rate(model: Path, requests: list[dict[str, Any]]) -> float:
    with LLM(model, enable_prefix_caching=False) as llm:
        prompts = [request["prompt_token_ids"] for request in requests]
        samplings = [
            SamplingParams(temperature=0, ignore_eos=True, max_tokens=request["max_tokens"]) for request in requests
        ]
        llm.generate(prompts[:8], samplings[:8])
        began = time.perf_counter()
        outputs = llm.generate(prompts, samplings)
        seconds = time.perf_counter() - began
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def served_rate(port: int, requests: list[dict[str, Any]]) -> float:
    began = time.perf_counter()
    num_tokens = asyncio.run(stream_all(port, requests))
    assert num_tokens == sum(request["max_tokens"] for request in requests), "an answer is not complete"
    return num_tokens / (time.perf_counter() - began)


async def stream_all(port: int, requests: list[dict[str, Any]]) -> int:
    """Sends all requests at once, each on a connection of its own; the tokens of all answers."""
    return sum(await asyncio.gather(*(stream(port, request) for request in requests)))


async def stream(port: int, request: dict[str, Any]) -> int:
    body = json.dumps(
        {
            "model": "m",
            "prompt": request["prompt_token_ids"],
            "max_tokens": request["max_tokens"],
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    tail = b""
    while piece := await reader.read(2**16):
        tail = (tail + piece)[-1000:]
    writer.close()
    found = re.search(rb'"completion_tokens":(\d+)', tail)
    assert found is not None and b"[DONE]" in tail, tail
    return int(found[1])


def loop_lag_p99(port: int) -> float:
    """The bound of the histogram's bucket that holds the 99th percentile, in seconds."""
    page = asyncio.run(_get(port, "/metrics"))
    counts = re.findall(r'^octavo:event_loop_lag_seconds_bucket\{le="([^"]+)"\} ([\d.]+)', page, re.MULTILINE)
    total = float(counts[-1][1])
    return next(float(bound) for bound, count in counts if float(count) >= 0.99 * total)


async def _get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    page = (await reader.read()).decode()
    writer.close()
    return page


@contextmanager
def server(model: Path) -> Iterator[int]:
    """A server of the model; its port."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "octavo",
        "serve",
        str(model),
        "--port",
        "0",
        "--served-model-name",
        "m",
        *FLAGS,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                yield int(found[1])
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
