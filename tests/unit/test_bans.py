"""Tokens that an answer must not have, followed token by token, against a search over the whole answer."""

from __future__ import annotations

import random

from octavo.engine.bans import Bans

VOCAB_SIZE = 6


def forbidden(output: list[int], bans: Bans) -> set[int]:
    """By their definitions."""
    found = {token for token in range(VOCAB_SIZE) if bans.allowed_token_ids and token not in bans.allowed_token_ids}
    if len(output) < bans.min_tokens:
        found |= bans.ending
    for *beginning, last in bans.bad_words:
        if not beginning or output[-len(beginning) :] == beginning:
            found.add(last)
    return found


def test_random_answers() -> None:
    rng = random.Random()
    for _ in range(300):
        words = {tuple(rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 4))) for _ in range(rng.randint(0, 4))}
        allowed = frozenset(rng.sample(range(VOCAB_SIZE), rng.choice([0, 3, 5])))
        bans = Bans(tuple(words), allowed, frozenset({5}), rng.randint(0, 4))
        answer = bans.start()
        output: list[int] = []
        for _ in range(20):
            assert {token for token in range(VOCAB_SIZE) if answer.forbids(token)} == forbidden(output, bans)
            coming = rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 3))
            expected = 0
            while expected < len(coming) and coming[expected] not in forbidden(output + coming[:expected], bans):
                expected += 1
            assert answer.beginning(coming) == tuple(coming[:expected])
            output += coming[:expected]
