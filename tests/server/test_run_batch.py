"""Batch files: every line is answered once, whatever it is and however often the run is interrupted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import EngineDeadError
from octavo.metrics.totals import EngineTotals
from octavo.server.run_batch import run_batch
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine


def request_line(custom_id: str, content: str, **fields: Any) -> str:
    body = {"model": "alphabet", "messages": [{"role": "user", "content": content}], **fields}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def run(source: Path, target: Path) -> int:
    totals = EngineTotals()
    engine = FakeEngine(totals).async_engine()
    return asyncio.run(run_batch(engine, ServerSettings(("alphabet",)), totals, source, target, show=False))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def test_every_line_is_answered_by_the_server_s_own_routes(files: tuple[Path, Path]) -> None:
    source, target = files
    letters = "abcdefghijklmnopqrstuvwxy" * 4
    requests = [request_line(f"id-{index}", letter) for index, letter in enumerate(letters)]
    body = {"model": "alphabet", "prompt": "w"}
    completion = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": body}
    source.write_text("\n".join([*requests, "", json.dumps(completion)]))
    assert run(source, target) == 101
    written = {line["custom_id"]: line for line in lines_of(target)}
    for index, letter in enumerate(letters):
        response = written[f"id-{index}"]["response"]
        assert response["status_code"] == 200 and response["request_id"]
        content = response["body"]["choices"][0]["message"]["content"]
        assert content == "abcdefghijklmnopqrstuvwxyz".partition(letter)[2] and written[f"id-{index}"]["error"] is None
    assert written["c"]["response"]["body"]["choices"][0]["text"] == "xyz"
    assert len({line["id"] for line in written.values()}) == 101


BAD_LINES = [
    ("{", "not valid JSON"),
    ("[" * 100_000, "not valid JSON"),
    ("[]", "not a JSON object"),
    ("{}", "custom_id"),
    ('{"custom_id": "x"}', "method"),
    (request_line("y", "w").replace("POST", "GET"), "POST"),
    (request_line("z", "w").replace("chat/completions", "embeddings"), "url"),
    ('{"custom_id": "b", "method": "POST", "url": "/v1/completions"}', "body"),
    (request_line("s", "w", stream=True), "stream"),
    (request_line("good", "w"), "used by an earlier line"),
]


def test_a_bad_line_costs_one_error_and_nothing_else(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text("\n".join([request_line("good", "w"), *(line for line, _ in BAD_LINES)]))
    assert run(source, target) == 1 + len(BAD_LINES)
    good = [line for line in lines_of(target) if line["error"] is None]
    bad = {line["error"]["line"]: line for line in lines_of(target) if line["error"] is not None}
    assert [line["custom_id"] for line in good] == ["good"] and len(bad) == len(BAD_LINES)
    for number, (_, message) in enumerate(BAD_LINES, 2):
        assert bad[number]["response"] is None and message in bad[number]["error"]["message"]


def test_what_the_server_refuses_has_its_error(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text(request_line("a", "w", temperature=-1) + "\n" + request_line("b", "w", model="other") + "\n")
    run(source, target)
    responses = {line["custom_id"]: line["response"] for line in lines_of(target)}
    assert responses["a"]["status_code"] == 400 and responses["a"]["body"]["error"]["param"] == "temperature"
    assert responses["b"]["status_code"] == 404


def test_a_run_goes_on_where_the_last_one_ended(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text("\n".join([request_line("a", "w"), "{", request_line("b", "x"), request_line("c", "y")]))
    run(source, target)
    whole = target.read_text().splitlines(keepends=True)
    kept = [line for line in whole if '"custom_id": "b"' not in line]
    target.write_text("".join(kept) + '{"id": "batch_req_cut", "cust')
    assert run(source, target) == 1
    assert sorted(str(line["custom_id"]) for line in lines_of(target)) == ["None", "a", "b", "c"]
    assert run(source, target) == 0


def test_an_empty_file(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text("")
    assert run(source, target) == 0 and target.read_text() == ""


def test_a_broken_engine_ends_the_run_and_leaves_the_rest_to_the_next(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text("\n".join(request_line(str(index), "a") for index in range(40)))
    totals = EngineTotals()
    fake = FakeEngine(totals)
    fake.executor.failures = 1000
    broken = run_batch(fake.async_engine(), ServerSettings(("alphabet",)), totals, source, target, show=False)
    with pytest.raises(EngineDeadError):
        asyncio.run(broken)
    num_failed = len(lines_of(target))
    assert all(line["response"]["status_code"] == 500 for line in lines_of(target))
    assert num_failed < 40 and run(source, target) == 40 - num_failed
