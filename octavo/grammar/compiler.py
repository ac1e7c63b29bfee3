"""Compiling forms for one tokenizer: bounded in size and time, each form once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import InvalidValueError
from octavo.grammar.forms import Form, Grammar
from octavo.grammar.lark import to_grammar
from octavo.grammar.matcher import Matcher
from octavo.grammar.refusals import spoken
from octavo.grammar.vocabulary import bridge, special_tokens
from octavo.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_CACHED = 256
_INVALID_GRAMMAR = "invalid_grammar"


@dataclass(frozen=True, slots=True)
class CompiledForm:
    """A form ready to be followed: every answer gets a matcher of its own. `param` is the field that asked for it."""

    library: LLMatcher
    param: str

    def matcher(self) -> Matcher:
        """A matcher for an answer that has no tokens yet."""
        return Matcher(self.library.deep_copy(), self.param)


class GrammarCompiler:
    """Forms for one tokenizer, compiled on the calling thread and kept, the most recently used first.

    The grammar library is loaded, and the tokenizer prepared for it, on first use or by `warm_up`. Safe to use from
    several threads.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._bridge: LLTokenizer | None = None
        self._special_ids: Mapping[str, int] = {}
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def warm_up(self) -> None:
        """Prepares the tokenizer, which the first `compile` would otherwise wait for."""
        self._tokens()

    def compile(self, form: Form, param: str) -> CompiledForm:
        """The form, compiled. Raises `InvalidValueError` for `param` that says what in it cannot be enforced."""
        tokens = self._tokens()
        definition = to_grammar(form, self._special_ids)
        with self._lock:
            known = self._compiled.get(definition)
            if known is not None:
                self._compiled.move_to_end(definition)
                return CompiledForm(known, param)
        compiled = _compile(definition, tokens, form, param)
        with self._lock:
            self._compiled[definition] = compiled
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return CompiledForm(compiled, param)

    def _tokens(self) -> LLTokenizer:
        with self._lock:
            if self._bridge is None:
                self._special_ids = special_tokens(self._tokenizer)
                self._bridge = bridge(self._tokenizer, self._vocab_size)
            return self._bridge


def _compile(definition: str, tokens: LLTokenizer, form: Form, param: str) -> LLMatcher:
    from llguidance import LLMatcher

    def refusal(message: str) -> InvalidValueError:
        reason = spoken(message, keeps_excerpt=isinstance(form, Grammar))
        return InvalidValueError(f"{param}: {reason}", param=param, code=_INVALID_GRAMMAR)

    try:
        matcher = LLMatcher(tokens, definition, log_level=0, limits=_limits())
    except Exception as error:  # noqa: BLE001 - what the library cannot even read
        raise refusal(str(error)) from None
    matcher.compute_bitmask()  # what is wrong may show only now
    if matcher.is_error():
        raise refusal(matcher.get_error())
    return matcher


def _limits() -> LLParserLimits:
    """Bounds on what one request may cost everybody: some 20 ms to begin with, some 5 ms a token."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
