"""Batch files: every line is answered once, whatever it is and however often the run is interrupted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from octavo.config import QueueLimits, SchedulingConfig
from octavo.errors import ConfigError, EngineDeadError
from octavo.metrics.totals import EngineTotals
from octavo.server.batch_done import BatchFiles
from octavo.server.batch_file import BatchLine
from octavo.server.run_batch import BatchCounts, run_batch
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine


def request_line(custom_id: str, content: str, **fields: Any) -> str:
    body = {"model": "alphabet", "messages": [{"role": "user", "content": content}], **fields}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def answer(fake: FakeEngine, files: BatchFiles) -> BatchCounts:
    settings = ServerSettings(("alphabet",))
    return asyncio.run(run_batch(fake.async_engine(), settings, EngineTotals(), files, show=False))


def run(source: Path, target: Path) -> int:
    return answer(FakeEngine(), BatchFiles.open(source, target)).num_written


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
    ("[" * 100_000, "not valid JSON: it is nested too deeply"),
    ('{"custom_id": ' + "9" * 5000 + "}", "not valid JSON: an integer has more than 4300 digits"),
    (b"\xff{}".decode("latin-1"), "not valid JSON"),
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
    fake = FakeEngine()
    fake.executor.failures = 1000
    with pytest.raises(EngineDeadError):
        answer(fake, BatchFiles.open(source, target))
    num_failed = len(lines_of(target))
    assert all(line["response"]["status_code"] == 500 for line in lines_of(target))
    assert num_failed < 40 and run(source, target) == 40 - num_failed


def test_failed_lines_are_counted_over_all_runs(files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text("\n".join(["{", request_line("a", "w", temperature=-1), request_line("b", "w")]))
    assert answer(FakeEngine(), BatchFiles.open(source, target)) == BatchCounts(3, 2, 2)
    assert answer(FakeEngine(), BatchFiles.open(source, target)) == BatchCounts(0, 0, 2)


@pytest.mark.parametrize("custom_id", ["\ud800", "é\u2028", "\x00"])
def test_a_custom_id_may_be_any_text(files: tuple[Path, Path], custom_id: str) -> None:
    source, target = files
    source.write_text(request_line(custom_id, "w") + "\n" + request_line("next", "w"))
    assert run(source, target) == 2
    assert {line["custom_id"] for line in lines_of(target)} == {custom_id, "next"}
    assert run(source, target) == 0


def answer_with_short_queue(files: tuple[Path, Path], *lines: str) -> BatchCounts:
    source, target = files
    source.write_text("\n".join(lines))
    fake = FakeEngine(max_num_seqs=2, scheduling=SchedulingConfig(queue=QueueLimits(max_requests=3)))
    return answer(fake, BatchFiles.open(source, target))


def test_no_more_lines_are_sent_than_may_wait(files: tuple[Path, Path]) -> None:
    lines = [request_line(str(index), "a") for index in range(40)]
    assert answer_with_short_queue(files, *lines) == BatchCounts(40, 0, 0)


def test_a_full_queue_refuses_lines_and_does_not_end_the_run(files: tuple[Path, Path]) -> None:
    lines = [request_line(str(index), "a", n=20) for index in range(10)]
    counts = answer_with_short_queue(files, *lines)
    responses = [line["response"] for line in lines_of(files[1])]
    refusals = [answer["body"]["error"]["code"] for answer in responses if answer["status_code"] == 503]
    assert len(responses) == 10 and 1 <= len(refusals) <= 9 and set(refusals) == {"queue_full"}
    assert counts == BatchCounts(10, len(refusals), len(refusals))


def test_lines_are_read_when_their_turn_comes(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = files
    source.write_text("\n".join(request_line(str(index), "w") for index in range(100)))
    lines_left = BatchFiles.lines_left
    most_ahead = 0

    def watched(batch: BatchFiles) -> Generator[BatchLine, None, None]:
        nonlocal most_ahead
        for number, line in enumerate(lines_left(batch), 1):
            if target.exists() and target.stat().st_size:
                most_ahead = max(most_ahead, number - len(lines_of(target)))
            yield line

    monkeypatch.setattr(BatchFiles, "lines_left", watched)
    assert run(source, target) == 100
    assert 1 <= most_ahead <= 3 * 8


OTHER_FILES = ["my notes", "my notes\n", '{"id": "batch_req_1", "custom_id": "a"}\n', "{}\n", '{"id": 7']


@pytest.mark.parametrize("text", OTHER_FILES)
def test_a_file_that_is_no_output_is_left_alone(files: tuple[Path, Path], text: str) -> None:
    source, target = files
    source.write_text(request_line("a", "w"))
    target.write_text(text)
    with pytest.raises(ConfigError, match="line 1"):
        BatchFiles.open(source, target)
    assert target.read_text() == text


def test_the_input_file_is_not_written_to(files: tuple[Path, Path]) -> None:
    source, _ = files
    source.write_text(request_line("a", "w"))
    with pytest.raises(ConfigError, match="input file too"):
        BatchFiles.open(source, source)
    assert source.read_text() == request_line("a", "w")


def test_a_pipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="--input-file"):
        BatchFiles.open(Path("/dev/null"), Path("out.jsonl"))


@pytest.mark.parametrize("num_bytes", range(1, 60, 7))
def test_a_line_cut_anywhere_is_answered_again(files: tuple[Path, Path], num_bytes: int) -> None:
    source, target = files
    source.write_text(request_line("a", "w"))
    run(source, target)
    target.write_bytes(target.read_bytes()[:num_bytes])
    assert run(source, target) == 1
    assert [line["custom_id"] for line in lines_of(target)] == ["a"]
