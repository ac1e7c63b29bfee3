"""LLMs over the fake engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo import LLM
from tests.engine.fake_engine import FakeEngine


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine(num_blocks=60)


@pytest.fixture
def llm(fake: FakeEngine) -> Iterator[LLM]:
    with LLM.from_engine(fake.engine) as llm:
        yield llm
    assert fake.executor.closed and fake.pool.num_used == 0
