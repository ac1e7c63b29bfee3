"""What the grammar library says is wrong, in words that help who asked: without its types and what we gave it."""

from __future__ import annotations

import re
from collections.abc import Callable

_LONGEST = 1000

_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_OWN_STATE = re.compile(r"<state>|<non-verbose/>")

# In this order, on what is left of the others.
_SPOKEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(
            r"(?:invalid regex .* \(in regex\): )?regex parse error:\n(?P<shown>.*)\nerror: (?P<why>.*)", re.DOTALL
        ),
        lambda found: f"the regular expression {_pattern_in(found['shown'])} cannot be enforced: {found['why']}",
    ),
    (re.compile(r"Unimplemented keys: \[(.*)\]"), lambda found: f"cannot be enforced: {found[1].replace(chr(34), '')}"),
    (re.compile(r"Invalid type: (.*)"), r"type is '\1', which is none of JSON's"),
    (re.compile(r"Unknown format: (.*)"), r"format '\1' is not known"),
    (re.compile(r"Expected positive integer for '(.*)', got (.*)"), r"\1 is \2; it must be an integer, at least 0"),
    (re.compile(r"Expected f64 for '(.*)', got (.*)"), r"\1 is \2; it must be a number"),
    (re.compile(r"Expected (\w+) for '(.*)'( item)?, got (.*)"), r"\2\3 is \4; it must be of type \1"),
    (re.compile(r"anyOf is empty"), "enum or anyOf is empty"),
    (re.compile(r"Unsatisfiable schema: (.*)"), r"the schema accepts no value: \1"),
    (re.compile(r"Pointer '(.*)' does not exist"), r"$ref leads to '\1', which does not exist"),
    (
        re.compile(r"JSON schema: Resource '(.*)' is not present .*|Resource '(.*)' is not present .*"),
        lambda found: f"$ref leads to another document, '{found[1] or found[2]}'; only this one is read",
    ),
    (
        re.compile(r"Failed to generate regex for (?:float|integer) range.*"),
        "minimum or maximum cannot be enforced, as it is too large",
    ),
    (re.compile(r"invalid multiple of"), "multipleOf must be a number above 0"),
    (re.compile(r"^schema must be an object or boolean"), "a schema within it is neither an object nor true nor false"),
    (
        re.compile(r"oneOf constraints are not supported.*"),
        "oneOf is enforced only where no value can match two of its schemas; anyOf allows that",
    ),
    (re.compile(r"; following (?:special tokens )?are available: .*"), ""),
    (re.compile(r"NoExtensionBias"), "it accepts no text at all"),
)


def spoken(message: str, *, keeps_excerpt: bool = False) -> str:
    """Why a form cannot be enforced. `keeps_excerpt`: where in the grammar, if that is what the client wrote."""
    message = without_state(message)
    excerpt = _EXCERPT.search(message)
    reason = _PLACE.sub("", message[: excerpt.start()] if excerpt else message)
    for pattern, words in _SPOKEN:
        reason = pattern.sub(words, reason)
    return (reason + (excerpt[0] if excerpt and keeps_excerpt else ""))[:_LONGEST]


def without_state(message: str) -> str:
    """What is wrong, without the library's dump of its own state."""
    return _OWN_STATE.split(message)[0].strip()


def _pattern_in(shown: str) -> str:
    """The pattern of which the library shows, indented or with line numbers, all or the lines at fault."""
    return f"'{shown.split(chr(10))[0].strip()}'"
