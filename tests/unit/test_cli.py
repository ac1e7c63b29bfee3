"""The command line over an engine without a model."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from octavo.chat.format import ChatParsers
from octavo.cli import chat, local_engine, main, measure
from octavo.cli.flags import Activations, EngineFlags, Eviction, KvCacheDtypes, Quantizations
from octavo.cli.scheduling_flags import Policy, SchedulingFlags
from octavo.cli.sizes import parse_bytes, parse_count
from octavo.config import EngineArgs
from octavo.engine import build as engine_build
from octavo.sampling_params import SamplingParams
from octavo.version import __version__
from tests.server.fakes import FakeEngine

Octavo = Callable[..., "Ran"]


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def octavo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Octavo:
    """Runs the command line in this process; models are alphabets."""
    asked: list[EngineArgs] = []

    def build(args: EngineArgs, **_: Any) -> Any:
        asked.append(args)
        return FakeEngine().engine

    monkeypatch.setattr(local_engine, "build_engine", build)
    monkeypatch.setattr(measure, "build_engine", build)
    monkeypatch.setattr(engine_build, "build_engine", build)

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as stopped:
            main.main(arguments)
        captured = capsys.readouterr()
        code = stopped.value.code
        return Ran(0 if code is None else int(code), captured.out, captured.err)

    run.asked = asked  # type: ignore[attr-defined]
    return run


HEAVY = {
    "numpy",
    "fastapi",
    "uvicorn",
    "tokenizers",
    "jinja2",
    "prometheus_client",
    "rich",
    "pydantic",
    "ctypes",
    "asyncio",
}


def test_help_loads_nothing_heavy() -> None:
    """`octavo --help` has 0.3 s; numpy alone would take a third of that."""
    script = "import sys, octavo.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)


def test_help_names_every_verb(octavo: Octavo) -> None:
    ran = octavo("--help")
    assert ran.code == 0
    for verb in ("serve", "chat", "generate", "pull", "bench", "version"):
        assert verb in ran.out


@pytest.mark.parametrize("verb", ["serve", "chat", "generate", "run-batch"])
def test_help_spells_flags_out_on_a_narrow_terminal(octavo: Octavo, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Tables of 80 columns cut them to `--max-num-batch...`."""
    monkeypatch.setenv("COLUMNS", "80")
    out = octavo(verb, "--help").out
    parameters = typer.main.get_command(main.app).commands[verb].params  # type: ignore[attr-defined]
    for flag in (flag for parameter in parameters for flag in parameter.opts if flag.startswith("-")):
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", out), flag
    assert "\nEngine:\n" in out


def test_both_ways_to_ask_for_the_version(octavo: Octavo) -> None:
    assert octavo("--version").out == octavo("version").out == f"{__version__}\n"


def test_nothing_asked_shows_the_help(octavo: Octavo) -> None:
    ran = octavo()
    assert ran.code == 2 and "serve" in ran.out + ran.err


def test_the_flags_of_serve_are_these(octavo: Octavo) -> None:
    """Flags are a budget: a new one is a decision, and belongs here and in the README."""
    flags = {
        option
        for parameter in typer.main.get_command(main.app).commands["serve"].params  # type: ignore[attr-defined]
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }
    assert flags == {
        "--activation-dtype",
        "--admin-key",
        "--quantization",
        "--allow-credentials",
        "--allowed-headers",
        "--allowed-methods",
        "--allowed-origins",
        "--api-key",
        "--api-keys-file",
        "--disable-log-stats",
        "--enable-log-requests",
        "--enable-prefix-caching",
        "--generation-config",
        "--gpu-memory-utilization",
        "--host",
        "--kv-cache-dtype",
        "--kv-cache-memory",
        "--kv-cache-memory-bytes",
        "--kv-offload-dir",
        "--kv-offload-size",
        "--log-format",
        "--long-prefill-token-threshold",
        "--max-logprobs",
        "--max-long-partial-prefills",
        "--max-model-len",
        "--max-num-batched-tokens",
        "--max-num-partial-prefills",
        "--max-num-queued-reqs",
        "--max-num-queued-tokens",
        "--max-num-seqs",
        "--max-prompt-len",
        "--max-tokens-per-request",
        "--memory-utilization",
        "--no-enable-prefix-caching",
        "--no-strict-fields",
        "--override-generation-config",
        "--port",
        "--prefix-eviction-policy",
        "--queue-timeout",
        "--reasoning-parser",
        "--scheduling-policy",
        "--seed",
        "--served-model-name",
        "--shutdown-timeout",
        "--strict-fields",
        "--target-tpot",
        "--target-ttft",
        "--threads",
        "--tool-call-parser",
        "--trust-request-chat-template",
        "--uvicorn-log-level",
    }


def test_the_readme_has_every_flag_of_serve() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    table = readme[readme.index("## Flags") : readme.index("## How fast")]
    parameters = typer.main.get_command(main.app).commands["serve"].params  # type: ignore[attr-defined]
    flags = [flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)]
    assert [flag for flag in flags if flag.startswith("--") and flag != "--help" and f"`{flag}`" not in table] == []


def test_every_engine_argument_has_a_flag() -> None:
    assert SchedulingFlags().applied_to(EngineFlags().args("m")) == EngineArgs("m")
    flags = EngineFlags(
        1000, 3, 70, 0.5, 2**20, 4, Activations.BF16, Quantizations.INT8, 9, 50, "vllm", "{}", False, Eviction.LFU,
        Path("kv"), 2**20, KvCacheDtypes.INT8,
    )  # fmt: skip
    scheduling = SchedulingFlags(Policy.FCFS, 100, 3, 2, 0.5, 0.05, 7, 800, 9.0)
    args = replace(scheduling.applied_to(flags.args("m")), tenant_weights=(("a", 2.0),))  # weights are a key's
    default = EngineArgs()
    for name in EngineArgs.__dataclass_fields__:
        assert getattr(args, name) != getattr(default, name), f"{name} cannot be set"


def test_engine_flags_reach_the_engine(octavo: Octavo) -> None:
    octavo(
        *("generate", "some.gguf", "w", "--max-model-len", "8k", "--kv-cache-memory", "2GiB", "--threads", "2"),
        *("--gpu-memory-utilization", "0.5", "--activation-dtype", "bf16", "--max-num-batched-tokens", "1K"),
    )
    (args,) = octavo.asked  # type: ignore[attr-defined]
    assert (args.model, args.max_model_len, args.kv_cache_memory_bytes, args.threads) == ("some.gguf", 8000, 2**31, 2)
    assert (args.memory_utilization, args.activation_dtype, args.max_num_batched_tokens) == (0.5, "bf16", 1024)


def test_without_a_model_the_default_one_is_announced(octavo: Octavo) -> None:
    ran = octavo("chat", stdin="w\n")
    assert ran.code == 0 and "smollm2" in ran.err
    assert octavo.asked[0].model == "smollm2"  # type: ignore[attr-defined]


def test_generate_continues_its_argument_or_stdin(octavo: Octavo) -> None:
    assert octavo("generate", "m", "w").out == "xyz\n"
    assert octavo("generate", "m", stdin="t\n").out == "uvwxyz\n"
    assert octavo("generate", "m", "a", "--max-tokens", "3").out == "bcd\n"
    assert octavo("generate", "m", "w", "--n", "2").out == "--- 1 of 2\nxyz\n--- 2 of 2\nxyz\n"
    assert octavo("generate", "m", "a", "--stop", "f", "--stop", "d").out == "bc\n"


def test_generate_keeps_to_a_schema(octavo: Octavo, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"enum": ["x"]}, "minItems": 2, "maxItems": 2}')
    assert octavo("generate", "m", "w", "--json-schema", str(schema)).out == '["x", "x"]\n'
    schema.write_text('{"not": {}}')
    refused = octavo("generate", "m", "w", "--json-schema", str(schema))
    assert refused.code == 1 and "not" in refused.err and "Traceback" not in refused.err


@pytest.mark.parametrize(
    ("verb", "flag"),
    [
        ("serve", "--tool-call-parser"),
        ("serve", "--reasoning-parser"),
        ("run-batch", "--tool-call-parser"),
        ("run-batch", "--reasoning-parser"),
        ("chat", "--reasoning-parser"),
    ],
)
def test_a_parser_that_does_not_exist_is_told_before_the_model_is_loaded(
    octavo: Octavo, tmp_path: Path, verb: str, flag: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(batch_line("a"))
    files = ("-i", str(source), "-o", str(tmp_path / "out.jsonl")) if verb == "run-batch" else ()
    ran = octavo(verb, "m", *files, flag, "nonsense")
    assert ran.code == 1 and flag in ran.err and not octavo.asked  # type: ignore[attr-defined]


def test_unseeded_answers_differ_from_run_to_run(octavo: Octavo) -> None:
    for _ in range(2):
        octavo("generate", "m", "w")
    octavo("generate", "m", "w", "--seed", "7")
    first, second, given = (args.seed for args in octavo.asked)  # type: ignore[attr-defined]
    assert first != second and given == 7


def test_chat_answers_piped_lines_and_keeps_the_conversation(octavo: Octavo) -> None:
    ran = octavo("chat", "m", "--max-tokens", "2", stdin="a\n\nk\n/clear\n/nonsense\nw\n/exit\nz\n")
    assert ran.code == 0
    assert ran.out.splitlines() == ["bc", "lm", "xy"]
    assert "/nonsense" in ran.err


def test_a_conversation_that_grows_too_long_says_so(octavo: Octavo) -> None:
    ran = octavo("chat", "m", stdin="a" * 300 + "\n")
    assert ran.code == 1
    assert "300" in ran.err or "302" in ran.err
    assert "Traceback" not in ran.err


def test_ctrl_c_stops_the_answer_and_not_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeEngine()
    fake.executor.step_s = 0.005
    monkeypatch.setattr(local_engine, "build_engine", lambda *_, **__: fake.engine)
    spoken: list[str] = []

    def interrupt_at_d(text: str = "", **_: Any) -> None:
        spoken.append(text)
        if text == "d":
            raise KeyboardInterrupt

    monkeypatch.setattr(chat, "print", interrupt_at_d, raising=False)
    with local_engine.LocalEngine(EngineArgs("m")) as local:
        conversation = chat.Conversation(
            local, local.chat_preparer(ChatParsers()), SamplingParams(max_tokens=20), system=None
        )
        conversation.answer("a")
        assert "".join(spoken).startswith("bcd") and "t" not in spoken
        spoken.clear()
        conversation.answer("w")
        assert "".join(spoken).startswith("xyz")
    assert fake.pool.num_used == 0


def test_errors_are_one_line_without_traceback(octavo: Octavo) -> None:
    ran = octavo("pull", "no-such-model")
    assert ran.code == 1
    assert re.fullmatch(r"octavo: error: .*no-such-model.*\n", ran.err)
    ran = octavo("generate", "m", "w", "--temperature", "-1")
    assert ran.code == 1 and "temperature" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["serve", "--port", "70000"],
        ["serve", "--max-model-len", "long"],
        ["serve", "--kv-cache-memory", "2 parsecs"],
        ["serve", "--no-such-flag"],
        ["bench", "throughput", "m"],
        ["generate", "m", "w", "--max-tokens", "0"],
    ],
)
def test_wrong_usage_is_exit_code_two(octavo: Octavo, arguments: list[str]) -> None:
    ran = octavo(*arguments)
    assert ran.code == 2 and ran.err and "Traceback" not in ran.err


def test_serve_tells_of_a_taken_port_before_it_loads_anything(octavo: Octavo) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = octavo("serve", "no-such-model", "--port", str(port))
    assert ran.code == 1 and f"port {port}" in ran.err and "--port" in ran.err


@pytest.mark.parametrize("flag", ["--api-key", "--served-model-name"])
def test_serve_takes_no_empty_text(octavo: Octavo, flag: str) -> None:
    ran = octavo("serve", "no-such-model", "--port", "0", flag, "")
    assert ran.code == 1 and f"{flag} is empty" in ran.err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("stdout", "code"), [("/dev/full", 1), ("/dev/null", 0)])
def test_a_full_disk_is_one_line(stdout: str, code: int, unbuffered: str) -> None:
    command = [sys.executable, "-P", "-m", "octavo", "version"]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path(stdout).open("w") as out:
        ran = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=env)
    assert ran.returncode == code and "Traceback" not in ran.stderr
    assert ran.stderr.count("\n") == code


def test_version(octavo: Octavo) -> None:
    assert octavo("version").out == f"{__version__}\n"


def batch_line(custom_id: str, **fields: Any) -> str:
    body = {"model": "m.gguf", "prompt": "w", **fields}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}) + "\n"


def test_the_exit_code_of_a_batch_tells_whether_all_lines_are_answered(octavo: Octavo, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    batch = ("run-batch", "m.gguf", "-i", str(source), "-o", str(target), "--max-num-seqs", "3")
    source.write_text(batch_line("a"))
    ran = octavo(*batch)
    assert ran.code == 0 and f"1 lines written to {target}: 1 answered, 0 failed" in ran.err
    assert json.loads(target.read_text())["response"]["body"]["choices"][0]["text"] == "xyz"
    source.write_text(batch_line("a") + batch_line("b", temperature=-1))
    ran = octavo(*batch)
    assert ran.code == 1 and "0 answered, 1 failed" in ran.err and "response.status_code is not 200" in ran.err
    ran = octavo(*batch)
    assert ran.code == 1 and "0 answered, 0 failed" in ran.err and "1 of all lines" in ran.err
    assert octavo.asked[-1].max_num_seqs == 3  # type: ignore[attr-defined]


def test_a_batch_names_how_the_model_writes(octavo: Octavo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeEngine()
    fake.executor.says = "[THINK]a[/THINK]b"
    monkeypatch.setattr(engine_build, "build_engine", lambda *_, **__: fake.engine)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"model": "m.gguf", "messages": [{"role": "user", "content": "w"}]}
    source.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}))
    ran = octavo("run-batch", "m.gguf", "-i", str(source), "-o", str(target), "--reasoning-parser", "mistral")
    message = json.loads(target.read_text())["response"]["body"]["choices"][0]["message"]
    assert ran.code == 0 and (message["reasoning_content"], message["content"]) == ("a", "b")


def test_a_batch_may_name_the_model_as_it_likes(octavo: Octavo, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(batch_line("a", model="gpt-4o") + batch_line("b", model="other") + batch_line("c"))
    names = ("--served-model-name", "gpt-4o", "--served-model-name", "other")
    ran = octavo("run-batch", "m.gguf", "-i", str(source), "-o", str(target), *names)
    assert ran.code == 1 and "2 answered, 1 failed" in ran.err
    ran = octavo("run-batch", "m.gguf", "-i", str(source), "-o", str(tmp_path / "x"), "--served-model-name", "")
    assert ran.code == 1 and "--served-model-name is empty" in ran.err


def test_a_wrong_output_file_is_told_before_the_model_is_loaded(octavo: Octavo, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(batch_line("a"))
    ran = octavo("run-batch", "m.gguf", "-i", str(source), "-o", str(source))
    assert ran.code == 1 and "input file too" in ran.err and not octavo.asked  # type: ignore[attr-defined]


def test_bench_throughput(octavo: Octavo, tmp_path: Path) -> None:
    workload, out = tmp_path / "work.jsonl", tmp_path / "out.json"
    lines = [{"prompt_token_ids": [97] * n, "max_tokens": m} for n, m in ((3, 5), (40, 30), (1, 1))]
    workload.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = octavo("bench", "throughput", "m", "--workload", str(workload), "--json", str(out))
    assert ran.code == 0, ran.err
    figures = json.loads(out.read_text())
    assert figures["num_requests"] == 3 and figures["model"] == "alphabet"
    assert figures["num_output_tokens"] == 36, "the end of text is ignored"
    assert figures["output_tokens_per_s"] == pytest.approx(36 / figures["seconds"])
    assert figures["total_tokens_per_s"] == pytest.approx((36 + 44) / figures["seconds"])
    assert figures["settings"]["max_num_seqs"] == 8
    assert figures["machine"]["barrier_ns"] > 0 and figures["machine"]["read_gb_per_s"] > 0
    assert "output_tokens_per_s" in ran.out


def test_bench_latency(octavo: Octavo, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    sizes = ["--input-len", "9", "--output-len", "4", "--batch-size", "3", "--num-runs", "2"]
    ran = octavo("bench", "latency", "m", *sizes, "--json", str(out))
    assert ran.code == 0, ran.err
    figures = json.loads(out.read_text())
    for name in ("ttft_s", "tpot_s", "prefill_tokens_per_s", "output_tokens_per_s"):
        assert figures[name] > 0
    assert figures["settings"]["batch_size"] == 3
    assert octavo("bench", "latency", "m", "--input-len", "255").code == 1


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "[" * 100_000, "9" * 5000, '{"prompt_token_ids": [1]}',
             '{"prompt_token_ids": [], "max_tokens": 1}', '{"prompt_token_ids": [1], "max_tokens": 0}',
             '{"prompt_token_ids": "a", "max_tokens": 2}']
)  # fmt: skip
def test_a_malformed_workload_names_its_line(octavo: Octavo, tmp_path: Path, line: str) -> None:
    workload = tmp_path / "work.jsonl"
    workload.write_text('{"prompt_token_ids": [1], "max_tokens": 1}\n' + line + "\n")
    ran = octavo("bench", "throughput", "m", "--workload", str(workload))
    assert ran.code == 1 and "line 2" in ran.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b'{"prompt_token_ids": [1], "max_tokens": 1}\n{"prompt_token_ids": [1], "max_tokens": 256}\n',
            "line 2.*257.*256",
        ),
        (b"\x7fELF\xd0\xff", "is not text"),
    ],
)
def test_a_workload_that_cannot_be_measured_is_refused(
    octavo: Octavo, tmp_path: Path, content: bytes, words: str
) -> None:
    workload = tmp_path / "work.jsonl"
    workload.write_bytes(content)
    ran = octavo("bench", "throughput", "m", "--workload", str(workload))
    assert ran.code == 1 and re.search(words, ran.err)


def test_where_figures_go_is_tried_before_the_measurement(octavo: Octavo, tmp_path: Path) -> None:
    ran = octavo("bench", "latency", "m", "--json", str(tmp_path / "nowhere" / "out.json"))
    assert ran.code == 1 and re.fullmatch("octavo: error: .*nowhere.*\n", ran.err)
    assert not octavo.asked  # type: ignore[attr-defined]


@given(st.integers(1, 2**53))
def test_plain_numbers_mean_themselves(number: int) -> None:
    assert parse_count(str(number)) == parse_bytes(str(number)) == number


@pytest.mark.parametrize(
    ("text", "count"), [("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("2m", 2_000_000), ("1M", 2**20), (" 7 ", 7)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("2gib", 2**31), ("512MiB", 2**29), ("1.5GB", 15 * 10**8), ("3g", 3 * 2**30), ("10B", 10)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "0", "1.0001k", "k", "1 2", "1e3", "٣", "9" * 400, str(2**63)])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_count(text)
    with pytest.raises(typer.BadParameter):
        parse_bytes(text.replace("1.0001k", "0.3"))
