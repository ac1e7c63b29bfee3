"""Fixtures that every kind of test may use: the real models, fetched once into Octavo's cache outside the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.real_models import fetch

# For `benchmarks`, which is not installed; at the end, so that `octavo` is the installed one.
sys.path.append(str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return fetch("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    return fetch("gemma3")


@pytest.fixture(scope="session")
def qwen05_path() -> Path:
    return fetch("qwen0.5")
