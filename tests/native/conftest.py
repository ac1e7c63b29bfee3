"""Contexts for every instruction set this machine has and for teams of one, two and three threads."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.native.library import Context, supported_isas

_contexts: dict[tuple[str, int], Context] = {}


@pytest.fixture(params=supported_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[1, 2, 3], ids=lambda threads: f"{threads}threads")
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def context(isa: str, threads: int) -> Context:
    """A context that lives as long as the test run; its idle threads sleep."""
    key = (isa, threads)
    if key not in _contexts:
        _contexts[key] = Context(isa, threads)
    return _contexts[key]


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers every run; the seed is printed, and pytest shows it when the test fails."""
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    return np.random.default_rng(seed)
