"""Keys, request ids, and what may be known without a key."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from octavo.metrics.totals import EngineTotals
from octavo.server.api_keys import named_key, numbered_keys
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, serving

# The last byte of "à" in UTF-8 is a no-break space in Latin-1, which is how headers are read.
KEYS = ("first-key", "zweiter-schlüssel", "clé-à")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    totals = EngineTotals()
    settings = ServerSettings(("alphabet",), api_keys=numbered_keys(KEYS))
    with serving(FakeEngine(totals).async_engine(), settings, totals) as running:
        yield running


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/chat/completions", "/metrics", "/version", "/openapi.json", "/nothing", "/health/"]
)
@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer wrong", "Basic first-key", "first-key"])
def test_everything_but_health_needs_a_key(guarded: Server, path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = guarded.request("GET", path, headers=headers)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_health_needs_none(guarded: Server) -> None:
    assert guarded.request("GET", "/health").status == 200


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(guarded: Server, key: str) -> None:
    headers = {"Authorization": b"Bearer " + key.encode()}
    assert guarded.request("GET", "/v1/models", headers=headers).status == 200  # type: ignore[arg-type]


def test_the_client_sees_an_authentication_error(guarded: Server) -> None:
    with openai.OpenAI(base_url=guarded.url, api_key="first-key", max_retries=0) as client:
        assert client.models.list().data
    with (
        openai.OpenAI(base_url=guarded.url, api_key="nope", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.models.list()
    assert refused.value.code == "invalid_api_key"


def test_request_ids_come_back(shared: Server) -> None:
    for path in ("/health", "/nothing", "/v1/models"):
        assert shared.request("GET", path, headers={"X-Request-Id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "é", "a\tb", "x" * 30_000])
def test_odd_request_ids_are_replaced(shared: Server, given: str) -> None:
    answer = shared.request("GET", "/health", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"].startswith("req-")
    assert len(answer.headers["x-request-id"]) < 50


def test_two_requests_may_share_a_request_id(shared: Server) -> None:
    """Clients repeat theirs when they retry; the engine needs its own."""
    headers = {"X-Request-Id": "same"}
    body = {"model": "alphabet", "prompt": "w"}
    ids = {shared.request("POST", "/v1/completions", body, headers).json["id"] for _ in range(2)}
    assert len(ids) == 2


def test_an_admin_key_guards_what_changes_the_server_for_everybody() -> None:
    totals = EngineTotals()
    settings = ServerSettings(("alphabet",), api_keys=numbered_keys(["user"]), admin_key=named_key("admin", "root"))
    with serving(FakeEngine(totals).async_engine(), settings, totals) as server:

        def status(path: str, key: str | None, method: str = "GET") -> int:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            return server.request(method, path, headers=headers).status

        assert [status("/reset_prefix_cache", key, "POST") for key in (None, "user", "root")] == [401, 401, 200]
        assert [status("/v1/models", key) for key in (None, "user", "root")] == [401, 200, 200]


def test_without_an_admin_key_any_key_will_do_and_without_keys_none_is_asked_for(
    guarded: Server, shared: Server
) -> None:
    assert guarded.request("POST", "/reset_prefix_cache").status == 401
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    assert guarded.request("POST", "/reset_prefix_cache", headers=headers).status == 200
    assert shared.request("POST", "/reset_prefix_cache").status == 200
