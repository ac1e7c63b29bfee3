"""Log probabilities as OpenAI's two endpoints and vLLM write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.request import OutputDelta, PlacedLogprobs
from octavo.step import TokenLogprobs


class Vocabulary(Protocol):
    """What a spelling needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Spelling:
    """How tokens are written: as their text, or (`as_ids`) as "token_id:5". Half a character is written as bytes."""

    vocabulary: Vocabulary
    as_ids: bool = False

    def text(self, token_id: int) -> str:
        """For people; bytes that are no whole character become U+FFFD."""
        return f"token_id:{token_id}" if self.as_ids else self.bytes(token_id).decode(errors="replace")

    def key(self, token_id: int) -> str:
        """Different for tokens of different bytes: as OpenAI's completions write half a character."""
        if self.as_ids:
            return f"token_id:{token_id}"
        try:
            return self.bytes(token_id).decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.bytes(token_id))

    def bytes(self, token_id: int) -> bytes:
        return self.vocabulary.token_bytes(token_id)


class ShownLogprobs:
    """Lets the log probabilities of a token go when its text goes: not before, and not at all if it is cut off."""

    __slots__ = ("_num_characters", "_pending")

    def __init__(self) -> None:
        self._pending: list[PlacedLogprobs] = []
        self._num_characters = 0

    def take(self, delta: OutputDelta) -> list[PlacedLogprobs]:
        """Those of the tokens whose text begins in what has been shown by now.

        An answer that ended at a limit was not cut: its last tokens count even where they are no text.
        """
        self._pending += delta.logprobs
        self._num_characters += len(delta.text)
        if delta.finish_reason == "length":
            shown, self._pending = self._pending, []
            return shown
        num_shown = sum(1 for _ in self._leading())
        shown, self._pending = self._pending[:num_shown], self._pending[num_shown:]
        return shown

    def _leading(self) -> Iterator[PlacedLogprobs]:
        for placed in self._pending:
            if placed.text_offset >= self._num_characters:
                return
            yield placed


def chat_logprobs(shown: Iterable[PlacedLogprobs], spelling: Spelling) -> dict[str, object]:
    """The `logprobs` of a choice of a chat completion."""
    return {"content": [_chat_token(placed.token, spelling) for placed in shown], "refusal": None}


def _chat_token(token: TokenLogprobs, spelling: Spelling) -> dict[str, object]:
    top = zip(token.top_token_ids, token.top_logprobs, strict=True)
    return _chat_entry(token.token_id, token.logprob, spelling) | {
        "top_logprobs": [_chat_entry(token_id, logprob, spelling) for token_id, logprob in top]
    }


def _chat_entry(token_id: int, logprob: float, spelling: Spelling) -> dict[str, object]:
    return {"token": spelling.text(token_id), "logprob": logprob, "bytes": list(spelling.bytes(token_id))}


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token of a completion, with what is known of it; nothing is of the first of a prompt."""

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None


def completion_logprobs(tokens: Sequence[PlacedToken], spelling: Spelling) -> dict[str, object]:
    """The `logprobs` of a choice of a completion; the chosen token is always among the top ones."""
    return {
        "text_offset": [token.text_offset for token in tokens],
        "token_logprobs": [None if token.logprobs is None else token.logprobs.logprob for token in tokens],
        "tokens": [spelling.key(token.token_id) for token in tokens],
        "top_logprobs": [None if token.logprobs is None else _top(token.logprobs, spelling) for token in tokens],
    }


def _top(token: TokenLogprobs, spelling: Spelling) -> dict[str, float]:
    top = dict(zip(token.top_token_ids, token.top_logprobs, strict=True)) | {token.token_id: token.logprob}
    return {spelling.key(token_id): logprob for token_id, logprob in top.items()}


def prompt_logprobs(tokens: Sequence[TokenLogprobs], spelling: Spelling) -> list[dict[str, object] | None]:
    """vLLM's `prompt_logprobs`: for each token of the prompt the likeliest and itself, by id; null for the first."""
    return [None, *(_ranked(token, spelling) for token in tokens)]


def _ranked(token: TokenLogprobs, spelling: Spelling) -> dict[str, object]:
    ranks = {token_id: (logprob, rank) for rank, (token_id, logprob) in
             enumerate(zip(token.top_token_ids, token.top_logprobs, strict=True), 1)}  # fmt: skip
    ranks |= {token.token_id: (token.logprob, token.rank)}
    return {
        str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": spelling.text(token_id)}
        for token_id, (logprob, rank) in ranks.items()
    }
