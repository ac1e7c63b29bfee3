"""The executor: right logits for every family, and the same tokens whatever else is in the batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

import numpy as np
import pytest
import torch

from octavo.backends.native.decoding import NUM_AHEAD
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.native.library import FloatArray, Program
from octavo.config import BLOCK_TOKENS
from octavo.errors import ConfigError, EngineError, InvalidValueError, StepError, UnsupportedModelError
from octavo.models.llama import Llama
from octavo.sampling_params import SamplingParams
from octavo.step import (
    BlockAddress,
    BlockCopy,
    BlockLoad,
    KvGroup,
    RowBlocks,
    RowStart,
    RowStep,
    StepOutput,
    StepPlan,
    TokenLogprobs,
)
from octavo.weights.gguf import GGUFType
from tests.native.tiny import FAMILIES, GEMMA, LLAMA, SPARSE_MIXTRAL, TinyModel

GREEDY = SamplingParams(temperature=0.0, max_tokens=None)
MIXED = (GGUFType.Q4_0, GGUFType.Q8_0, GGUFType.F16, GGUFType.Q5_1, GGUFType.Q4_1)  # rows of 64 and 96 columns
MAX_MODEL_LEN = 96


def executor_of(
    model: TinyModel, isa: str, threads: int = 1, activation_dtype: str = "int8", num_blocks: int = 64
) -> NativeExecutor:
    assert activation_dtype in ("bf16", "int8")
    made = NativeExecutor(
        model.checkpoint,
        isa=isa,
        threads=threads,
        activation_dtype="bf16" if activation_dtype == "bf16" else "int8",
    )
    made.allocate([num_blocks] * len(made.kv_groups), 8, 64, MAX_MODEL_LEN)
    return made


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


@pytest.fixture(params=list(FAMILIES))
def model(request: pytest.FixtureRequest, rng: np.random.Generator) -> TinyModel:
    return TinyModel(rng, FAMILIES[request.param](), MIXED)


@pytest.fixture
def executor(isa: str, rng: np.random.Generator) -> Iterator[NativeExecutor]:
    made = executor_of(TinyModel(rng, FAMILIES["llama"]()), isa, threads=2)
    yield made
    made.close()


def prompt_of(rng: np.random.Generator, num_tokens: int) -> tuple[int, ...]:
    return tuple(rng.integers(0, LLAMA.vocab_size, num_tokens).tolist())


def start_of(row: int, token_ids: tuple[int, ...]) -> RowStart:
    return RowStart(row, token_ids, len(token_ids), GREEDY)


def relative_error(found: FloatArray, expected: FloatArray) -> float:
    return float(np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()))


@pytest.mark.parametrize("activation_dtype, tolerance", [("bf16", 0.02), ("int8", 0.05)])
def test_logits_are_those_of_the_model(
    model: TinyModel, isa: str, activation_dtype: str, tolerance: float, rng: np.random.Generator
) -> None:
    """A wrong fusion, row order, window, rope or residual is an error of order one; rounding is far below."""
    executor = executor_of(model, isa, 2, activation_dtype)
    prompt = prompt_of(rng, 75)
    scores = executor.score(prompt)
    assert scores.shape == (75, LLAMA.vocab_size)
    assert relative_error(scores, model.eager_logits(prompt)) < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_16_and_32_bits_may_be_rounded_to_int8(family: str, isa: str, rng: np.random.Generator) -> None:
    """Also those of experts, and gates beside ups: all take the same kind of operand."""
    model = TinyModel(rng, FAMILIES[family](), (GGUFType.BF16, GGUFType.F16, GGUFType.F32))
    plain = NativeExecutor(model.checkpoint, isa=isa, threads=1, activation_dtype="bf16")
    rounded = NativeExecutor(model.checkpoint, isa=isa, threads=2, activation_dtype="int8", quantization="int8")
    prompt = prompt_of(rng, 75)
    assert relative_error(rounded.score(prompt), model.eager_logits(prompt)) < 0.06
    assert rounded.weight_bytes < 0.6 * plain.weight_bytes


def test_an_int8_kv_cache_is_smaller_and_close(model: TinyModel, isa: str, rng: np.random.Generator) -> None:
    """Decoding through it gives the bits of one pass over the whole text, as with bf16."""
    executor = NativeExecutor(model.checkpoint, isa=isa, threads=2, activation_dtype="bf16", kv_cache_dtype="int8")
    executor.allocate([64] * len(executor.kv_groups), 8, 64, MAX_MODEL_LEN)
    prompt = prompt_of(rng, 40)
    assert relative_error(executor.score(prompt), model.eager_logits(prompt)) < 0.03
    request = Running(0, list(prompt))
    output = Driver(executor, rng).finish(request, 10)
    assert output == executor.score(request.tokens).argmax(-1)[len(prompt) - 1 : -1].tolist()
    plain = NativeExecutor(model.checkpoint, isa=isa, threads=1, activation_dtype="bf16")
    for group, wide in zip(executor.kv_groups, plain.kv_groups, strict=True):
        assert group.block_bytes * 2 == wide.block_bytes * (1 + 4 / 32)  # heads of 32 have a scale of 4 bytes


def test_the_number_of_threads_changes_no_bit(model: TinyModel, isa: str, rng: np.random.Generator) -> None:
    prompt = prompt_of(rng, 70)
    one, *others = (executor_of(model, isa, threads).score(prompt) for threads in (1, 2, 3))
    for other in others:
        np.testing.assert_array_equal(other, one)


@dataclass
class Running:
    """A request as the tests drive it: what has been computed, which blocks it has."""

    row: int
    tokens: list[int]
    sampling: SamplingParams = GREEDY
    forbidden: tuple[int, ...] = ()
    min_total_tokens: int = 0
    num_computed: int = 0
    blocks: list[deque[int]] = field(default_factory=list)  # of each layer group, without those behind the window
    num_behind: list[int] = field(default_factory=list)  # blocks of each layer group that the window has passed
    output: list[int] = field(default_factory=list)
    started: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    mask: bytes | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    scored: list[TokenLogprobs] = field(default_factory=list)
    num_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)

    @property
    def decodes(self) -> bool:
        """Whether it runs, has one token to compute, and there is no more to say about it."""
        return self.started and self.mask is None and self.num_computed == len(self.tokens) - 1 >= self.num_prompt


class Driver:
    """The least scheduler that can drive an executor: chunks of given sizes, blocks from shuffled free lists.

    Blocks behind a window go back at once, and are the first to be used again. In three steps of four those
    who only decode are said to be decoding, which puts them first; in the others each has a step like any request.
    """

    def __init__(self, executor: NativeExecutor, rng: np.random.Generator, num_blocks: int = 64) -> None:
        self.executor = executor
        self.rng = rng
        self.groups = executor.kv_groups
        self.free: list[list[int]] = [rng.permutation(num_blocks).tolist() for _ in self.groups]

    def step(self, chunks: Sequence[tuple[Running, int]]) -> None:
        """Each request computes so many of its tokens, or all it has; who has caught up samples one more."""
        starts = tuple(
            RowStart(r.row, tuple(r.tokens), r.num_prompt, r.sampling, r.forbidden, r.min_total_tokens, r.bad_words)
            for r, _ in chunks
            if not r.started
        )
        decodes = self.rng.random() < 0.75
        decoding = [request for request, limit in chunks if decodes and limit > 0 and request.decodes]
        new_blocks = [(request.row, self._row_step(request, 1).new_block_ids) for request in decoding]
        told = [(request, limit) for request, limit in chunks if request.row not in dict(new_blocks)]
        plan = StepPlan(
            starts,
            tuple(self._row_step(request, limit) for request, limit in told),
            decoding=tuple(row for row, _ in new_blocks),
            new_blocks=tuple(RowBlocks(row, blocks) for row, blocks in new_blocks if any(blocks)),
        )
        before = repr(plan)
        output = self.executor.execute(plan)
        assert repr(plan) == before
        by_row = {request.row: request for request, _ in chunks}
        reported = output.logprobs or repeat(None, len(output.token_ids))
        for row, token_id, logprobs in zip(plan.sampling_rows, output.token_ids, reported, strict=True):
            request = by_row[row]
            request.tokens.append(token_id)
            request.output.append(token_id)
            request.logprobs += [logprobs] if logprobs is not None else []
        for scored in output.scored:
            by_row[scored.row].scored += scored.logprobs

    def _row_step(self, request: Running, limit: int) -> RowStep:
        count = min(limit, len(request.tokens) - request.num_computed)
        first, last = request.num_computed, request.num_computed + count
        if not request.started:
            request.blocks, request.num_behind = [deque() for _ in self.groups], [0] * len(self.groups)
        new_blocks = tuple(self._new_blocks(request, group, first, last) for group in range(len(self.groups)))
        request.num_computed = last
        request.started = True
        scores = request.sampling.prompt_logprobs is not None
        scored = range(first, min(last, request.num_prompt - 1)) if scores else range(0)
        samples = last == len(request.tokens)
        return RowStep(
            request.row, first, count, new_blocks, samples,
            scored_positions=scored, mask=request.mask if samples else None,
        )  # fmt: skip

    def _new_blocks(self, request: Running, group: int, first: int, last: int) -> tuple[int, ...]:
        blocks, free, window = request.blocks[group], self.free[group], self.groups[group].window
        while window is not None and (request.num_behind[group] + 1) * BLOCK_TOKENS <= first - window + 1:
            free.append(blocks.popleft())
            request.num_behind[group] += 1
        missing = -(-last // BLOCK_TOKENS) - request.num_behind[group] - len(blocks)
        new_blocks = tuple(free.pop() for _ in range(missing))
        blocks.extend(new_blocks)
        return new_blocks

    def preempt(self, request: Running) -> None:
        """Everything computed is forgotten; the blocks come back."""
        for free, blocks in zip(self.free, request.blocks, strict=True):
            free[:0] = blocks
        request.num_computed, request.started = 0, False

    def finish(self, request: Running, num_output: int, chunk: int = 64) -> list[int]:
        while len(request.output) < num_output:
            self.step([(request, chunk)])
        return request.output


def alone(executor: NativeExecutor, rng: np.random.Generator, prompt: Sequence[int], **fields: object) -> list[int]:
    request = Running(0, list(prompt), **fields)  # type: ignore[arg-type]
    return Driver(executor, rng).finish(request, 10)


def test_greedy_tokens_are_the_argmax_of_the_logits(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """Decoding through the KV cache, token by token, against one pass over the whole text: the same bits."""
    prompt = prompt_of(rng, 21)
    output = alone(executor, rng, prompt)
    scores = executor.score([*prompt, *output])
    assert output == scores.argmax(-1)[len(prompt) - 1 : -1].tolist()


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 17, 40])
def test_the_chunk_size_changes_no_token(executor: NativeExecutor, rng: np.random.Generator, chunk: int) -> None:
    prompt = prompt_of(rng, 40)
    expected = alone(executor, rng, prompt)
    request = Running(3, list(prompt))
    assert Driver(executor, rng).finish(request, 10, chunk) == expected


def test_a_mixture_of_experts_gives_the_same_tokens_in_any_chunking(isa: str, rng: np.random.Generator) -> None:
    """Which rows share an expert's product differs with every chunk."""
    executor = executor_of(TinyModel(rng, Llama(SPARSE_MIXTRAL), MIXED), isa, threads=2)
    prompt = prompt_of(rng, 40)
    expected = alone(executor, rng, prompt)
    for chunk in (1, 7, 40):
        assert Driver(executor, rng).finish(Running(3, list(prompt)), 10, chunk) == expected
    executor.close()


def test_blocks_behind_a_window_may_be_used_again(isa: str, rng: np.random.Generator) -> None:
    """Two long requests in as few blocks as their windows reach, against each alone with all its blocks."""
    executor = executor_of(TinyModel(rng, FAMILIES["gemma3"]()), isa, threads=2, num_blocks=12)
    full, sliding = executor.kv_groups
    assert full.window is None and sliding.window == GEMMA.sliding_window
    requests = [Running(row, list(prompt_of(rng, 60 - row))) for row in range(2)]
    driver = Driver(executor, rng, num_blocks=12)
    driver.free[1] = driver.free[1][:8]
    for chunk in (16, 7, 13, 16, *[16] * 12):
        driver.step([(request, chunk) for request in requests])
    for request in requests:
        scores = executor.score(request.tokens)
        assert request.output == scores.argmax(-1)[-len(request.output) - 1 : -1].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_company_and_order_change_no_token(
    executor: NativeExecutor, rng: np.random.Generator, temperature: float
) -> None:
    """Requests of random lengths, joining at different times, in a new order every step."""
    prompts = [prompt_of(rng, int(rng.integers(1, 30))) for _ in range(8)]
    sampling = [SamplingParams(temperature=temperature, seed=seed, max_tokens=None) for seed in range(8)]
    expected = [alone(executor, rng, prompt, sampling=s) for prompt, s in zip(prompts, sampling, strict=True)]
    rows = rng.permutation(8).tolist()
    requests = [Running(row, list(p), s) for row, p, s in zip(rows, prompts, sampling, strict=True)]
    driver = Driver(executor, rng)
    joined = 0
    while any(len(request.output) < 10 for request in requests):
        joined = min(joined + 2, 8)
        running = [request for request in requests[:joined] if len(request.output) < 10]
        driver.step([(running[i], int(rng.integers(1, 8))) for i in rng.permutation(len(running))])
    assert [request.output for request in requests] == expected


def test_a_preempted_request_goes_on_with_the_same_tokens(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """Also the random numbers: they are keyed by position, not by how often the sampler was called."""
    sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=None)
    prompt = prompt_of(rng, 20)
    expected = alone(executor, rng, prompt, sampling=sampling)
    driver = Driver(executor, rng)
    request = Running(1, list(prompt), sampling)
    driver.finish(request, 4)
    driver.preempt(request)
    other = Running(1, list(prompt_of(rng, 33)))  # takes its row meanwhile
    driver.finish(other, 2)
    request.row = 5
    assert driver.finish(request, 10) == expected


def test_seeds_decide_and_differ(executor: NativeExecutor, rng: np.random.Generator) -> None:
    prompt = prompt_of(rng, 9)

    def sampled(seed: int) -> list[int]:
        return alone(executor, rng, prompt, sampling=SamplingParams(temperature=1.5, seed=seed, max_tokens=None))

    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(seed)) for seed in (0, 1, 2, (1 << 64) - 1)}) == 4


def test_forbidden_tokens_wait_until_the_row_is_long_enough(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """min_tokens: with everything but one token forbidden, that one it is; then the sampler is free again."""
    prompt = prompt_of(rng, 5)
    only = 17
    forbidden = tuple(token for token in range(LLAMA.vocab_size) if token != only)
    free = alone(executor, rng, [*prompt, only, only, only])[0]
    driver = Driver(executor, rng)
    request = Running(2, list(prompt), forbidden=forbidden, min_total_tokens=8)
    bystander = Running(0, list(prompt))
    expected = alone(executor, rng, prompt)[:4]
    for _ in range(4):
        driver.step([(bystander, 64), (request, 64)])
    assert request.output == [only, only, only, free]
    assert bystander.output == expected


def test_a_row_starts_afresh(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """Nothing of the row's last request may be left: tokens, blocks, sampling, forbidden tokens."""
    prompt = prompt_of(rng, 12)
    expected = alone(executor, rng, prompt)
    driver = Driver(executor, rng)
    sampling = SamplingParams(temperature=2.0, top_k=3, min_p=0.1, seed=3, max_tokens=None)
    driver.finish(Running(4, list(prompt_of(rng, 50)), sampling, tuple(range(200)), 90), 3)
    assert driver.finish(Running(4, list(prompt)), 10) == expected


def test_every_accepted_sampling_parameter_can_be_computed(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """What is too large or too small for the arrays of a step means the same as the largest or smallest that fits."""
    prompt = prompt_of(rng, 12)
    plain = SamplingParams(seed=3, max_tokens=None)
    greedy, drawn = alone(executor, rng, prompt), alone(executor, rng, prompt, sampling=plain)
    for top_k in (2**31 - 1, 2**31, 2**64, 10**30):
        assert alone(executor, rng, prompt, sampling=replace(plain, top_k=top_k)) == drawn
    for coldest in (replace(plain, temperature=5e-324), replace(plain, top_p=5e-324)):
        assert alone(executor, rng, prompt, sampling=coldest) == greedy
    assert alone(executor, rng, prompt, sampling=replace(plain, min_p=5e-324)) == drawn
    alone(executor, rng, prompt, sampling=replace(plain, temperature=1e6))


def log_softmax(logits: FloatArray) -> FloatArray:
    found: FloatArray = torch.from_numpy(logits).double().log_softmax(-1).float().numpy()
    return found


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_every_token_of_prompt_and_output_has_its_log_probability(
    executor: NativeExecutor, rng: np.random.Generator, chunk: int
) -> None:
    """In any chunking, beside a request that asks for none, and whatever was done to the logits before sampling."""
    prompt = prompt_of(rng, 23)
    sampling = SamplingParams(
        max_tokens=None, seed=1, logprobs=3, prompt_logprobs=2, frequency_penalty=1.5, logit_bias={7: 5.0}
    )
    driver = Driver(executor, rng)
    request, bystander = Running(2, list(prompt), sampling), Running(5, list(prompt_of(rng, 9)))
    while len(request.output) < 6:
        driver.step([(bystander, 64), (request, chunk)])
    expected = log_softmax(executor.score([*prompt, *request.output]))
    assert [found.token_id for found in request.scored] == list(prompt[1:])
    assert [found.token_id for found in request.logprobs] == request.output
    assert bystander.scored == bystander.logprobs == []
    for position, found in enumerate([*request.scored, *request.logprobs]):
        row = expected[position]
        num_top = 2 if position < len(prompt) - 1 else 3
        assert found.logprob == pytest.approx(row[found.token_id], abs=1e-5)
        assert found.rank == 1 + (row > row[found.token_id]).sum()
        assert list(found.top_token_ids) == np.argsort(-row, kind="stable")[:num_top].tolist()
        np.testing.assert_allclose(found.top_logprobs, row[list(found.top_token_ids)], atol=1e-5)


def test_a_step_scores_only_what_it_computes_and_knows(executor: NativeExecutor, rng: np.random.Generator) -> None:
    prompt = prompt_of(rng, 9)
    start = RowStart(0, prompt, 9, SamplingParams(max_tokens=None, prompt_logprobs=0))
    for scored in (range(-1, 1), range(4, 10), range(8, 9), range(3, 3 + 40)):
        with pytest.raises(StepError, match=r"score tokens|more than"):
            executor.execute(StepPlan((start,), (RowStep(0, 0, 9, ((1,),), True, scored_positions=scored),)))


def test_masks_and_allowed_tokens_leave_nothing_else(executor: NativeExecutor, rng: np.random.Generator) -> None:
    prompt = prompt_of(rng, 7)
    allowed = tuple(sorted(rng.choice(LLAMA.vocab_size, 40, replace=False).tolist()))
    half = rng.random(-(-LLAMA.vocab_size // 32) * 32) < 0.5
    both = [token for token in allowed if half[token]]
    mask = np.packbits(half, bitorder="little").tobytes()
    logits = executor.score(prompt)[-1]
    driver = Driver(executor, rng)
    for sampling, given, expected in (
        (replace(GREEDY, allowed_token_ids=allowed), None, list(allowed)),
        (GREEDY, mask, np.flatnonzero(half[: LLAMA.vocab_size]).tolist()),
        (replace(GREEDY, allowed_token_ids=allowed), mask, both),
        (GREEDY, None, list(range(LLAMA.vocab_size))),
    ):
        request = Running(3, list(prompt), sampling, mask=given)
        driver.step([(request, 64)])
        assert request.output == [expected[int(np.argmax(logits[expected]))]]
        driver.preempt(request)
    with pytest.raises(StepError, match="the mask of row 3 has 4 bytes; a vocabulary of 301 takes 40"):
        driver.step([(Running(3, list(prompt), mask=b"1234"), 64)])


def test_bad_words_are_never_completed(executor: NativeExecutor, rng: np.random.Generator) -> None:
    prompt = prompt_of(rng, 7)
    free = alone(executor, rng, prompt)
    request = Running(1, list(prompt), bad_words=((free[0], free[1], free[2]), (free[0] + 1, free[3])))
    output = Driver(executor, rng).finish(request, 10)
    assert output[:2] == free[:2] and output[2] != free[2]
    single = Running(1, list(prompt), bad_words=((free[0],),))
    assert free[0] not in Driver(executor, rng).finish(single, 10)
    in_prompt_only = Running(1, list(prompt), bad_words=((prompt[-1], free[0]),))
    assert Driver(executor, rng).finish(in_prompt_only, 10)[0] == free[0]


def test_biases_hold_for_every_token(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """Those that never change are gathered once, whatever else is added beside them: then all tokens rank as before."""
    prompt = prompt_of(rng, 7)
    free = alone(executor, rng, prompt)
    ban = dict.fromkeys(free, -100.0)
    steady = replace(GREEDY, logit_bias=ban)
    expected = alone(executor, rng, prompt, sampling=steady)
    assert not set(free) & set(expected)
    lifted = dict.fromkeys(range(LLAMA.vocab_size), 3.0)
    whole = replace(GREEDY, logit_bias={**lifted, **dict.fromkeys(free, -97.0)})
    driver = Driver(executor, rng)
    requests = [
        Running(0, list(prompt), whole),
        Running(2, list(prompt), steady, bad_words=((expected[0], expected[1]),)),
        Running(3, list(prompt), steady, forbidden=(expected[0],), min_total_tokens=len(prompt) + 2),
        Running(5, list(prompt), steady),
        Running(6, list(prompt)),
    ]
    for _ in range(10):
        driver.step([(request, 64) for request in requests])
    every, words, waits, again, none = (request.output for request in requests)
    assert again == every == expected and none == free
    assert words[0] == expected[0] and words[1] != expected[1] and not set(words) & set(free)
    assert expected[0] not in waits[:2] and not set(waits) & set(free)


def test_penalties_survive_preemption_and_company(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """They are counted from the tokens, so that a request that starts again knows what it said.

    A bias makes one token the likeliest, so that the penalties have something to change.
    """
    free = replace(GREEDY, logit_bias={7: 10.0})
    sampling = replace(free, repetition_penalty=1.3, frequency_penalty=2.0, presence_penalty=0.4)
    prompt = prompt_of(rng, 20)
    expected = alone(executor, rng, prompt, sampling=sampling)
    driver = Driver(executor, rng)
    request, bystander = Running(1, list(prompt), sampling), Running(4, list(prompt_of(rng, 5)))
    while len(request.output) < 4:
        driver.step([(request, 7), (bystander, 64)])
    driver.preempt(request)
    request.row = 6
    while len(request.output) < 10:
        driver.step([(bystander, 64), (request, 11)])
    assert request.output == expected
    assert expected != alone(executor, rng, prompt, sampling=free)


def test_prompts_of_every_length_around_a_block(executor: NativeExecutor, rng: np.random.Generator) -> None:
    for num_tokens in (1, 15, 16, 17, 31, 32, 33):
        prompt = prompt_of(rng, num_tokens)
        assert alone(executor, rng, prompt)[0] == executor.score(prompt)[-1].argmax()


def test_a_row_can_be_filled_to_the_last_token(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """The token sampled after the last position is still handed out; computing it would be one too many."""
    request = Running(0, list(prompt_of(rng, MAX_MODEL_LEN - 1)))
    driver = Driver(executor, rng)
    driver.finish(request, 2)
    assert len(request.tokens) == MAX_MODEL_LEN + 1
    with pytest.raises(StepError, match="compute tokens"):
        driver.step([(request, 1)])


def test_empty_plans_and_plans_that_only_start(executor: NativeExecutor, rng: np.random.Generator) -> None:
    assert executor.execute(StepPlan((), ())).token_ids == ()
    assert executor.execute(StepPlan((start_of(0, (1, 2, 3)),), ())).token_ids == ()
    output = executor.execute(StepPlan((), (RowStep(0, 0, 3, ((5,),), samples=True),)))
    assert output.token_ids == [executor.score([1, 2, 3])[-1].argmax()]


def test_tokens_given_between_steps_are_computed(executor: NativeExecutor, rng: np.random.Generator) -> None:
    prompt, given = prompt_of(rng, 9), tuple(prompt_of(rng, 5))
    executor.execute(StepPlan((start_of(0, prompt),), (RowStep(0, 0, 9, ((5,),) * len(executor.kv_groups), True),)))
    sampled = int(executor.score(prompt)[-1].argmax())
    step = RowStep(0, 9, 6, (), samples=True, new_token_ids=given)
    output = executor.execute(StepPlan((), (step,)))
    assert output.token_ids == [executor.score([*prompt, sampled, *given])[-1].argmax()]


def test_a_row_may_leave_out_what_is_sampled_for_it(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """So that another token follows than the one sampled."""
    prompt, given = prompt_of(rng, 9), int(rng.integers(LLAMA.vocab_size))
    start = RowStart(0, prompt, 9, GREEDY, appends_sampled=False)
    executor.execute(StepPlan((start,), (RowStep(0, 0, 9, ((5,),) * len(executor.kv_groups), True),)))
    step = RowStep(0, 9, 1, (), samples=True, new_token_ids=(given,))
    output = executor.execute(StepPlan((), (step,)))
    assert output.token_ids == [executor.score([*prompt, given])[-1].argmax()]


def test_copied_blocks_continue_as_the_original(model: TinyModel, isa: str, rng: np.random.Generator) -> None:
    """A fork: full blocks are shared, the last one is copied, and both go their own way from there."""
    executor = executor_of(model, isa, threads=2)
    num_groups = len(executor.kv_groups)
    prompt, other = prompt_of(rng, 21), prompt_of(rng, 30)
    prefill = RowStep(0, 0, 21, ((5, 9),) * num_groups, samples=False)
    executor.execute(StepPlan((start_of(0, prompt),), (prefill,)))
    copies = [(BlockCopy(9, 30, group), BlockCopy(30, 31, group)) for group in range(num_groups)]
    executor.execute(StepPlan((), (), copies=tuple(chain(*copies))))
    original, fork = start_of(0, (*prompt, *other[:9])), start_of(1, (*prompt, *other))
    steps = (
        RowStep(0, 21, 9, ((5, 9),) * num_groups, samples=True),
        RowStep(1, 21, 30, ((5, 31, 7, 8),) * num_groups, samples=True),
    )
    output = executor.execute(StepPlan((original, fork), steps))
    expected = [executor.score(start.token_ids)[-1].argmax() for start in (original, fork)]
    assert output.token_ids == expected


def test_saved_blocks_may_be_loaded_elsewhere(model: TinyModel, isa: str, rng: np.random.Generator) -> None:
    """Blocks go out and come back in another place; what is loaded in a step is saved as it was before."""
    executor = executor_of(model, isa, threads=2)
    groups = range(len(executor.kv_groups))
    prompt, other = prompt_of(rng, 32), prompt_of(rng, 9)
    prefill = RowStep(0, 0, 32, ((5, 9),) * len(groups), samples=False)
    executor.execute(StepPlan((start_of(0, (*prompt, 1)),), (prefill,)))
    addresses = tuple(BlockAddress(block_id, group) for group in groups for block_id in (5, 9))
    saved = executor.execute(StepPlan((), (), saves=addresses)).saved
    assert [len(pages) for pages in saved] == [group.block_bytes for group in executor.kv_groups for _ in (5, 9)]
    loads = tuple(
        BlockLoad(BlockAddress({5: 9, 9: 30}[address.block_id], address.group), pages)
        for address, pages in zip(addresses, saved, strict=True)
    )
    start = start_of(1, (*prompt, *other))
    step = RowStep(1, 32, 9, ((9, 30, 7),) * len(groups), samples=True)
    output = executor.execute(StepPlan((start,), (step,), saves=addresses, loads=loads))
    assert output.saved == saved
    assert output.token_ids == [executor.score(start.token_ids)[-1].argmax()]


@pytest.mark.parametrize("address", [BlockAddress(64), BlockAddress(-1)])
def test_impossible_saves_and_loads_are_step_errors(executor: NativeExecutor, address: BlockAddress) -> None:
    with pytest.raises(StepError, match=f"block {address.block_id} does not exist"):
        executor.execute(StepPlan((), (), saves=(address,)))
    pages = bytes(executor.kv_groups[0].block_bytes)
    with pytest.raises(StepError, match=f"block {address.block_id} does not exist"):
        executor.execute(StepPlan((), (), loads=(BlockLoad(address, pages),)))
    with pytest.raises(StepError, match="3 bytes for a block of"):
        executor.execute(StepPlan((), (), loads=(BlockLoad(BlockAddress(0), b"123"),)))


@pytest.mark.parametrize(
    "copy",
    [BlockCopy(64, 0), BlockCopy(0, 64), BlockCopy(-1, 0), BlockCopy(0, -1), BlockCopy(3, 3), BlockCopy(0, 1, 1)],
)
def test_impossible_copies_are_step_errors(executor: NativeExecutor, copy: BlockCopy) -> None:
    with pytest.raises(StepError, match=r"copy_(groups|sources|destinations)\[1\] is|block 3 onto itself"):
        executor.execute(StepPlan((), (), (BlockCopy(0, 1), copy)))


def test_a_copy_comes_before_what_the_step_writes(executor: NativeExecutor, rng: np.random.Generator) -> None:
    """The copied block goes on to be written in the same step, and is not copied again in those that follow."""
    prompt = prompt_of(rng, 20)
    executor.execute(StepPlan((start_of(0, prompt),), (RowStep(0, 0, 18, ((0, 1),), samples=False),)))
    plan = StepPlan((start_of(1, prompt),), (RowStep(1, 18, 2, ((0, 2),), samples=True),), (BlockCopy(1, 2),))
    tokens = list(prompt)
    for step in (plan, *repeat(StepPlan((), (), decoding=(1,)), 4)):
        output = executor.execute(step)
        assert output.token_ids == [executor.score(tokens)[-1].argmax()]
        tokens += output.token_ids


@pytest.mark.parametrize(
    "starts, step, message",
    [
        ((), RowStep(8, 0, 1, (), True), r"rows \[8\] do not all exist"),
        ((), RowStep(-1, 0, 1, ((),), True), r"rows \[-1\]"),
        ((), RowStep(0, 0, 4, ((0,),), True), "but hold"),
        ((), RowStep(0, -1, 1, ((0,),), True), "but hold"),
        ((), RowStep(0, 0, 3, ((0,), (0,)), True), "blocks of 2 layer groups; there are 1"),
        ((), RowStep(0, 0, 3, ((64,),), True), r"block_tables\[0\] is 64"),
        ((), RowStep(0, 0, 3, (tuple(range(7)),), True), "given 7 blocks; it holds 6"),
        ((start_of(9, (1,)),), RowStep(0, 0, 1, ((0,),), True), "row 9 does not exist"),
        ((start_of(1, (1,) * 98),), RowStep(1, 0, 1, ((0,),), True), "starts with 98 tokens"),
        ((start_of(1, (LLAMA.vocab_size,)),), RowStep(1, 0, 1, ((0,),), True), r"token_ids\[0\] is 301"),
        ((start_of(1, (1,) * 65),), RowStep(1, 0, 65, (tuple(range(5)),), True), "more than a step can hold"),
    ],
)
def test_plans_that_do_not_fit_are_step_errors(
    executor: NativeExecutor, starts: tuple[RowStart, ...], step: RowStep, message: str
) -> None:
    executor.execute(StepPlan((start_of(0, (1, 2, 3)),), ()))
    with pytest.raises(StepError, match=message):
        executor.execute(StepPlan(starts, (step,)))
    executor.execute(StepPlan((start_of(0, (1, 2, 3)),), (RowStep(0, 0, 3, ((5,),), samples=True),)))


def test_decoding_does_not_go_on_from_a_step_that_failed(
    executor: NativeExecutor, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the steps that are laid out together it was, the next one computes the same token."""
    tokens = list(prompt_of(rng, 15))
    output = executor.execute(StepPlan((start_of(0, tuple(tokens)),), (RowStep(0, 0, 15, ((0, 1),), samples=True),)))
    decode = StepPlan((), (), decoding=(0,))
    for num_steps in (1, 2, 3):
        for _ in range(num_steps):
            tokens += output.token_ids
            output = executor.execute(decode)
        tokens += output.token_ids
        with monkeypatch.context() as patch:
            patch.setattr(Program, "run", fail)
            with pytest.raises(StepError, match="on purpose"):
                executor.execute(decode)
        output = executor.execute(decode)
        assert output.token_ids == [executor.score(tokens)[-1].argmax()]


def fail(program: Program, step: object) -> None:
    raise StepError("on purpose")


def test_decoding_goes_on_past_the_steps_that_are_laid_out_together(
    executor: NativeExecutor, rng: np.random.Generator
) -> None:
    """Against steps told of one by one, to the end of a row: one draws, one looks back at its tokens and reports."""
    prompts = [prompt_of(rng, 17), prompt_of(rng, 9)]
    penalized = replace(GREEDY, logit_bias={7: 10.0}, frequency_penalty=1.0, logprobs=2)
    sampling = [SamplingParams(max_tokens=None, seed=5), penalized]
    num_steps = MAX_MODEL_LEN - 17
    assert num_steps > 2 * NUM_AHEAD

    def outputs(rows: tuple[int, int], told: bool) -> list[StepOutput]:
        starts = tuple(RowStart(*start) for start in zip(rows, prompts, map(len, prompts), sampling, strict=True))
        blocks = [((*range(6 * row, 6 * row + 6),),) for row in rows]
        first = [RowStep(row, 0, len(p), b, True) for row, p, b in zip(rows, prompts, blocks, strict=True)]
        found = [executor.execute(StepPlan(starts, tuple(first)))]
        for number in range(num_steps):
            steps = tuple(RowStep(row, len(p) + number, 1, (), True) for row, p in zip(rows, prompts, strict=True))
            found.append(executor.execute(StepPlan((), steps) if told else StepPlan((), (), decoding=rows)))
        return found

    assert outputs((3, 1), told=False) == outputs((0, 2), told=True)


def test_decoding_ends_where_the_row_does(executor: NativeExecutor) -> None:
    prompt = (1,) * (MAX_MODEL_LEN - 3)
    blocks = (tuple(range(MAX_MODEL_LEN // BLOCK_TOKENS)),)
    executor.execute(
        StepPlan((start_of(0, prompt[:60]),), (RowStep(0, 0, 60, blocks, samples=False, new_token_ids=prompt[60:]),))
    )
    executor.execute(StepPlan((), (RowStep(0, 60, len(prompt) - 60, (), samples=True),)))
    decode = StepPlan((), (), decoding=(0,))
    for _ in range(len(prompt), MAX_MODEL_LEN):
        executor.execute(decode)
    with pytest.raises(StepError, match="but hold"):
        executor.execute(decode)


def test_the_order_of_calls_is_checked(isa: str, rng: np.random.Generator) -> None:
    model = TinyModel(rng, FAMILIES["llama"]())
    executor = NativeExecutor(model.checkpoint, isa=isa, threads=1, activation_dtype="int8")
    with pytest.raises(EngineError, match="not been allocated"):
        executor.execute(StepPlan((), ()))
    with pytest.raises(InvalidValueError, match="no tokens"):
        executor.score([])
    executor.allocate([4], 2, 8, 32)
    with pytest.raises(EngineError, match="already been allocated"):
        executor.allocate([4], 2, 8, 32)
    executor.close()
    with pytest.raises(EngineError, match="closed"):
        executor.execute(StepPlan((start_of(0, (1,)),), (RowStep(0, 0, 1, ((0,),), True),)))


def test_models_that_cannot_run_are_refused(isa: str, rng: np.random.Generator) -> None:
    model = TinyModel(rng, FAMILIES["llama"](), (GGUFType.F32,))
    with pytest.raises(ConfigError):
        NativeExecutor(model.checkpoint, isa="sse9", threads=1, activation_dtype="int8")
    damaged = TinyModel(rng, FAMILIES["llama"]())
    tensors = dict(damaged.checkpoint.tensors)
    name, tensor = next((name, tensor) for name, tensor in tensors.items() if len(tensor.shape) == 2)
    tensors[name] = replace(tensor, encoding=GGUFType.IQ1_S)
    checkpoint = replace(damaged.checkpoint, tensors=tensors)
    with pytest.raises(UnsupportedModelError, match="IQ1_S"):
        NativeExecutor(checkpoint, isa=isa, threads=1, activation_dtype="int8")


def test_packing_reports_its_progress_and_size(isa: str, rng: np.random.Generator) -> None:
    model = TinyModel(rng, FAMILIES["qwen2"]())
    seen: list[tuple[int, int]] = []
    executor = NativeExecutor(
        model.checkpoint,
        isa=isa,
        threads=1,
        activation_dtype="int8",
        progress=lambda done, total: seen.append((done, total)),
    )
    total = sum(tensor.data.nbytes for tensor in model.tensors.values())
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (total, total) and len(seen) == len(model.tensors)
    assert executor.weight_bytes >= total
    page_bytes = 2 * LLAMA.num_kv_heads * LLAMA.head_size * BLOCK_TOKENS * 2
    assert executor.kv_groups == (KvGroup(LLAMA.num_layers, None, LLAMA.num_layers * page_bytes),)
    assert executor.isa == isa


def test_row_order_moves_rows_of_matrices_and_vectors(isa: str, rng: np.random.Generator) -> None:
    """GGUF stores Llama's q and k in another row order; biases follow their matrix."""
    plain = TinyModel(rng, FAMILIES["qwen2"](), (GGUFType.F16,))
    shuffled = dict(plain.checkpoint.tensors)
    for name, tensor in shuffled.items():
        if "attention.q" in name:
            order = rng.permutation(tensor.shape[0]).astype(np.int32)
            rows = tensor.data.reshape(tensor.shape[0], -1)
            stored = np.empty_like(rows)
            stored[order] = rows
            shuffled[name] = replace(tensor, data=stored.reshape(-1), row_order=order)
    checkpoint = replace(plain.checkpoint, tensors=shuffled)
    ordered, expected = (
        NativeExecutor(found, isa=isa, threads=2, activation_dtype="bf16") for found in (checkpoint, plain.checkpoint)
    )
    prompt = prompt_of(rng, 20)
    np.testing.assert_array_equal(ordered.score(prompt), expected.score(prompt))
