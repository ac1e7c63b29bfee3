"""How far reasoning reaches, whatever the pieces it comes in."""

from __future__ import annotations

import random

import pytest

from octavo.reasoning.markers import ReasoningMarkers, ReasoningState
from octavo.reasoning.passage import ReasoningPassage

THINK = ReasoningMarkers("<think>", "</think>")
MAY_BEGIN, BEGUN, OVER = ReasoningState(False, True), ReasoningState(True, False), ReasoningState(False, False)


@pytest.mark.parametrize(
    ("state", "reasoning", "answer"),
    [
        (MAY_BEGIN, "<think>\nHm, </b> hm.\n</think>\n\n", "It is </think> 4."),
        (MAY_BEGIN, "\n <think></think>", "4"),
        (MAY_BEGIN, "<think>without end </thin", ""),
        (MAY_BEGIN, "", "<thin ice>"),
        (MAY_BEGIN, "", "\n<"),
        (BEGUN, "Hm.</think>", "4"),
        (BEGUN, "Hm.</think> \n", ""),
        (OVER, "", "<think>4</think>"),
    ],
)
def test_whatever_the_pieces(state: ReasoningState, reasoning: str, answer: str) -> None:
    text = reasoning + answer
    draw = random.Random(text)
    for num_cuts in range(len(text)):
        cuts = sorted(draw.sample(range(len(text)), num_cuts))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        passage = ReasoningPassage(THINK, state)
        counts = [passage.append(piece) for piece in pieces]
        marked = "".join(piece[count:] for piece, count in zip(pieces, counts, strict=True))
        # What may yet become the start marker counts as answer until it has.
        assert marked.endswith(answer)
        assert THINK.start.startswith(marked.removesuffix(answer).lstrip()) or not reasoning
