"""Blocks that leave for files: what comes back, what is never believed, and how much a step may wait for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from octavo.kvcache import offload
from octavo.kvcache.block_store import BlockStore
from octavo.request import PrefixKey
from octavo.step import StepPlan
from tests.engine.fakes import PAGE_BYTES
from tests.unit.test_prefix_cache import run, tokens
from tests.unit.test_scheduler import Harness, make_request

FINGERPRINT = b"model, precision, layout"
MIB = 2**20


def store_in(folder: Path, fingerprint: bytes = FINGERPRINT, num_groups: int = 1, max_bytes: int = MIB) -> BlockStore:
    return BlockStore(folder, fingerprint, [PAGE_BYTES] * num_groups, max_bytes)


def digest(number: int) -> bytes:
    return number.to_bytes(32, "little")


def blocks_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.block"))


def test_blocks_come_back_also_after_a_restart(tmp_path: Path) -> None:
    rng = random.Random(1)
    blocks = {digest(n): (rng.randbytes(PAGE_BYTES), rng.randbytes(PAGE_BYTES) if n % 2 else None) for n in range(20)}
    store = store_in(tmp_path, num_groups=2)
    for key, parts in blocks.items():
        store.put(key, parts)
        assert store.get(key) == parts, "also before it has been written"
    store.close()
    store = store_in(tmp_path, num_groups=2)
    assert len(store) == 20 and digest(20) not in store
    assert {key: store.get(key) for key in blocks} == blocks
    store.close()


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "renamed", "gone"])
def test_a_damaged_file_is_ignored_with_a_warning(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(2)
    store = store_in(tmp_path)
    for n in range(2):
        store.put(digest(n), (rng.randbytes(PAGE_BYTES),))
    store.close()
    path, other = blocks_in(tmp_path)
    data = path.read_bytes()
    store = store_in(tmp_path)
    if damage == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif damage == "flipped":
        place = rng.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "renamed":
        path.write_bytes(other.read_bytes())
    else:
        path.unlink()
    assert store.get(digest(0)) is None and str(path) in caplog.text
    assert digest(0) not in store and store.get(digest(1)) is not None
    store.put(digest(0), (b"a" * PAGE_BYTES,))
    assert store.get(digest(0)) == (b"a" * PAGE_BYTES,)
    store.close()


def test_what_another_model_left_is_not_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = store_in(tmp_path, b"another model")
    store.put(digest(0), (b"a" * PAGE_BYTES,))
    store.close()
    (foreign,) = blocks_in(tmp_path)
    store = store_in(tmp_path)
    assert digest(0) not in store
    foreign.rename(store._folder / foreign.name)
    (store._folder / "notes.txt").write_text("mine")
    store = store_in(tmp_path)
    assert "notes.txt" in caplog.text
    assert store.get(digest(0)) is None and "of another model" in caplog.text
    assert (store._folder / "notes.txt").exists()
    store.close()


def test_the_least_recently_used_files_go_first(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.put(digest(0), (b"a" * PAGE_BYTES,))
    store.close()
    (path,) = blocks_in(tmp_path)
    size = path.stat().st_size
    store = store_in(tmp_path, max_bytes=3 * size)
    for n in range(1, 3):
        store.put(digest(n), (b"a" * PAGE_BYTES,))
    store.close()
    store = store_in(tmp_path, max_bytes=3 * size)
    assert store.get(digest(0)) is not None
    store.put(digest(3), (b"a" * PAGE_BYTES,))
    store.close()
    assert [n for n in range(4) if (store._folder / (digest(n).hex() + ".block")).exists()] == [0, 2, 3]


def evict_all(harness: Harness) -> None:
    """Fills the memory with something else."""
    run(harness, f"other {len(harness.requests)}", tokens((90, harness.capacity - 1)))


def test_an_evicted_prefix_comes_back_also_in_another_process(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    harness = Harness(8, 4, 256, store=store)
    run(harness, "first", tokens((5, 100)))
    evict_all(harness)
    assert run(harness, "again", tokens((5, 100))) == 96, "whole blocks are saved, partial ones are not"
    assert run(harness, "other key", tokens((5, 100)), key=PrefixKey(cache_salt="s")) == 0
    store.close()
    harness = Harness(8, 4, 256, store=store_in(tmp_path))
    assert run(harness, "once more", tokens((5, 100))) == 96


def test_a_damaged_block_ends_the_prefix_before_it(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    harness = Harness(8, 4, 256, store=store)
    run(harness, "first", tokens((5, 100)))
    evict_all(harness)
    store.close()
    for path in blocks_in(tmp_path)[:3]:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    harness = Harness(8, 4, 256, store=store_in(tmp_path))
    assert run(harness, "again", tokens((5, 100))) in range(0, 96 - 16, 16)


def test_a_step_loads_so_much_and_the_rest_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "MAX_LOADS_PER_STEP", 2)
    store = store_in(tmp_path)
    harness = Harness(8, 4, 256, store=store)
    run(harness, "first", tokens((5, 100)))
    evict_all(harness)
    store.close()
    harness = Harness(8, 4, 256, store=store_in(tmp_path))
    harness.add(make_request("again", tokens((5, 100)), 1))
    harness.run_to_the_end()
    harness.check_outputs()
    assert [len(plan.loads) for plan in harness.executor.plans] == [2, 2, 2]
    assert [plan.num_tokens for plan in harness.executor.plans] == [0, 0, 4]


def test_loads_of_a_step_that_failed_are_made_in_the_next(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    harness = Harness(8, 4, 256, store=store)
    run(harness, "first", tokens((5, 100)))
    evict_all(harness)
    store.close()
    harness = Harness(8, 4, 256, store=store_in(tmp_path))
    harness.executor.failures.append(RuntimeError("no"))
    with pytest.raises(RuntimeError):
        run(harness, "again", tokens((5, 100)))
    harness.end("again")
    assert run(harness, "once more", tokens((5, 100))) == 96


def test_everything_known_can_be_saved_at_the_end(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    harness = Harness(8, 4, 256, store=store)
    run(harness, "first", tokens((5, 100)))
    for saves in harness.kv.save_all():
        assert len(saves) == 6
        harness.kv.finish_moves(harness.executor.execute(StepPlan((), (), saves=saves)).saved)
    harness.kv.close_store()
    assert len(store_in(tmp_path)) == 6


def test_window_groups_are_saved_as_far_as_they_are_known(tmp_path: Path) -> None:
    store = store_in(tmp_path, num_groups=2)
    harness = Harness(12, 4, 256, store=store, window_groups=[(12, 20)])
    run(harness, "first", tokens((5, 150)))
    evict_all(harness)
    assert run(harness, "again", tokens((5, 150))) == 144
    store.close()
    harness = Harness(12, 4, 256, store=store_in(tmp_path, num_groups=2), window_groups=[(12, 20)])
    assert run(harness, "once more", tokens((5, 150))) == 144


def test_files_that_cannot_be_deleted_are_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = store_in(tmp_path)
    store.put(digest(1), (bytes(PAGE_BYTES),))
    store.flush()
    (path,) = blocks_in(tmp_path)
    path.unlink()
    path.mkdir()
    store.clear()
    assert digest(1) not in store and "cannot delete" in caplog.text
    store.close()
