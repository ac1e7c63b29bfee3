"""Engines built from a real file, and scripts that use one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.config import EngineArgs
from octavo.engine.build import build_engine
from octavo.errors import ConfigError, ModelNotFoundError


def test_decisions_are_reported(smollm2_path: Path) -> None:
    engine = build_engine(EngineArgs(str(smollm2_path), max_model_len=1000, max_num_seqs=3, threads=1))
    try:
        config = engine.config
        assert (config.architecture, config.threads, config.activation_dtype) == ("llama", 1, "int8")
        assert config.num_blocks == 3 * 63 and config.kv_cache_tokens == 3 * 1008
        assert config.kv_cache_bytes == config.num_blocks * 30 * 16 * 2 * 3 * 64 * 2  # layers slots k+v heads size
        assert config.vocab_size == 49152 and 60e6 < config.weight_bytes < 160e6
    finally:
        engine.core.close()


def test_what_cannot_fit_is_refused_with_numbers(smollm2_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"8192 tokens needs .*room for 1456 tokens.*--max-model-len 1456 or less"):
        build_engine(EngineArgs(str(smollm2_path), kv_cache_memory_bytes=2**25))
    with pytest.raises(ConfigError, match=r"--max-model-len is 10000; .*8192"):
        build_engine(EngineArgs(str(smollm2_path), max_model_len=10000))


def test_a_cache_larger_than_the_memory_is_warned_of(smollm2_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kv_cache_memory_bytes, warned in ((2**43, True), (2**28, False)):
        caplog.clear()
        args = EngineArgs(str(smollm2_path), max_model_len=512, kv_cache_memory_bytes=kv_cache_memory_bytes, threads=1)
        build_engine(args).core.close()
        assert ("MiB is larger than the" in caplog.text) == warned


def test_a_wrong_instruction_set_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", "avx1024")
    with pytest.raises(ConfigError, match=r"OCTAVO_CPU_ISA is 'avx1024'; this machine runs .*scalar"):
        build_engine(EngineArgs("./nowhere.gguf"))


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.gguf"):
        build_engine(EngineArgs("./nowhere.gguf"))


SCRIPT = """
import sys
from octavo import LLM, SamplingParams
llm = LLM(sys.argv[1], max_model_len=512, kv_cache_memory_bytes=2**25, threads=1)
params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
print("first", len(llm.generate("The capital of France is", params)[0].outputs[0].token_ids), flush=True)
try:
    print("running", flush=True)
    while True:
        llm.generate(["Once"] * 4, SamplingParams(max_tokens=400, ignore_eos=True))
except KeyboardInterrupt:
    print("again", len(llm.generate("The capital of France is", params)[0].outputs[0].token_ids), flush=True)
"""


def test_a_plain_script_that_is_interrupted_goes_on_and_ends_cleanly(smollm2_path: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(smollm2_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first 4\n"
        assert process.stdout.readline() == "running\n"
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert output == "again 4\n" and not errors and process.returncode == 0


def test_importing_octavo_is_cheap() -> None:
    check = "import sys, octavo; octavo.__version__; assert not {'numpy', 'rich', 'tokenizers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
