"""The numbers at /metrics agree with what was served."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from octavo.metrics.totals import EngineTotals
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Server, serving

NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
    "cache_config_info",
]


def test_the_page_parses_and_has_every_name(shared: Server) -> None:
    page = shared.request("GET", "/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(page.body.decode())}
    for name in NAMES:
        family = families[f"vllm:{name}"]
        for sample in family.samples:
            assert sample.labels["model_name"] == "alphabet" and sample.labels["engine"] == "0"
    assert {"http_requests", "http_request_duration_seconds", "process_resident_memory_bytes"} <= set(families)


def test_openmetrics_when_asked(shared: Server) -> None:
    page = shared.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    assert page.body.endswith(b"# EOF\n")


def test_totals_are_sums_over_requests(server: Server, fake: FakeEngine) -> None:
    answers = [server.chat("w"), server.complete(["a", "t"], max_tokens=4), server.complete("m", stream=True)]
    assert [answer.status for answer in answers] == [200] * 3
    prompt_tokens, output_tokens = 3 + 2 + 1, 4 + 8 + 14
    assert server.metric("vllm:prompt_tokens_total") == prompt_tokens
    assert server.metric("vllm:generation_tokens_total") == output_tokens
    assert server.metric("vllm:request_prompt_tokens_sum") == prompt_tokens
    assert server.metric("vllm:request_generation_tokens_sum") == output_tokens
    assert server.metric("vllm:request_success_total", finished_reason="stop") == 2
    assert server.metric("vllm:request_success_total", finished_reason="length") == 2
    for histogram in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_queue_time_seconds"):
        assert server.metric(f"vllm:{histogram}_count") == 4
    # Each request's tokens but its first.
    assert server.metric("vllm:inter_token_latency_seconds_count") == output_tokens - 4

    fake.executor.failures = 1
    server.chat("a")
    assert server.metric("vllm:request_success_total", finished_reason="error") == 1


def test_several_answers_are_one_request_with_one_prompt(server: Server) -> None:
    assert server.chat("w", n=3).status == 200
    assert server.complete("w", n=1, best_of=2, use_beam_search=True).status == 200
    assert server.metric("vllm:request_success_total", finished_reason="stop") == 3 + 1
    assert server.metric("vllm:request_params_n_count") == 2
    assert server.metric("vllm:request_params_n_sum") == 3 + 2
    assert server.metric("vllm:request_prompt_tokens_sum") == 3 + 1
    assert server.metric("vllm:request_generation_tokens_sum") == 3 * 4 + 4


def test_http_requests_are_counted_by_route(server: Server) -> None:
    server.chat("w")
    server.chat("w", n=500)
    server.request("GET", "/v1/models/x")
    server.request("GET", "/v1/models/y")
    server.request("GET", "/a/" + "b" * 1000)
    count = "http_requests_total"
    assert server.metric(count, handler="/v1/chat/completions", method="POST", status="2xx") == 1
    assert server.metric(count, handler="/v1/chat/completions", method="POST", status="4xx") == 1
    assert server.metric(count, handler="/v1/models/{name:path}", status="4xx") == 2
    assert server.metric(count, handler="none", status="4xx") == 1
    assert server.metric("http_request_duration_seconds_count", handler="/v1/chat/completions") == 2


def test_two_servers_in_one_process_count_apart(server: Server) -> None:
    totals = EngineTotals()
    with serving(FakeEngine(totals).async_engine(), ServerSettings(("alphabet",)), totals) as other:
        server.chat("w")
        assert server.metric("vllm:generation_tokens_total") == 4
        assert other.metric("vllm:generation_tokens_total") == 0
