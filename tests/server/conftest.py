"""Servers over the fake engine."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, serving


@pytest.fixture
def totals() -> EngineTotals:
    return EngineTotals()


@pytest.fixture
def fake(totals: EngineTotals) -> FakeEngine:
    return FakeEngine(totals)


@pytest.fixture
def server(fake: FakeEngine, totals: EngineTotals) -> Iterator[Server]:
    """A server of its own for each test."""
    with serving(fake.async_engine(), ServerSettings(("alphabet",)), totals) as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """One server for the tests of a module that leave it as they found it."""
    totals = EngineTotals()
    settings = ServerSettings(("alphabet", "other/name"), max_body_bytes=100_000, max_choices=8)
    with serving(FakeEngine(totals).async_engine(), settings, totals) as running:
        yield running


@pytest.fixture
def client(shared: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=shared.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client
