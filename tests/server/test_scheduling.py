"""Limits, priorities and queues as a client meets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from octavo.config import QueueLimits, SchedulingConfig, ServiceTargets
from octavo.metrics.totals import EngineTotals
from octavo.request import Request
from octavo.server.api_keys import ApiKey, digest
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine
from tests.server.live import Answer, Server, eventually, serving


@contextmanager
def serve(
    scheduling: SchedulingConfig | None = None, *, max_num_seqs: int = 8, **settings: Any
) -> Iterator[tuple[Server, FakeEngine]]:
    totals = EngineTotals()
    fake = FakeEngine(totals, max_num_seqs=max_num_seqs, scheduling=scheduling or SchedulingConfig())
    with serving(fake.async_engine(), ServerSettings(("alphabet",), **settings), totals) as server:
        yield server, fake


@contextmanager
def asking(server: Server, *prompts: str) -> Iterator[list[Answer]]:
    """Sends completions one after the other, each once the one before has been submitted, and awaits their answers."""
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda p=prompt: answers.append(server.complete(p))) for prompt in prompts]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        eventually(lambda n=number: server.engine.num_unfinished == n)  # type: ignore[misc]
    yield answers
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("limits", "name"),
    [(QueueLimits(max_requests=1), "max_num_queued_reqs"), (QueueLimits(max_tokens=5), "max_num_queued_tokens")],
)
def test_a_full_queue_is_a_503_that_says_when_to_come_back(limits: QueueLimits, name: str, stream: bool) -> None:
    with serve(SchedulingConfig(queue=limits), max_num_seqs=1) as (server, fake):
        fake.executor.gate.clear()
        with asking(server, "a", "bbbb") as answers:
            refused = server.complete("cc", stream=stream)
            fake.executor.gate.set()
        assert (refused.status, refused.error["code"]) == (503, "queue_full")
        assert name.replace("_", "-") in refused.error["message"]
        assert refused.headers["retry-after"] == "1" and refused.headers["x-should-retry"] == "true"
        assert server.metric("vllm:admission_rejections_total", reason=name) >= 1
        assert [answer.status for answer in answers] == [200, 200], "who was in the queue is served"
        assert server.complete("x").status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limits", [QueueLimits(max_requests=1), QueueLimits(max_tokens=3)])
def test_all_of_an_answer_is_let_in_or_nothing(limits: QueueLimits, stream: bool) -> None:
    with serve(SchedulingConfig(queue=limits), max_num_seqs=1) as (server, _):
        for body in ({"n": 5}, {"prompt": ["a", "b", "c", "d"], "n": 2}):
            answer = server.complete(**{"prompt": "a", "max_tokens": 2, "stream": stream, **body})
            assert answer.status == 200 and b"queue_full" not in answer.body


def test_a_request_waits_no_longer_than_it_may() -> None:
    with serve(max_num_seqs=1) as (server, fake):
        fake.executor.step_s = 0.05
        with asking(server, "a"):
            late = server.complete("b", queue_timeout=0.1)
        assert (late.status, late.error["code"]) == (503, "queue_timeout")
        assert late.headers["retry-after"] == "1"
        assert server.complete("b", queue_timeout=60.0).status == 200


def test_a_request_that_could_only_be_late_is_refused() -> None:
    with serve() as (server, _):
        answer = server.complete("a", queue_timeout=5e-324)
        assert (answer.status, answer.error["param"]) == (400, "queue_timeout") and "0.01" in answer.error["message"]


def test_the_servers_timeout_holds_for_all() -> None:
    with serve(SchedulingConfig(queue=QueueLimits(timeout_s=0.1)), max_num_seqs=1) as (server, fake):
        fake.executor.step_s = 0.05
        with asking(server, "a") as answers:
            assert server.complete("b", queue_timeout=60.0).error["code"] == "queue_timeout"
        assert answers[0].status == 200, "who runs is not in the queue"


def key(name: str, **limits: int) -> ApiKey:
    return ApiKey(name, digest(name.encode()), **limits)


@pytest.fixture(scope="module")
def limited() -> Iterator[Server]:
    keys = (key("small", max_prompt_len=4, max_tokens_per_request=6), key("plain"))
    with serve(api_keys=keys, max_prompt_len=9) as (server, _):
        yield server


def ask(server: Server, name: str, prompt: str, **fields: object) -> Answer:
    body = {"model": "alphabet", "prompt": prompt, **fields}
    return server.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {name}"})


@pytest.mark.parametrize(
    ("name", "prompt", "fields", "numbers"),
    [
        ("small", "aaaaa", {}, ["5 tokens", "at most 4"]),
        ("plain", "a" * 10, {}, ["10 tokens", "at most 9"]),
        ("small", "aaa", {"max_tokens": 4}, ["max_tokens is 4", "3"]),
    ],
)
def test_what_a_key_may_not_ask_for_is_refused_with_numbers(
    limited: Server, name: str, prompt: str, fields: dict[str, object], numbers: list[str]
) -> None:
    answer = ask(limited, name, prompt, **fields)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert all(number in answer.error["message"] for number in numbers)


def test_an_answer_whose_length_was_left_open_is_cut_to_the_limit(limited: Server) -> None:
    answer = ask(limited, "small", "a", ignore_eos=True)
    assert (answer.status, answer.json["usage"]["completion_tokens"]) == (200, 5)
    assert ask(limited, "plain", "a", max_tokens=100).status == 200


def test_the_answer_names_the_tier_that_was_served() -> None:
    tiers = {"auto": "default", "default": "default", "flex": "flex", "priority": "priority", "fast": "priority"}
    with serve() as (fair, _), serve(SchedulingConfig(policy="fcfs")) as (fcfs, _):
        for asked, served in tiers.items():
            assert fair.chat(service_tier=asked).json["service_tier"] == served
            assert fcfs.complete(service_tier=asked).json["service_tier"] == "default"
        assert all("service_tier" in event for event in fair.chat(service_tier="flex", stream=True).events)
        assert "service_tier" not in fair.chat().json


def test_a_priority_is_honoured_or_refused_by_name() -> None:
    with serve() as (fair, _), serve(SchedulingConfig(policy="shortest")) as (shortest, _):
        assert fair.complete(priority=-5).status == shortest.complete(priority=0).status == 200
        refused = shortest.complete(priority=1)
        assert (refused.status, refused.error["param"]) == (400, "priority")
        assert "shortest" in refused.error["message"]
        assert "-100 to 100" in fair.complete(priority=101).error["message"]


def test_who_asks_and_how_urgently_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(api_keys=(key("team"),)) as (server, fake):
        taken: list[Request] = []
        add = fake.engine.core.add_request
        monkeypatch.setattr(fake.engine.core, "add_request", lambda request: (taken.append(request), add(request)))
        for fields in ({}, {"user": "ann"}, {"user": "bob"}, {"safety_identifier": "ann", "user": "x", "priority": 2}):
            assert ask(server, "team", "w", **fields).status == 200
        assert [request.tenant.key for request in taken] == ["team"] * 4
        nobody, ann, bob, again = [request.tenant.user for request in taken]
        assert nobody == "" and ann == again != bob and "ann" not in ann
        assert [request.priority for request in taken] == [0, 0, 0, 2]


def test_a_priority_given_comes_before_that_of_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also 0, which is no priority left out."""
    with serve() as (server, fake):
        taken: list[int] = []
        add = fake.engine.core.add_request
        monkeypatch.setattr(fake.engine.core, "add_request", lambda one: (taken.append(one.priority), add(one)))
        for fields in ({}, {"priority": None}, {"priority": 0}, {"priority": 9}):
            assert server.complete("w", service_tier="priority", **fields).status == 200
        assert taken == [-3, -3, 0, 9]


def test_goodput_counts_those_within_both_targets() -> None:
    targets = ServiceTargets(ttft_s=60.0, tpot_s=0.02)
    with serve(SchedulingConfig(targets=targets)) as (server, fake):
        assert server.complete("w").status == 200
        fake.executor.step_s = 0.04
        assert server.complete("m").status == 200
        assert server.metric("octavo:requests_judged_total") == 2
        assert server.metric("octavo:requests_within_targets_total") == 1
