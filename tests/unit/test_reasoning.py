"""Reasoning and answer told apart, in pieces of any size, and counted in tokens."""

from __future__ import annotations

import random

import pytest

from octavo.errors import ConfigError
from octavo.reasoning.budget import ReasoningBudget
from octavo.reasoning.count import ReasoningCount
from octavo.reasoning.markers import ReasoningMarkers, ReasoningState, markers_in, reasoning_markers, state_after
from octavo.reasoning.splitter import ReasoningSplitter
from tests.unit.small_tokenizer import small_tokenizer

THINK = ReasoningMarkers("<think>", "</think>")
BEGUN, MAYBE, NONE = ReasoningState(True, False), ReasoningState(False, True), ReasoningState(False, False)
TOKENIZER = small_tokenizer()


def split(text: str, state: ReasoningState, rng: random.Random | None = None) -> tuple[str, str]:
    splitter, reasoning, content = ReasoningSplitter(THINK, state), "", ""
    pieces = []
    while text:
        length = len(text) if rng is None else rng.randint(1, 5)
        pieces.append(splitter.append(text[:length]))
        text = text[length:]
    for piece in [*pieces, splitter.flush()]:
        reasoning += piece.reasoning
        content += piece.content
    return reasoning, content


CASES = [
    (BEGUN, "\nLet me see </thin <b>.\n</think>\n\nForty-two.\n", "Let me see </thin <b>.", "Forty-two.\n"),
    (BEGUN, "cut short </thi", "cut short </thi", ""),
    (BEGUN, "cut short\n", "cut short", ""),
    (BEGUN, "</think>at once", "", "at once"),
    (MAYBE, "<think>\n\n</think>\n\nNothing to think about", "", "Nothing to think about"),
    (MAYBE, "\n<think>hm  hm</think> and </think>", "hm  hm", "and </think>"),
    (MAYBE, " <thinker>", "", " <thinker>"),
    (MAYBE, "<thi", "", "<thi"),
    (MAYBE, "Hello <think>", "", "Hello <think>"),
    (NONE, "<think>", "", "<think>"),
    (NONE, "", "", ""),
]


@pytest.mark.parametrize(("state", "text", "reasoning", "content"), CASES)
def test_reasoning_is_split_off_in_pieces_of_any_size(
    state: ReasoningState, text: str, reasoning: str, content: str
) -> None:
    assert split(text, state) == (reasoning, content)
    for seed in range(20):
        assert split(text, state, random.Random(seed)) == (reasoning, content)


@pytest.mark.parametrize(
    ("state", "text", "reasoning"),
    [
        (BEGUN, "a b c</think> d e", "a b c</think>"),
        (BEGUN, "a b c", "a b c"),
        (MAYBE, "<think>a b</think>c d", "<think>a b</think>"),
        (MAYBE, "a b<think>", ""),
        (NONE, "<think>a</think>", ""),
    ],
)
def test_tokens_of_reasoning_are_counted_markers_included(state: ReasoningState, text: str, reasoning: str) -> None:
    count = ReasoningCount(THINK, state, TOKENIZER.token_bytes)
    for token_id in TOKENIZER.encode(text):
        count.accept(token_id)
    assert count.num_tokens == len(TOKENIZER.encode(reasoning))


def test_markers_of_several_tokens() -> None:
    markers = ReasoningMarkers("[reason]", "[/reason]")
    count = ReasoningCount(markers, MAYBE, TOKENIZER.token_bytes)
    tokens = TOKENIZER.encode("[reason]abc[/reason]")
    for token_id in [*tokens, *TOKENIZER.encode("more text")]:
        count.accept(token_id)
    assert len(tokens) > 5 and count.num_tokens == len(tokens) and not count.running


@pytest.mark.parametrize(("state", "said_before"), [(BEGUN, 0), (MAYBE, 1)])
def test_a_budget_ends_the_reasoning(state: ReasoningState, said_before: int) -> None:
    ending = tuple(TOKENIZER.encode("</think>"))
    answer = ReasoningBudget(4, ending, THINK, state, TOKENIZER.token_bytes).start()
    for token_id in TOKENIZER.encode("<think>")[:said_before]:
        answer.accept(token_id)
    for token_id in TOKENIZER.encode("abcd")[: 4 - said_before]:
        assert answer.ending == ()
        answer.accept(token_id)
    assert answer.ending == ending
    for token_id in ending:
        answer.accept(token_id)
    for token_id in TOKENIZER.encode("whatever follows it"):
        assert answer.ending == ()
        answer.accept(token_id)


def test_an_answer_that_does_not_reason_is_left_alone() -> None:
    answer = ReasoningBudget(0, (1,), THINK, MAYBE, TOKENIZER.token_bytes).start()
    for token_id in TOKENIZER.encode("Hello <think>"):
        assert answer.ending == ()
        answer.accept(token_id)


def test_markers_are_found_from_the_template_or_named() -> None:
    assert markers_in("{{ '<think>' }} ... </think>") == THINK
    assert markers_in("{{ '[THINK]' }} [/THINK]") == reasoning_markers("mistral")
    assert markers_in("{{ messages }}") is None
    with pytest.raises(ConfigError, match="deepseek_r1"):
        reasoning_markers("deepseek")


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        ("<|user|>\nHi<|assistant|>\n<think>\n", BEGUN),
        ("<|user|>\nHi<|assistant|>\n", MAYBE),
        ("<|user|>\nHi<|assistant|>\n<think>\n\n</think>\n\n", NONE),
        ("<think>old</think>done<|user|>\nHi<|assistant|>\n", MAYBE),
    ],
)
def test_the_prompt_says_how_reasoning_stands(prompt: str, state: ReasoningState) -> None:
    assert state_after(prompt, THINK) == state
