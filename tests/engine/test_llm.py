"""SmolLM2 through the whole engine: the same request gives the same tokens, whatever runs beside it and however."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.config import BLOCK_TOKENS, ActivationDtype, EngineArgs
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine
from octavo.step import TokenLogprobs
from tests.engine.fake_engine import Recorder

TEXT = """The keeper of the lighthouse wrote one line a day, and on most days the line was about the weather. On the
third of May he wrote that a ship had passed too close, that its lamps were green, and that nobody answered his call.
def mean(values): return sum(values) / len(values)  # 12, 7, 30 -> 16.33  Die Katze schläft. 猫は眠っている。"""
MAX_TOKENS = 8

GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)

Tokens = list[tuple[int, ...]]


@dataclass(frozen=True)
class Workload:
    """Requests to be run together or apart."""

    prompts: list[list[int]]
    sampling: list[SamplingParams]

    def run(self, llm: LLM, order: Sequence[int] | None = None) -> Tokens:
        """The tokens of each request, run as one batch in `order`; the result is in the workload's own order."""
        order = range(len(self.prompts)) if order is None else order
        outputs = llm.generate([self.prompts[i] for i in order], [self.sampling[i] for i in order])
        tokens = dict(zip(order, (output.outputs[0].token_ids for output in outputs), strict=True))
        return [tokens[index] for index in sorted(tokens)]

    def until(self, num_tokens: int) -> Workload:
        """The same requests, each going on until it is `num_tokens` long, prompt included."""
        ends = [num_tokens - len(prompt) for prompt in self.prompts]
        return Workload(self.prompts, [replace(s, max_tokens=end) for s, end in zip(self.sampling, ends, strict=True)])


def make_workload(llm: LLM, count: int, longest: int) -> Workload:
    """Prompts of 1 to `longest` tokens, every other one sampled with a seed, every third with a common beginning."""
    text = llm._engine.tokenizer.encode(TEXT * 2)
    rng = random.Random(20)
    starts = [0 if index % 3 == 0 else rng.randrange(len(text) - longest) for index in range(count)]
    sampled = replace(GREEDY, temperature=1.0, top_p=0.95, top_k=200)
    return Workload(
        [text[start : start + rng.randint(1, longest)] for start in starts],
        [replace(sampled, seed=index) if index % 2 else GREEDY for index in range(count)],
    )


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> str:
    return str(smollm2_path)


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, max_model_len=512, kv_cache_memory_bytes=2**27) as llm:
        yield llm


@pytest.fixture(scope="module")
def few(llm: LLM) -> tuple[Workload, Tokens]:
    """A few requests and what they get, each alone."""
    workload = make_workload(llm, 6, 75)
    return workload, [workload.run(llm, [index])[0] for index in range(6)]


@pytest.mark.parametrize(("activation_dtype", "count"), [("int8", 64), ("bf16", 24)])
def test_alone_in_a_batch_and_in_another_order(model: str, activation_dtype: ActivationDtype, count: int) -> None:
    options = {"max_model_len": 512, "kv_cache_memory_bytes": 2**28, "activation_dtype": activation_dtype}
    with LLM(model, **options) as llm:
        workload = make_workload(llm, count, 40)
        together = workload.run(llm)
        for index in range(0, count, 11):
            assert workload.run(llm, [index]) == [together[index]]
        order = list(range(count))
        random.Random(7).shuffle(order)
        assert workload.run(llm, order) == together


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_any_chunk_size(model: str, few: tuple[Workload, Tokens], chunk: int) -> None:
    workload, alone = few
    with LLM(model, max_model_len=512, kv_cache_memory_bytes=2**27, max_num_batched_tokens=chunk) as llm:
        assert workload.run(llm) == alone


def test_with_and_without_known_prefixes(model: str, few: tuple[Workload, Tokens]) -> None:
    """Beginnings are shared in whole blocks and inside blocks, and found again in what others left."""
    workload, alone = few
    options = {"max_model_len": 512, "kv_cache_memory_bytes": 2**27}
    with LLM(model, **options, enable_prefix_caching=False) as llm:
        assert workload.run(llm) == alone
        assert [out.num_cached_tokens for out in llm.generate(workload.prompts, workload.sampling)] == [0] * 6
    with LLM(model, **options) as llm:
        for cut in (1000, 33, 20):
            llm.generate([[*prompt[:cut], 7, 8, 9] for prompt in workload.prompts], replace(GREEDY, max_tokens=20))
        assert workload.run(llm) == alone
        outputs = llm.generate(workload.prompts, workload.sampling)
        assert [out.outputs[0].token_ids for out in outputs] == alone
        assert [out.num_cached_tokens for out in outputs] == [len(prompt) - 1 for prompt in workload.prompts]


def test_after_preemptions(model: str, llm: LLM, few: tuple[Workload, Tokens]) -> None:
    workload, alone = few
    longest = max(len(prompt) for prompt in workload.prompts) + MAX_TOKENS
    num_blocks = -(-longest // BLOCK_TOKENS) + 2
    block_bytes = llm.config.kv_cache_bytes // llm.config.num_blocks
    args = EngineArgs(model, max_model_len=longest, kv_cache_memory_bytes=num_blocks * block_bytes)
    stats = Recorder()
    with LLM.from_engine(build_engine(args, listeners=[stats])) as tiny:
        assert tiny.config.num_blocks == num_blocks
        expected = workload.until(longest).run(llm)
        assert workload.until(longest).run(tiny) == expected
    assert [tokens[:MAX_TOKENS] for tokens in expected] == alone
    assert sum(step.num_preempted for step in stats.steps) >= 2


Scored = list[tuple[tuple[TokenLogprobs | None, ...], tuple[TokenLogprobs, ...]]]


def scores(llm: LLM, workload: Workload) -> Scored:
    """The log probabilities of each prompt and of its answer."""
    outputs = llm.generate(workload.prompts, workload.sampling)
    return [(output.prompt_logprobs, output.outputs[0].logprobs) for output in outputs]


def test_log_probabilities_and_penalties_are_the_same_however_they_are_computed(model: str, llm: LLM) -> None:
    """Bit by bit: in chunks, beside known prefixes, which a scored prompt may not skip, and after preemptions."""
    plain = make_workload(llm, 6, 75)
    asked = {"logprobs": 3, "prompt_logprobs": 2, "repetition_penalty": 1.2, "frequency_penalty": 0.3}
    workload = replace(plain, sampling=[replace(sampling, **asked) for sampling in plain.sampling])  # type: ignore[arg-type]
    longest = max(len(prompt) for prompt in workload.prompts) + MAX_TOKENS
    workload = workload.until(longest)
    with LLM(model, max_model_len=512, kv_cache_memory_bytes=2**27, enable_prefix_caching=False) as alone:
        expected = [
            scores(alone, Workload([p], [s]))[0] for p, s in zip(workload.prompts, workload.sampling, strict=True)
        ]
    assert [len(prompt) for prompt, _ in expected] == [len(prompt) for prompt in workload.prompts]
    plain.run(llm)  # every prefix is known from here on
    assert scores(llm, workload) == expected
    with LLM(model, max_model_len=512, kv_cache_memory_bytes=2**27, max_num_batched_tokens=7) as chunked:
        assert scores(chunked, workload) == expected
    num_blocks = -(-longest // BLOCK_TOKENS) + 2
    block_bytes = llm.config.kv_cache_bytes // llm.config.num_blocks
    stats = Recorder()
    args = EngineArgs(model, max_model_len=longest, kv_cache_memory_bytes=num_blocks * block_bytes)
    with LLM.from_engine(build_engine(args, listeners=[stats])) as tiny:
        assert scores(tiny, workload) == expected
    assert sum(step.num_preempted for step in stats.steps) >= 1


def test_a_seed_decides_and_without_one_answers_differ(llm: LLM) -> None:
    def answers(*seeds: int | None) -> Tokens:
        sampling = [SamplingParams(temperature=1.5, seed=seed, max_tokens=12, ignore_eos=True) for seed in seeds]
        return [out.outputs[0].token_ids for out in llm.generate(["Once upon a time"] * len(seeds), sampling)]

    (alone,) = answers(2**63 + 5)
    batch = answers(3, 2**63 + 5, None, None, 4, 2**63 + 5, 2**63 + 5 - 2**64)
    assert batch[1] == batch[5] == batch[6] == alone
    assert len({*batch}) == 5


def test_stop_strings_cut_the_text_where_it_stands_alone(llm: LLM) -> None:
    free = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    (full,) = (out.outputs[0].text for out in llm.generate("The weather in May is", free))
    middle = len(full) // 2
    stop = full[middle : middle + 5]
    for include in (False, True):
        sampling = replace(free, stop=("never said", stop), include_stop_str_in_output=include)
        answer = llm.generate("The weather in May is", sampling)[0].outputs[0]
        assert answer.text == full[: full.index(stop) + len(stop) * include]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)


def test_min_tokens_holds_the_end_back(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is 1 + 1? Answer with one word."}]
    sampling = SamplingParams(temperature=0, max_tokens=60)
    brief = llm.chat(question, sampling)[0].outputs[0]
    assert brief.finish_reason == "stop" and brief.stop_reason is None
    count = len(brief.token_ids) + 5
    longer = llm.chat(question, replace(sampling, min_tokens=count))[0].outputs[0]
    assert len(longer.token_ids) >= count
    assert longer.token_ids[: len(brief.token_ids) - 1] == brief.token_ids[:-1]
    assert not set(longer.token_ids[:count]) & llm._engine.tokenizer.eos_token_ids


def test_an_abort_frees_everything_and_changes_nobody_elses_tokens(model: str, few: tuple[Workload, Tokens]) -> None:
    workload, alone = few
    stats = Recorder()
    args = EngineArgs(model, max_model_len=512, kv_cache_memory_bytes=2**27)
    engine = AsyncEngine(build_engine(args, listeners=[stats]))

    async def whole(index: int) -> tuple[int, ...]:
        request = engine.input.from_prompt(workload.prompts[index], workload.sampling[index])
        return tuple([token async for delta in engine.generate(request) for token in delta.token_ids])

    async def part(num_deltas: int) -> None:
        request = engine.input.from_prompt(TEXT, SamplingParams(max_tokens=None, ignore_eos=True))
        async with aclosing(engine.generate(request)) as stream:
            for _ in range(num_deltas):
                await anext(stream)

    async def main() -> list[tuple[int, ...]]:
        engine.start()
        streams = asyncio.gather(*(whole(index) for index in range(6)))
        await asyncio.gather(*(part(num_deltas) for num_deltas in (1, 2, 3)))
        tokens = await streams
        await engine.shutdown(20)
        return tokens

    assert asyncio.run(main()) == alone
    assert [request.finish_reason for request in stats.requests].count("abort") == 3
    assert stats.steps[-1].num_blocks_used == stats.steps[-1].num_running == 0


def test_a_script_that_closes_nothing_ends_without_a_word(model: str, tmp_path: Path) -> None:
    """Backend objects were freed at exit while the engine thread still prepared the memory of the KV cache."""
    script = f"from octavo import LLM; llm = LLM({model!r}); llm.generate('a')"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert "Traceback" not in ran.stderr
