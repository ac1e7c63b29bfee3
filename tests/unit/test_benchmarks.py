"""The benchmarks run and write what they measured; how fast anything is, no test asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import peer_llama_cpp

ROOT = Path(__file__).parents[2]

# Not "python -m": that puts the source tree before the installed octavo, which alone has its native library.
START = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-c", START, str(ROOT), f"benchmarks.{module}", *arguments]


def run(module: str, *arguments: str, json_out: Path) -> Any:
    subprocess.run(command(module, *arguments, "--json", str(json_out)), check=True, timeout=120)
    return json.loads(json_out.read_text())


def test_ceilings_has_one_entry_for_a_thread_and_one_for_all(tmp_path: Path) -> None:
    ceilings = run("ceilings", json_out=tmp_path / "out.json")
    assert ceilings[0]["threads"] == 1
    assert all(value > 0 for entry in ceilings for name, value in entry.items() if name not in ("isa", "barrier_ns"))


def test_kernels_has_a_figure_for_each_type_and_number_of_rows(tmp_path: Path) -> None:
    types = ("Q4_1", "BF16", "INT8_CHANNEL", "IQ4_NL")
    shape = ("--shape", "SmolLM2 output", *(word for name in types for word in ("--type", name)), "--rows", "1", "40")
    found = run("kernels", "--only", "products", *shape, "--repeats", "1", "--no-peer", json_out=tmp_path / "out.json")
    (block,) = found["products"]
    measured = {(figure["type"], figure["rows"]) for figure in block["figures"]}
    assert measured == {(name, rows) for name in types for rows in (1, 40)}
    assert all(figure["us"] > 0 and figure["of_floor"] > 0 for figure in block["figures"])
    assert block["limits"]["read_gb_per_s"] > 0


def test_kernels_beside_products_are_measured_too(tmp_path: Path) -> None:
    parts = ("--only", "others", "--only", "attention", "--quick", "--repeats", "1")
    found = run("kernels", *parts, json_out=tmp_path / "out.json")
    assert len({figure["kernel"] for figure in found["others"]}) > 5 and found["attention"]
    assert all(figure["of_floor"] > 0 for figures in found.values() for figure in figures)


def test_llama_cpp_is_asked_for_one_stream(tmp_path: Path) -> None:
    binary = tmp_path / "llama-bench"
    binary.write_text(
        '#!/bin/sh\n[ "$*" = "-m m.gguf -p 0 -n 48 -d 32 -t 2 -r 1 -o json" ] && echo \'[{"avg_ts": 40.5}]\''
    )
    binary.chmod(0o755)
    assert peer_llama_cpp.decode(binary, Path("m.gguf"), 32, 48, 2) == 40.5


def test_every_gate_becomes_a_row_and_a_section_that_breaks_leaves_the_others(tmp_path: Path) -> None:
    sections = ("--only", "single", "--only", "attention", "--models", str(tmp_path))  # where there are no models
    status = subprocess.run(command("gates", *sections, "--out", str(tmp_path)), timeout=240, check=False).returncode
    report = json.loads((tmp_path / "gates.json").read_text())
    gates = report["gates"]
    assert status == 1
    assert list(report["broken"]) == ["single"]
    assert {gate["section"] for gate in gates} == {"attention"}
    assert len((tmp_path / "gates.md").read_text().splitlines()) == len(gates) + 2
    assert all(gate["measured"] > 0 and gate["state"]["read_gb_per_s"] > 0 for gate in gates)
