"""Stop strings against a search that looks at the whole text from every end."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from octavo.engine.stopping import StopCheck, StopStrings

LETTERS = "ab\N{GRINNING FACE}"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=6).map(tuple)


def search(text: str, stop: tuple[str, ...]) -> tuple[int, str] | None:
    """End and string of the first match: the one complete first, and of those the longest."""
    for end in range(len(text) + 1):
        for string in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(string):
                return end, string
    return None


def held_back(text: str, stop: tuple[str, ...]) -> int:
    return max((n for string in stop for n in range(1, len(string)) if text.endswith(string[:n])), default=0)


@given(chunks=st.lists(st.text(LETTERS, max_size=6), max_size=12), stop=STOPS, include=st.booleans())
@example(chunks=["x", "ababab"], stop=("abab",), include=False)
@example(chunks=["abc"], stop=("abcd", "b"), include=False)  # the shorter inside the longer ends first
@example(chunks=["xab"], stop=("b", "ab"), include=True)  # both end here: the longer leaves no partial marker
@example(chunks=["aa", "ab"], stop=("aab",), include=False)  # a match that begins inside a failed one
def test_any_chunking_gives_what_a_search_of_the_whole_text_gives(
    chunks: list[str], stop: tuple[str, ...], include: bool
) -> None:
    watched = StopStrings(stop, include)
    text = released = ""
    for chunk in chunks:
        text += chunk
        check = watched.append(chunk)
        released += check.text
        match = search(text, stop)
        if match is not None:
            end, string = match
            assert check.matched == string
            assert released == text[: end if include else end - len(string)]
            assert watched.append("more") == StopCheck("", string)
            assert watched.flush() == ""
            return
        assert check.matched is None
        assert released == text[: len(text) - held_back(text, stop)]
    assert released + watched.flush() == text


def test_a_stop_string_inside_one_token_is_seen() -> None:
    assert StopStrings(("orl",), False).append(" world") == StopCheck(" w", "orl")


def test_without_stop_strings_text_passes_at_once() -> None:
    watched = StopStrings((), False)
    assert watched.append("anything") == StopCheck("anything")
    assert watched.flush() == ""


def test_text_that_never_completes_a_stop_string_comes_out_in_full() -> None:
    watched = StopStrings(("</answer>",), False)
    assert [watched.append(chunk).text for chunk in ("a <", "/ans", "were", "d </answer")] == [
        "a ",
        "",
        "</answere",
        "d ",
    ]
    assert watched.flush() == "</answer"


def test_the_cost_does_not_grow_with_the_number_of_stop_strings_or_the_text_so_far() -> None:
    many = tuple(f"{n:04d}#" for n in range(5000))
    watched = StopStrings(many, False)
    text = "0123456789 " * 20_000
    assert "".join(watched.append(text[i : i + 3]).text for i in range(0, len(text), 3)) + watched.flush() == text
