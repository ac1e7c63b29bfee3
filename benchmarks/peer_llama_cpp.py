"""Speeds of llama.cpp, by the `llama-bench` of a build for this machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def decode(binary: Path, model: Path, context_len: int, output_len: int, threads: int) -> float:
    """Tokens a second of one stream that goes on from `context_len` tokens. Raises `CalledProcessError` if it fails."""
    numbers = {"-p": 0, "-n": output_len, "-d": context_len, "-t": threads, "-r": 1}
    arguments = [str(word) for pair in numbers.items() for word in pair]
    command = [binary, "-m", model, *arguments, "-o", "json"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    (result,) = json.loads(output)
    return float(result["avg_ts"])
