"""An engine without a model: the real loop, scheduler and output over a backend that says the alphabet.

A token is a byte. After a letter comes the next one, after "z" the end of text, after anything else "a". So the answer
to "w" is "xyz" and then EOS, and every answer can be told from its prompt. Under a mask that forbids this, it closes
what is open: the text, a string, an object, a list; else it says the first byte it may.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.config import BLOCK_TOKENS, EngineConfig, GenerationDefaults, SchedulingConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.core import EngineCore
from octavo.engine.engine import Engine
from octavo.engine.input import InputProcessor
from octavo.errors import ChatTemplateError
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar.masks import MaskComputer
from octavo.kvcache.kv_cache import KvCache
from octavo.metrics.stats import StatsListener
from octavo.sampling_params import SamplingParams
from octavo.scheduler.scheduler import DEFAULT_SCHEDULING
from octavo.step import RowStart, RowStep, ScoredTokens, StepOutput, StepPlan, TokenLogprobs, TokenMask
from octavo.tokenizer.chat_template import ChatTemplate
from tests.engine.fakes import is_set

EOS = 256
GENERATION_PROMPT_TOKENS = 2
MAX_MODEL_LEN = 256


class BytesDetokenizer:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def append(self, token_id: int) -> str:
        return "" if token_id == EOS else self._decoder.decode(bytes([token_id]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class BytesTokenizer:
    """The chat template is the messages' contents one after the other, behind ">>" if an answer is to follow.

    Unless `chat_template`, a source, is given.
    """

    vocab_size = 257
    bos_token_id = None
    eos_token_ids = frozenset({EOS})
    special_token_ids = frozenset({EOS})

    def __init__(self, has_chat_template: bool = True, chat_template: str | None = None) -> None:
        self.has_chat_template = has_chat_template
        self.chat_template = chat_template
        self.template_kwargs: dict[str, Any] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_id for token_id in ids if token_id != EOS).decode(errors="replace")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> str:
        if not self.has_chat_template:
            raise ChatTemplateError("this model has no chat template", param="messages")
        self.template_kwargs = kwargs
        if self.chat_template is not None:
            template = ChatTemplate(self.chat_template, {})
            return template.render(messages, add_generation_prompt=add_generation_prompt, **kwargs)
        text = "".join(message["content"] for message in messages)
        return (chat_template or "") + (">>" + text if add_generation_prompt else text)

    def encode_rendered(self, prompt: str) -> list[int]:
        return self.encode(prompt)

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        return self.encode(f"{suffix}|{prefix}")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == EOS else bytes([token_id])

    def detokenizer(self, skip_special_tokens: bool = True) -> BytesDetokenizer:
        return BytesDetokenizer()


class AlphabetExecutor:
    """`gate` holds every step while it is cleared; `failures` is how many of the next steps raise.

    `samplings` and `bad_words` are those of all requests so far. `says`, if set, is what every answer would be instead
    of the alphabet, as far as its mask lets it.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0
        self.step_s = 0.0
        self.says: str | None = None
        self._rows: dict[int, list[int]] = {}
        self._starts: dict[int, RowStart] = {}
        self.samplings: list[SamplingParams] = []
        self.bad_words: list[tuple[tuple[int, ...], ...]] = []

    def prepare(self, num_bytes: int) -> int:
        return 0

    def execute(self, plan: StepPlan) -> StepOutput:
        if self.step_s:
            threading.Event().wait(self.step_s)
        self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the backend stumbled over secret internals")
        for start in plan.starts:
            self._starts[start.row] = start
            self._rows[start.row] = list(start.token_ids)
            self.samplings.append(start.sampling)
            self.bad_words.append(start.bad_words)
        for step in plan.steps:
            self._rows[step.row] += step.new_token_ids
        masks = {step.row: step.mask for step in plan.steps}
        token_ids = [self._sample(row, masks.get(row)) for row in plan.sampling_rows]
        return StepOutput(
            token_ids,
            tuple(map(self._report, plan.sampling_rows, token_ids)),
            tuple(self._score(step) for step in plan.steps if step.scored_positions),
        )

    def _sample(self, row: int, mask: TokenMask | None) -> int:
        wishes = (self._wish(row), *_CLOSING, *range(256))
        token_id = next((wish for wish in wishes if mask is None or is_set(mask, wish)), 0)
        if self._starts[row].appends_sampled:
            self._rows[row].append(token_id)
        return token_id

    def _report(self, row: int, token_id: int) -> TokenLogprobs | None:
        start = self._starts[row]
        if start.sampling.logprobs is None:
            return None
        report = logprobs_of if start.appends_sampled else _likeliest
        return report(token_id, start.sampling.logprobs)

    def _wish(self, row: int) -> int:
        tokens = self._rows[row]
        if self.says is None:
            return _after(tokens[-1])
        text, position = self.says.encode(), len(tokens) - self._starts[row].num_prompt_tokens
        return text[position] if position < len(text) else EOS

    def _score(self, step: RowStep) -> ScoredTokens:
        tokens, num_top = self._rows[step.row], self._starts[step.row].sampling.prompt_logprobs
        assert num_top is not None
        return ScoredTokens(
            step.row, tuple(logprobs_of(tokens[position + 1], num_top) for position in step.scored_positions)
        )

    def close(self) -> None:
        pass


_CLOSING = (EOS, *b'"}],')


def logprobs_of(token_id: int, num_top: int) -> TokenLogprobs:
    """Every token is the second likeliest; before it comes the space, after it the capital letters."""
    others = [ord(" "), token_id, *range(ord("A"), ord("Z"))][:num_top]
    return TokenLogprobs(token_id, -0.5, 2, tuple(others), tuple(-0.25 * (rank + 1) for rank in range(len(others))))


def _after(token_id: int) -> int:
    if token_id == ord("z"):
        return EOS
    return token_id + 1 if ord("a") <= token_id < ord("z") else ord("a")


def _likeliest(token_id: int, count: int) -> TokenLogprobs:
    """The token itself is likely, all others are the less so the further on they are."""
    top = [token_id, *(other for other in range(EOS + 1) if other != token_id)][:count]
    return TokenLogprobs(token_id, -0.5, 1, tuple(top), tuple(-0.5 - 2.0 * place for place in range(len(top))))


class FakeEngine:
    """The parts of an engine over an `AlphabetExecutor`, for tests to reach into."""

    def __init__(
        self,
        *listeners: StatsListener,
        has_chat_template: bool = True,
        chat_template: str | None = None,
        max_model_len: int = MAX_MODEL_LEN,
        num_blocks: int = 256,
        max_num_seqs: int = 8,
        generation_defaults: GenerationDefaults | None = None,
        scheduling: SchedulingConfig = DEFAULT_SCHEDULING,
    ) -> None:
        self.executor = AlphabetExecutor()
        self.tokenizer = BytesTokenizer(has_chat_template, chat_template)
        kv = KvCache(num_blocks)
        self.pool = kv.pool
        config = EngineConfig(
            model="alphabet",
            model_path="/models/alphabet.gguf",
            architecture="alphabet",
            size_label="26",
            isa="scalar",
            threads=1,
            activation_dtype="int8",
            quantization=None,
            weight_bytes=26,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=64,
            num_blocks=num_blocks,
            kv_cache_bytes=num_blocks * BLOCK_TOKENS,
            vocab_size=self.tokenizer.vocab_size,
            seed=0,
            enable_prefix_caching=True,
            prefix_eviction_policy="lru",
            generation_defaults=generation_defaults or GenerationDefaults(),
            scheduling=scheduling,
        )
        tokenizer: Any = self.tokenizer
        self.engine = Engine(
            config=config,
            tokenizer=tokenizer,
            input=InputProcessor(
                tokenizer,
                vocab_size=config.vocab_size,
                max_model_len=max_model_len,
                kv_cache_tokens=config.kv_cache_tokens,
                grammars=GrammarCompiler(tokenizer, config.vocab_size),
            ),
            core=EngineCore(
                self.executor,
                tokenizer,
                kv,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                masks=MaskComputer(config.vocab_size, threads=1),
                scheduling=scheduling,
                listeners=listeners,
            ),
        )

    def async_engine(self) -> AsyncEngine:
        return AsyncEngine(self.engine)
