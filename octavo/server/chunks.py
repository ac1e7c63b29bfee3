"""The JSON of streamed chunks. What stays the same in all chunks of an answer is encoded once."""

from __future__ import annotations

import json
from collections.abc import Mapping

from octavo.server.answers import Usage
from octavo.server.sse import event


def compact(value: object) -> bytes:
    """JSON without blanks, in ASCII: no character in it can be taken for the end of a line."""
    return json.dumps(value, separators=(",", ":")).encode()


class Chunks:
    """`head` are the fields every chunk begins with (id, object, created, model).

    With `usage`, every chunk says that usage is null and a last one without choices has the figures, as OpenAI does it.
    """

    def __init__(self, head: Mapping[str, object], *, usage: bool) -> None:
        self._before = compact(head)[:-1] + b',"choices":['
        self._after = b'],"usage":null}' if usage else b"]}"

    def choice(self, choice: bytes) -> bytes:
        """The event with one choice, given as JSON."""
        return event(self._before + choice + self._after)

    def usage(self, usage: Usage) -> bytes:
        return event(self._before + b'],"usage":' + compact(usage.as_json()) + b"}")
