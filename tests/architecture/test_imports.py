"""The import directions of ARCHITECTURE.md: a package may import only what lies below it, at the top of the module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo

ROOT = Path(octavo.__file__).parent

# For each package, the packages it may import. "root" stands for the modules directly in octavo/ that hold plain
# dataclasses, errors and configuration.
ALLOWED = {
    "cli": {"root", "llm", "chat", "tools", "server", "engine", "metrics", "weights", "backends", "tokenizer"},
    "server": {"root", "chat", "engine", "metrics", "tokenizer", "grammar", "reasoning", "tools"},
    "llm": {"root", "chat", "engine", "metrics", "tools"},
    "chat": {"root", "engine", "grammar", "reasoning", "tokenizer", "tools"},
    "engine": {
        "root",
        "scheduler",
        "kvcache",
        "backends",
        "tokenizer",
        "weights",
        "models",
        "graph",
        "quant",
        "metrics",
        "grammar",
        "reasoning",
    },
    "reasoning": {"root"},
    "tools": {"root", "grammar"},
    "grammar": {"root", "tokenizer"},
    "scheduler": {"root", "kvcache"},
    "kvcache": {"root"},
    "tokenizer": {"root"},
    "metrics": {"root"},
    "backends": {"root", "graph", "weights", "quant"},
    "quant": {"root", "weights"},
    "weights": {"root", "models", "graph"},
    "models": {"root", "graph"},
    "graph": {"root"},
    "root": {"root"},
}
ROOT_MODULES = {
    "config",
    "constraint",
    "envs",
    "errors",
    "json_text",
    "marker_search",
    "passage",
    "request",
    "sampling_params",
    "step",
    "structured_outputs",
    "version",
}
PURE_PYTHON = ("scheduler", "kvcache")
NOT_IN_PURE_PYTHON = {"numpy", "torch", "tokenizers"}
NEVER = {"torch", "transformers"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}


def modules() -> Iterator[Path]:
    return iter(sorted(ROOT.rglob("*.py")))


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if len(parts) == 1:
        return "root" if parts[0] in ROOT_MODULES else parts[0]
    return parts[0]


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            if node.module == "octavo":
                yield from (f"octavo.{alias.name}" for alias in node.names)


def package_imported(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "octavo" or len(parts) == 1:
        return None
    return "root" if parts[1] in ROOT_MODULES else parts[1]


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    package = package_of(path)
    if package in ("__init__", "__main__"):
        return
    allowed = ALLOWED[package] | {package}
    for name in imports_of(path):
        target = package_imported(name)
        assert target is None or target in allowed, f"{package} must not import {name}"


def test_bookkeeping_imports_no_tensors() -> None:
    for package in PURE_PYTHON:
        for path in (ROOT / package).rglob("*.py"):
            assert not NOT_IN_PURE_PYTHON & {name.split(".")[0] for name in imports_of(path)}, path


def test_core_needs_no_torch() -> None:
    for path in modules():
        assert not NEVER & {name.split(".")[0] for name in imports_of(path)}, path


def test_environment_is_read_in_one_place() -> None:
    for path in modules():
        if path.name != "envs.py":
            source = path.read_text()
            assert "os.environ" not in source and "getenv" not in source, f"{path}: read it in envs.py"


def test_no_drawers_for_odds_and_ends() -> None:
    assert not [path for path in ROOT.rglob("*") if path.stem in FORBIDDEN_NAMES]


def test_no_module_is_part_of_an_import_cycle() -> None:
    graph = {module_name(path): {n for n in imports_of(path) if n.startswith("octavo.")} for path in modules()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join((*path, name))}"
        if name in done or name not in graph:
            return
        for target in graph[name]:
            visit(target, (*path, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
