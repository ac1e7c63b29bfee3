"""What a request may ask for is checked where it is written down: nothing of the wrong kind gets further."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.errors import InvalidValueError
from octavo.sampling_params import MAX_BAD_WORDS, MAX_STOP_CHARACTERS, SamplingParams

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", ["1", None, True, NAN, INF, -0.1, 10**400, [1]]),
        ("top_p", ["1", None, True, NAN, 0, -1, 1.1, 10**400]),
        ("min_p", ["1", None, False, NAN, -0.1, 1.1]),
        ("repetition_penalty", ["1", None, True, NAN, INF, 0, -1, 1e-46, 1001]),
        ("top_k", ["1", None, True, 2.0, NAN, -2, -(10**30)]),
        ("seed", ["1", True, 1.0, [1]]),
        ("max_tokens", ["1", True, 2.5, 0, -1]),
        ("min_tokens", ["1", None, True, 2.5, -1, 17]),
        ("stop", [5, None, b"x", [5], [None], [b"x"], "", ["x", ""], [["x"]]]),
        ("stop_token_ids", [5, None, "5", b"5"]),
        ("logit_bias", [5, [5], {5: NAN}, {5: INF}, {5: "1"}, {5: True}, {5: 101}, {5: 10**400}]),
        ("ignore_eos", ["no", None, 1]),
        ("include_stop_str_in_output", ["no", None, 1]),
        ("skip_special_tokens", ["no", None, 1]),
    ],
)
def test_what_is_of_the_wrong_type_or_out_of_range_is_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidValueError, match=f"^{field}.* it must be ") as refusal:
            SamplingParams(**{field: value})
        assert refusal.value.param == field, value


def test_numbers_of_numpy_and_lists_are_as_good() -> None:
    given: dict[str, Any] = {"temperature": np.float32(0.5), "top_k": np.int64(7), "stop": ["a"], "stop_token_ids": [1]}
    made = SamplingParams(**given)
    assert (made.temperature, made.top_k, made.stop, made.stop_token_ids) == (0.5, 7, ("a",), (1,))
    assert SamplingParams(stop="ab").stop == ("ab",)  # type: ignore[arg-type]


def test_stop_strings_have_room_for_so_many_characters_together() -> None:
    assert SamplingParams(stop=("x" * 100,) * (MAX_STOP_CHARACTERS // 100)).stop
    with pytest.raises(InvalidValueError, match=f"16400 characters in 164 strings; at most {MAX_STOP_CHARACTERS}"):
        SamplingParams(stop=("x" * 100,) * 164)


def test_bad_words_are_bounded_in_number() -> None:
    SamplingParams(bad_words=["x"] * MAX_BAD_WORDS)
    with pytest.raises(InvalidValueError, match="bad_words has 1025 words; at most 1024 are allowed"):
        SamplingParams(bad_words=["x"] * (MAX_BAD_WORDS + 1))
