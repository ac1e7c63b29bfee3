"""Compiling forms for one tokenizer: bounded in size and time, each form once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.errors import InvalidValueError
from octavo.grammar.forms import Form
from octavo.grammar.lark import to_grammar
from octavo.grammar.matcher import Matcher, without_state
from octavo.grammar.vocabulary import bridge, special_tokens
from octavo.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_CACHED = 256
_INVALID_GRAMMAR = "invalid_grammar"
_SPOKEN = {
    "NoExtensionBias": "it accepts no text at all",
    "Failed to generate regex for float range": "minimum or maximum cannot be enforced, as it is too large",
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf": (
        "oneOf is enforced only where no value can match two of its schemas; anyOf allows that"
    ),
    "JSON schema: Resource '": "JSON schema: $ref leads to another document, '",
}
"""What the library says that would not help who asked."""


class CompiledForm:
    """A form ready to be followed. Immutable: every answer gets a matcher of its own."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def matcher(self) -> Matcher:
        """A matcher for an answer that has no tokens yet."""
        return Matcher(self._matcher.deep_copy())


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
        self._compiled: OrderedDict[str, CompiledForm] = OrderedDict()

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
                return known
        compiled = _compile(definition, tokens, param)
        with self._lock:
            self._compiled[definition] = compiled
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return compiled

    def _tokens(self) -> LLTokenizer:
        with self._lock:
            if self._bridge is None:
                self._special_ids = special_tokens(self._tokenizer)
                self._bridge = bridge(self._tokenizer, self._vocab_size)
            return self._bridge


def _compile(definition: str, tokens: LLTokenizer, param: str) -> CompiledForm:
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(tokens, definition, log_level=0, limits=_limits())
    except Exception as error:  # noqa: BLE001 - what the library cannot even read
        raise InvalidValueError(f"{param}: {error}", param=param, code=_INVALID_GRAMMAR) from None
    matcher.compute_bitmask()  # what is wrong may show only now
    if matcher.is_error():
        reason = _spoken(without_state(matcher.get_error()))
        raise InvalidValueError(f"{param}: {reason}", param=param, code=_INVALID_GRAMMAR)
    return CompiledForm(matcher)


def _spoken(reason: str) -> str:
    for written, spoken in _SPOKEN.items():
        reason = reason.replace(written, spoken)
    return reason


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
