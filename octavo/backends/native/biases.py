"""What is added to the logits of a row: the request's own biases, and what its tokens so far forbid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from octavo.backends.native.library import FloatArray
from octavo.backends.native.step_arrays import Int32Array
from octavo.step import RowStart

_FORBIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Biases:
    """Tokens, and what is added to the logit of each; a token may occur several times."""

    token_ids: Int32Array
    values: FloatArray

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def of(cls, biases: Mapping[int, float]) -> Biases:
        count = len(biases)
        return cls(np.fromiter(biases.keys(), np.int32, count), np.fromiter(biases.values(), np.float32, count))

    @classmethod
    def forbidding(cls, token_ids: Iterable[int]) -> Biases:
        forbidden = np.array(list(token_ids), np.int32)
        return cls(forbidden, np.full(len(forbidden), _FORBIDDEN, np.float32))


_NONE = Biases(np.zeros(0, np.int32), np.zeros(0, np.float32))


def joined(parts: Iterable[Biases]) -> Biases:
    """All of them, one after the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else _NONE
    return Biases(np.concatenate([part.token_ids for part in parts]), np.concatenate([part.values for part in parts]))


class RowBiases:
    """The biases of one row from token to token. What never changes is turned into arrays once."""

    def __init__(self, start: RowStart) -> None:
        waits = len(start.token_ids) < start.min_total_tokens
        never = Biases.forbidding(word[0] for word in start.bad_words if len(word) == 1)
        self._always = joined((Biases.of(start.sampling.logit_bias), never))
        self._waiting = Biases.forbidding(start.forbidden_token_ids if waits else ())
        self._min_total_tokens = start.min_total_tokens if len(self._waiting) else 0
        self._num_prompt_tokens = start.num_prompt_tokens
        self._last_tokens: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for word in start.bad_words:
            if len(word) > 1:
                self._last_tokens[word[:-1]].append(word[-1])
        self._lengths = sorted({len(beginning) for beginning in self._last_tokens})

    @property
    def empty(self) -> bool:
        """Whether nothing is added now, nor will be."""
        return not len(self._always) and not self.may_change

    @property
    def may_change(self) -> bool:
        """Whether the row's tokens decide what is added."""
        return bool(self._min_total_tokens or self._lengths)

    def at(self, tokens: Int32Array) -> Biases:
        """What is added after these tokens of the request."""
        parts = [self._always]
        if len(tokens) < self._min_total_tokens:
            parts.append(self._waiting)
        else:
            self._min_total_tokens = 0
        completing = self._completing(tokens[self._num_prompt_tokens :])
        if completing:
            parts.append(Biases.forbidding(completing))
        return joined(parts)

    def _completing(self, output: Int32Array) -> list[int]:
        """The tokens that would complete a bad word."""
        if not self._lengths:
            return []
        tail = tuple(output[-self._lengths[-1] :].tolist())
        beginnings = (tail[len(tail) - length :] for length in self._lengths if length <= len(tail))
        return [token_id for beginning in beginnings for token_id in self._last_tokens.get(beginning, ())]
