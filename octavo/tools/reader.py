"""Calls read from an answer as it comes: the name once, then the arguments piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from octavo.marker_search import MarkerSearch
from octavo.tools.format import ToolFormat


@dataclass(frozen=True, slots=True)
class Content:
    """Text beside the calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """Call number `index` begins."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of call number `index`, as JSON text."""

    index: int
    text: str


ToolEvent = Content | CallBegin | CallArguments


class ToolCallReader:
    """Reads one answer. White space between calls, and around them, belongs to nothing.

    Text that does not keep to the format, which no grammar would have allowed, is content. An answer that is `required`
    to be calls has no content: where it was cut in an opening, that piece is dropped.
    """

    def __init__(self, tool_format: ToolFormat, *, required: bool = False) -> None:
        self._format = tool_format
        self._required = required
        self._search = MarkerSearch(tool_format.opening)
        self._read: Callable[[], Iterator[ToolEvent] | None] = (
            self._in_text if tool_format.anywhere else self._at_beginning
        )
        self._text = ""  # come and not yet read
        self._space = ""  # white space that is content if content follows
        self._has_content = False
        self._object_end = _ObjectEnd()
        self.num_calls = 0

    def append(self, text: str) -> list[ToolEvent]:
        """What is certain now that `text` has come."""
        self._text += text
        events: list[ToolEvent] = []
        while (found := self._read()) is not None:
            events.extend(found)
        return events

    def flush(self) -> list[ToolEvent]:
        """What was held back; nothing more will come. A call that has no name yet is no call."""
        rest, self._text = self._text, ""
        if self._required:
            return []
        if self._read == self._in_text:
            rest = self._search.flush()
        elif self._read not in (self._at_beginning, self._in_plain_text):
            rest = ""
        events = list(self._content(rest))
        if self._space and not self.num_calls:
            events.append(Content(self._space))
        return events

    # ---- what to do with the text that is there: None if more must come first

    def _at_beginning(self) -> Iterator[ToolEvent] | None:
        marker = self._format.marker
        if self._text.startswith(marker):
            self._text = self._text.removeprefix(self._format.opening)
            self._read = self._in_call
            return iter(())
        if marker.startswith(self._text):
            return None
        self._read = self._in_plain_text
        return iter(())

    def _in_plain_text(self) -> Iterator[ToolEvent] | None:
        text, self._text = self._text, ""
        return self._content(text) if text else None

    def _in_text(self) -> Iterator[ToolEvent] | None:
        if not self._text:
            return None
        before, after = self._search.append(self._text)
        self._text = after or ""
        content = list(self._content(before))
        if after is not None:
            self._space = ""
            self._read = self._in_call
        return iter(content)

    def _in_call(self) -> Iterator[ToolEvent] | None:
        """From the opening to the end of the name."""
        before_name, before_arguments = self._format.before_name, self._format.before_arguments
        if not self._text.startswith(before_name):
            return None if before_name.startswith(self._text) else self._give_up()
        name, found, rest = self._text.removeprefix(before_name).partition(before_arguments)
        if not found:
            return None
        self._text = rest
        self._object_end = _ObjectEnd()
        self._read = self._in_arguments
        self.num_calls += 1
        return iter((CallBegin(self.num_calls - 1, name),))

    def _in_arguments(self) -> Iterator[ToolEvent] | None:
        if not self._text:
            return None
        end = self._object_end.find(self._text)
        arguments = self._text if end is None else self._text[:end]
        self._text = self._text[len(arguments) :]
        if end is not None:
            self._read = self._after_arguments
        return iter((CallArguments(self.num_calls - 1, arguments),))

    def _after_arguments(self) -> Iterator[ToolEvent] | None:
        after = self._format.after_arguments
        if not self._text.startswith(after):
            return None if after.startswith(self._text) else self._give_up()
        self._text = self._text.removeprefix(after)
        self._read = self._between
        return iter(())

    def _between(self) -> Iterator[ToolEvent] | None:
        """After a call: another one, the end of the calls, or text."""
        separator, closing = self._format.separator, self._format.closing
        if self._text.startswith(separator):
            self._text = self._text.removeprefix(separator)
            self._read = self._in_call
            return iter(())
        if closing and self._text.startswith(closing):
            self._text = self._text.removeprefix(closing)
        elif separator.startswith(self._text) or closing.startswith(self._text):
            return None
        self._read = self._in_text if self._format.anywhere else self._in_plain_text
        return iter(())

    def _give_up(self) -> Iterator[ToolEvent]:
        self._read = self._in_plain_text
        return iter(())

    def _content(self, text: str) -> Iterator[ToolEvent]:
        """Content, with white space held back until other text follows it."""
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if self.num_calls and not self._has_content:
            kept = kept.lstrip()
        if kept:
            self._has_content = True
            yield Content(kept)


class _ObjectEnd:
    """Finds the end of a JSON object that comes in pieces."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """How much of `text` belongs to the object, if it ends in it."""
        for position, char in enumerate(text, 1):
            if self._in_string:
                self._in_string = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return position
        return None
