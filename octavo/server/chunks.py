"""The JSON of streamed chunks. What stays the same in all chunks of an answer is encoded once."""

from __future__ import annotations

import json
from collections.abc import Mapping

from octavo.server.answers import Usage, UsageMeter
from octavo.server.sse import event


def compact(value: object) -> bytes:
    """JSON without blanks, in ASCII: no character in it can be taken for the end of a line."""
    return json.dumps(value, separators=(",", ":")).encode()


class Chunks:
    """`head` are the fields every chunk begins with (id, object, created, model).

    With `usage`, every chunk says that usage is null and a last one without choices has the figures, as OpenAI does it;
    with `continuous` every chunk has the figures so far.
    """

    def __init__(self, head: Mapping[str, object], *, usage: bool, continuous: bool = False) -> None:
        self.ends_with_usage = usage
        self._continuous = continuous
        self._before = compact(head)[:-1] + b',"choices":['
        self._after = b'],"usage":null}' if usage else b"]}"

    def choice(self, choice: bytes, used: UsageMeter, more: bytes = b"") -> bytes:
        """The event with one choice, given as JSON; `more` are fields beside it, each with a comma in front."""
        if self._continuous:
            after = b"]" + more + b',"usage":' + compact(used.usage.as_json()) + b"}"
        else:
            after = b"]" + more + self._after[1:] if more else self._after
        return event(self._before + choice + after)

    def usage(self, usage: Usage) -> bytes:
        return event(self._before + b'],"usage":' + compact(usage.as_json()) + b"}")
