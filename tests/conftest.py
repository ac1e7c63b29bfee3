"""Fixtures that every kind of test may use: the real models, fetched once into Octavo's cache outside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_models import fetch


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return fetch("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    return fetch("gemma3")


@pytest.fixture(scope="session")
def qwen05_path() -> Path:
    return fetch("qwen0.5")
