"""Real models behind a real socket, one server for all tests that leave it as they found it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.cases.models import serve_model
from tests.server.conftest import fake as fake
from tests.server.conftest import server as server
from tests.server.conftest import totals as totals
from tests.server.live import Server


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Iterator[Server]:
    with serve_model(smollm2_path) as server:
        yield server
    gc.collect()


@pytest.fixture
def client(smollm2: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=smollm2.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client
