"""A model that says any token it may, under a form: what it finishes must have the form."""

from __future__ import annotations

import random
from typing import Any

from octavo.errors import RequestError
from octavo.grammar.compiler import CompiledForm, GrammarCompiler
from octavo.grammar.definition import form_of
from octavo.grammar.forms import Form
from octavo.grammar.masks import MaskComputer
from octavo.grammar.matcher import Matcher
from octavo.structured_outputs import StructuredOutputsParams
from tests.unit.small_tokenizer import small_tokenizer

TOKENIZER = small_tokenizer()
VOCAB_SIZE = TOKENIZER.vocab_size + 40  # a model may have more logits than there are tokens
COMPILER = GrammarCompiler(TOKENIZER, VOCAB_SIZE)
MASKS = MaskComputer(VOCAB_SIZE, threads=2)


def compiled(form: Form) -> CompiledForm:
    return COMPILER.compile(form, "structured_outputs")


def of(**fields: Any) -> CompiledForm:
    return compiled(form_of(StructuredOutputsParams(**fields)))


def allowed(matcher: Matcher) -> list[int]:
    (mask,) = MASKS.compute([matcher])
    return [token_id for token_id in range(VOCAB_SIZE) if mask[token_id // 8] >> token_id % 8 & 1]


def ramble(form: CompiledForm, rng: random.Random, *, jumps: bool = True, most: int = 2000) -> str | None:
    """A random text of the form, or None if that takes too long. Closing tokens are preferred, so that it ends."""
    matcher, token_ids = form.matcher(), list[int]()
    while not matcher.ended and len(token_ids) < most:
        choices = allowed(matcher)
        assert choices, "nothing may follow, and yet the answer has not ended"
        closing = [token_id for token_id in choices if TOKENIZER.token_bytes(token_id)[:1] in b'"}],']
        token_id = rng.choice(closing if closing and rng.random() < 0.6 else choices)
        if token_id in TOKENIZER.eos_token_ids:
            break
        matcher.accept(token_id)
        token_ids.append(token_id)
        if jumps and not matcher.ended:
            forced = matcher.forced()[:most]
            matcher.accept_all(forced)
            token_ids += forced
    return TOKENIZER.decode(token_ids, skip_special_tokens=False) if len(token_ids) < most else None


def takes(form: CompiledForm, text: str) -> bool:
    """Whether the form allows exactly this text, however it is cut into tokens."""
    matcher = form.matcher()
    try:
        for token_id in TOKENIZER.encode(text, add_special_tokens=False):
            assert token_id in allowed(matcher), token_id
            matcher.accept(token_id)
        return matcher.ended or bool(TOKENIZER.eos_token_ids & set(allowed(matcher)))
    except (AssertionError, RequestError):
        return False
