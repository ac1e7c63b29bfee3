"""The engine under asyncio: many streams, slow readers, readers that leave, shutdown."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.choices import fan_out
from octavo.engine.core import PREPARED_BYTES
from octavo.errors import EngineDeadError, EngineError, InvalidValueError, ShuttingDownError
from octavo.request import OutputDelta, Request
from octavo.sampling_params import SamplingParams
from octavo.step import StepOutput, StepPlan
from tests.engine.fake_engine import FakeEngine
from tests.engine.fakes import continuation, text_of

FREE = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
ENDLESS = replace(FREE, max_tokens=None)


class Gate:
    """Holds the backend back: it runs as many steps as `allow` has let through, or all once `open`."""

    def __init__(self, fake: FakeEngine) -> None:
        self.num_entered = 0
        self._tickets = threading.Semaphore(0)
        self._is_open = False
        self._execute = fake.executor.execute
        fake.executor.execute = self.execute  # type: ignore[method-assign]

    def allow(self, num_steps: int) -> None:
        self._tickets.release(num_steps)

    def open(self) -> None:
        self._is_open = True
        self._tickets.release()

    def execute(self, plan: StepPlan) -> StepOutput:
        self.num_entered += 1
        if not self._is_open:
            assert self._tickets.acquire(timeout=20)
        return self._execute(plan)


def serve(fake: FakeEngine, body: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    """Runs `body` with a started engine; afterwards nothing may be left behind."""

    async def main() -> None:
        engine = AsyncEngine(fake.engine)
        engine.start()
        assert engine.healthy
        try:
            await asyncio.wait_for(body(engine), 30)
        finally:
            await engine.shutdown(0)
        assert not engine.healthy and fake.executor.closed
        assert engine.num_unfinished == 0 and fake.pool.num_used == 0 and not fake.core.has_requests

    asyncio.run(main())


async def collect(engine: AsyncEngine, request: Request) -> list[OutputDelta]:
    deltas = [delta async for delta in engine.generate(request)]
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    return deltas


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_many_streams_at_once_each_get_their_own_text() -> None:
    fake = FakeEngine(num_blocks=60, max_num_seqs=16)

    async def body(engine: AsyncEngine) -> None:
        prompts = [[2 + i % 90, 3 + i % 80] * (1 + i % 20) for i in range(100)]
        streams = await asyncio.gather(*(collect(engine, engine.input.from_prompt(p, FREE)) for p in prompts))
        for prompt, deltas in zip(prompts, streams, strict=True):
            expected = continuation(prompt, FREE, 30)
            assert [token for delta in deltas for token in delta.token_ids] == expected
            assert "".join(delta.text for delta in deltas) == text_of(expected)

    serve(fake, body)


def test_closing_a_stream_aborts_its_request_within_a_step() -> None:
    fake = FakeEngine()
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        async with aclosing(engine.generate(engine.input.from_prompt("25", ENDLESS))) as stream:
            gate.allow(3)
            await anext(stream)
            await until(lambda: gate.num_entered == 4)  # the fourth step is under way, with the request in it
        gate.open()
        await until(lambda: engine.num_unfinished == 0)
        assert len(fake.executor.plans) == 4
        assert [stats.finish_reason for stats in fake.stats.requests] == ["abort"]

    serve(fake, body)


def test_memory_is_prepared_while_there_is_nothing_to_do_until_enough_is() -> None:
    fake = FakeEngine()
    amounts: list[int] = []

    def prepare(num_bytes: int) -> int:
        amounts.append(num_bytes)
        return num_bytes

    fake.executor.prepare = prepare  # type: ignore[method-assign]

    async def body(engine: AsyncEngine) -> None:
        await until(lambda: sum(amounts) >= PREPARED_BYTES)
        deltas = await collect(engine, engine.input.from_prompt("25", FREE))
        assert deltas[-1].finish_reason == "length"
        assert sum(amounts) == PREPARED_BYTES

    serve(fake, body)


def test_cancelling_the_reader_aborts_its_request() -> None:
    fake = FakeEngine()
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        reader = asyncio.create_task(collect(engine, engine.input.from_prompt("25", ENDLESS)))
        await until(lambda: gate.num_entered == 1)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        gate.open()
        await until(lambda: engine.num_unfinished == 0)
        assert fake.pool.num_used == 0

    serve(fake, body)


def test_an_aborted_stream_ends_with_one_last_delta() -> None:
    fake = FakeEngine(max_num_seqs=1)
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        requests = [engine.input.from_prompt("25", ENDLESS) for _ in range(3)]
        readers = [asyncio.create_task(collect(engine, request)) for request in requests]
        await until(lambda: gate.num_entered == 1)
        for request in (*requests, requests[0]):
            engine.abort(request.request_id)
        engine.abort("nobody")
        gate.open()
        for deltas in await asyncio.gather(*readers):
            assert deltas[-1].finish_reason == "abort"

    serve(fake, body)


def test_a_slow_reader_holds_nobody_up_and_misses_nothing() -> None:
    fake = FakeEngine()
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        slow = engine.generate(engine.input.from_prompt("258", FREE))
        gate.allow(1)
        first = await anext(slow)
        gate.open()
        await collect(engine, engine.input.from_prompt("25", replace(FREE, max_tokens=100)))
        (rest,) = [delta async for delta in slow]  # all that came in the meantime, merged
        expected = continuation([2, 5, 8], FREE, 30)
        assert first.text + rest.text == text_of(expected) and first.token_ids + rest.token_ids == tuple(expected)
        assert rest.finish_reason == "length" and rest.num_output_tokens == 30

    serve(fake, body)


def test_readers_that_come_and_go_at_random_leak_nothing() -> None:
    fake = FakeEngine(num_blocks=30, max_num_seqs=8)
    rng = random.Random()

    async def visit(engine: AsyncEngine) -> None:
        request = engine.input.from_prompt([rng.randrange(2, 90)] * rng.randrange(1, 100), FREE)
        patience = rng.randrange(0, 60)
        async with aclosing(engine.generate(request)) as stream:
            async for delta in stream:
                patience -= len(delta.token_ids)
                if patience < 0:
                    return

    async def body(engine: AsyncEngine) -> None:
        await asyncio.gather(*(visit(engine) for _ in range(200)))
        await until(lambda: engine.num_unfinished == 0)
        assert len(fake.stats.requests) == 200 and fake.pool.num_used == 0

    serve(fake, body)


def test_shutdown_lets_running_requests_finish_and_refuses_new_ones() -> None:
    fake = FakeEngine()
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        reader = asyncio.create_task(collect(engine, engine.input.from_prompt("258", FREE)))
        await until(lambda: gate.num_entered == 1)
        shutdown = asyncio.create_task(engine.shutdown(20))
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDownError):
            await collect(engine, engine.input.from_prompt("25", FREE))
        gate.open()
        await shutdown
        assert (await reader)[-1].finish_reason == "length"

    serve(fake, body)


def test_shutdown_aborts_what_does_not_finish_in_time() -> None:
    fake = FakeEngine()

    async def body(engine: AsyncEngine) -> None:
        endless = engine.input.from_prompt("25", replace(FREE, max_tokens=2000))
        gate = Gate(fake)
        reader = asyncio.create_task(collect(engine, endless))
        await until(lambda: gate.num_entered == 1)
        shutdown = asyncio.create_task(engine.shutdown(0.01))
        await asyncio.sleep(0.05)
        gate.open()
        await shutdown
        assert (await reader)[-1].finish_reason == "abort"

    serve(fake, body)


def test_a_dead_backend_ends_every_stream_and_refuses_new_ones() -> None:
    fake = FakeEngine(max_num_seqs=1)
    fake.executor.failures = [RuntimeError("broken")] * 3

    async def body(engine: AsyncEngine) -> None:
        streams = await asyncio.gather(*(collect(engine, engine.input.from_prompt("25", FREE)) for _ in range(10)))
        assert all(deltas[-1].finish_reason == "error" for deltas in streams)
        assert isinstance(streams[-1][-1].error, EngineDeadError)
        assert not engine.healthy
        with pytest.raises(EngineDeadError):
            await collect(engine, engine.input.from_prompt("25", FREE))

    serve(fake, body)


def test_a_fault_in_the_bookkeeping_ends_every_stream() -> None:
    fake = FakeEngine()

    async def body(engine: AsyncEngine) -> None:
        def broken() -> StepPlan:
            raise ZeroDivisionError("a bug")

        schedule, fake.core._scheduler.schedule = fake.core._scheduler.schedule, broken  # type: ignore[method-assign]
        deltas = await collect(engine, engine.input.from_prompt("25", FREE))
        assert isinstance(deltas[-1].error, EngineDeadError) and "a bug" in str(deltas[-1].error)
        assert not engine.healthy
        fake.core._scheduler.schedule = schedule  # type: ignore[method-assign]

    serve(fake, body)


def test_a_fault_while_aborting_ends_every_stream() -> None:
    fake = FakeEngine()
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        def broken(request_id: str) -> OutputDelta:
            raise ZeroDivisionError("a bug")

        abort, fake.core.abort = fake.core.abort, broken  # type: ignore[method-assign]
        requests = [engine.input.from_prompt("25", FREE) for _ in range(2)]
        streams = [asyncio.create_task(collect(engine, request)) for request in requests]
        await until(lambda: gate.num_entered > 0)
        engine.abort(requests[0].request_id)
        gate.open()
        for deltas in await asyncio.gather(*streams):
            assert isinstance(deltas[-1].error, EngineDeadError) and "a bug" in str(deltas[-1].error)
        fake.core.abort = abort  # type: ignore[method-assign]

    serve(fake, body)


def test_prefixes_that_nobody_wants_forgotten_any_more_or_that_cannot_be() -> None:
    fake = FakeEngine()
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        stream = asyncio.create_task(collect(engine, engine.input.from_prompt("25", FREE)))
        await until(lambda: gate.num_entered > 0)
        resetting = asyncio.create_task(engine.reset_prefixes())
        await asyncio.sleep(0)
        resetting.cancel()
        gate.open()
        assert (await stream)[-1].finish_reason == "length"

        def broken() -> int:
            raise ZeroDivisionError("a bug")

        fake.core.reset_prefixes = broken  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await engine.reset_prefixes()
        assert (await collect(engine, engine.input.from_prompt("25", FREE)))[-1].finish_reason == "length"

    serve(fake, body)


def test_a_request_id_in_use_is_refused() -> None:
    fake = FakeEngine()
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        gate.allow(1)
        async with aclosing(engine.generate(engine.input.from_prompt("25", ENDLESS, request_id="a"))) as stream:
            await anext(stream)
            with pytest.raises(InvalidValueError, match="'a' is in use"):
                await collect(engine, engine.input.from_prompt("25", FREE, request_id="a"))
            gate.open()

    serve(fake, body)


def test_a_request_id_is_in_use_until_its_stream_is_closed() -> None:
    """The end of the first stream took the second one's place along."""
    fake = FakeEngine()

    async def body(engine: AsyncEngine) -> None:
        async with aclosing(engine.generate(engine.input.from_prompt("25", FREE, request_id="a"))) as stream:
            await anext(stream)
            await until(lambda: engine.num_unfinished == 0)
            with pytest.raises(InvalidValueError, match="'a' is in use"):
                await collect(engine, engine.input.from_prompt("25", FREE, request_id="a"))
        assert (await collect(engine, engine.input.from_prompt("25", FREE, request_id="a")))[-1].finished

    serve(fake, body)


def test_an_engine_that_was_not_started_says_so() -> None:
    async def main() -> None:
        engine = AsyncEngine(FakeEngine().engine)
        assert not engine.healthy
        with pytest.raises(EngineError, match="not been started"):
            await collect(engine, engine.input.from_prompt("25", FREE))
        await engine.shutdown(0)

    asyncio.run(main())


def test_one_engine_serves_one_event_loop_after_another() -> None:
    fake = FakeEngine()
    engine = AsyncEngine(fake.engine)
    engine.start()
    for _ in range(3):
        deltas = asyncio.run(collect(engine, engine.input.from_prompt("258", FREE)))
        assert "".join(delta.text for delta in deltas) == text_of(continuation([2, 5, 8], FREE, 30))
    asyncio.run(engine.shutdown(1))
    assert fake.executor.closed


def test_a_loop_that_closes_with_a_stream_open_leaves_no_request_behind() -> None:
    fake = FakeEngine()
    engine = AsyncEngine(fake.engine)
    engine.start()

    async def walk_away() -> None:
        stream = engine.generate(engine.input.from_prompt("25", ENDLESS))
        await anext(stream)

    asyncio.run(walk_away())
    deltas = asyncio.run(collect(engine, engine.input.from_prompt("258", FREE)))
    assert deltas[-1].finish_reason == "length"
    asyncio.run(engine.shutdown(1))
    assert fake.pool.num_used == 0


@pytest.mark.parametrize("timeout_s", [0, 20])
def test_shutdown_ends_every_choice_and_search_once(timeout_s: float) -> None:
    """In time they finish, else they are aborted; either way each has one last delta and nothing is held."""
    fake = FakeEngine()
    gate = Gate(fake)

    async def body(engine: AsyncEngine) -> None:
        several = replace(FREE, n=3, temperature=1.0, seed=1)
        search = replace(FREE, n=2, best_of=4, use_beam_search=True)
        requests = [*fan_out(fake.input.from_prompt("258", several)), fake.input.from_prompt("25", search)]
        streams = [asyncio.create_task(collect(engine, request)) for request in requests]
        gate.allow(5)
        await until(lambda: gate.num_entered >= 5)
        ending = asyncio.create_task(engine.shutdown(timeout_s))
        await asyncio.sleep(0.01)
        gate.open()
        await ending
        ends = [deltas[-1].finish_reason for deltas in await asyncio.gather(*streams)]
        assert ends == ["length" if timeout_s else "abort"] * 4

    serve(fake, body)
    assert fake.pool.num_used == 0
