"""Prompts cut to a length the request names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Truncation:
    """At most `num_tokens` of the prompt are kept (-1: what leaves room for the answer); `side` is what is cut off."""

    num_tokens: int
    side: Literal["left", "right"] = "left"

    def __post_init__(self) -> None:
        if self.num_tokens < -1 or self.num_tokens == 0:
            raise InvalidValueError(
                f"truncate_prompt_tokens is {self.num_tokens}; it must be at least 1, or -1 for what there is room for",
                param="truncate_prompt_tokens",
            )

    def apply(self, token_ids: Sequence[int], room: int) -> Sequence[int]:
        """`room` is how many tokens may be kept at most if the request does not say."""
        kept = room if self.num_tokens == -1 else self.num_tokens
        if len(token_ids) <= kept:
            return token_ids
        return token_ids[:kept] if self.side == "right" else token_ids[len(token_ids) - kept :]
