"""Incremental detokenisation: whatever the ids, the pieces add up to decoding all of them at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.tokenizer.tokenizer import Tokenizer
from tests.unit.tokenizer_corpus import TEXTS
from tests.unit.tokenizer_models import tokenizer_of

MODELS = ["smollm2_path", "qwen05_path", "gemma3_path"]


@pytest.fixture(params=MODELS, scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    path: Path = request.getfixturevalue(request.param)
    return tokenizer_of(path)


@pytest.fixture(scope="module")
def torn_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens that are no whole characters: bytes and halves of characters."""
    return [i for i in range(tokenizer.vocab_size) if not is_text(tokenizer.token_bytes(i))]


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def streamed(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special_tokens)
    return [*(detokenizer.append(token_id) for token_id in ids), detokenizer.flush()]


@pytest.fixture(scope="module")
def special_ids(tokenizer: Tokenizer) -> list[int]:
    return sorted(tokenizer.special_token_ids)


# A busy machine is no failure: examples may take as long as they do.
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=300, deadline=None
)
@given(data=st.data(), skip=st.booleans())
def test_the_pieces_of_any_ids_add_up_to_decode(
    tokenizer: Tokenizer, torn_ids: list[int], special_ids: list[int], data: st.DataObject, skip: bool
) -> None:
    any_id = st.integers(0, tokenizer.vocab_size - 1)
    ids = data.draw(st.lists(st.one_of(any_id, st.sampled_from(torn_ids), st.sampled_from(special_ids)), max_size=24))
    pieces = streamed(tokenizer, ids, skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    certain = b"".join(tokenizer.token_bytes(i) for i in ids if not (skip and i in tokenizer.special_token_ids))
    held = len("".join(pieces[:-1])), len(certain.decode(errors="replace"))
    assert held[1] - held[0] <= 1  # never more than one unfinished character behind


def test_text_is_never_split_inside_a_character(tokenizer: Tokenizer) -> None:
    for name, text in TEXTS.items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        pieces = streamed(tokenizer, ids, False)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False), name
        assert not any("\ufffd" in piece for piece in pieces), name


def test_an_emoji_of_four_tokens_comes_out_whole(smollm2_path: Path) -> None:
    tokenizer = tokenizer_of(smollm2_path)
    by_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    rocket = [by_byte[bytes([byte])] for byte in "🚀".encode()]
    assert streamed(tokenizer, rocket, True) == ["", "", "", "🚀", ""]
    # A continuation that cannot come any more: one U+FFFD as soon as that is known, as in decoding at once.
    assert streamed(tokenizer, [*rocket[:3], by_byte[b"a"]], True) == ["", "", "", "\ufffda", ""]
    assert streamed(tokenizer, rocket[1:2], True) == ["\ufffd", ""]
    assert streamed(tokenizer, rocket[:2], True) == ["", "", "\ufffd"]


def test_bytes_of_a_surrogate_are_not_held_back(smollm2_path: Path) -> None:
    """UTF-8 has no surrogates, though Python's incremental decoder waits for all three bytes of one."""
    tokenizer = tokenizer_of(smollm2_path)
    by_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    surrogate = [by_byte[bytes([byte])] for byte in b"\xed\xa1\x80"]
    assert streamed(tokenizer, surrogate, True) == ["", "\ufffd\ufffd", "\ufffd", ""]
    last_before = [by_byte[bytes([byte])] for byte in "\ud7ff".encode()]
    assert streamed(tokenizer, last_before, True) == ["", "", "\ud7ff", ""]


def test_a_skipped_special_token_does_not_break_a_character(gemma3_path: Path) -> None:
    tokenizer = tokenizer_of(gemma3_path)
    euro = [238 + byte for byte in "€".encode()]
    ids = [euro[0], 106, euro[1], euro[2]]
    assert streamed(tokenizer, ids, True) == ["", "", "", "€", ""]
    assert "".join(streamed(tokenizer, ids, False)) == tokenizer.decode(ids, skip_special_tokens=False)


def test_leading_blanks_are_kept(tokenizer: Tokenizer) -> None:
    for text in (" The", "  two", "\n\n x", " "):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert "".join(streamed(tokenizer, ids, True)) == tokenizer.decode(ids) == text


def test_a_token_costs_microseconds_however_long_the_answer_is(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXTS["prose"] + TEXTS["chinese"] + TEXTS["emoji"], add_special_tokens=False) * 200
    start = time.process_time()
    streamed(tokenizer, ids, True)
    assert (time.process_time() - start) / len(ids) < 10e-6  # takes 0.5 us
