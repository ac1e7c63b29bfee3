"""A checkpoint as the rest of Octavo sees it, whatever file format it came in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from octavo.graph.ops import Model


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in the file, not yet decoded.

    `shape` is [outputs, inputs] for matrices (row-major, inputs contiguous), [n] for vectors. `encoding` is the GGUF
    type id (`weights.gguf.GGUFType`). `data` maps the file: raw bytes, read-only, nothing copied. `row_order[n]`, if
    given, is the stored row that belongs at row n.
    """

    name: str
    shape: tuple[int, ...]
    encoding: int
    data: npt.NDArray[np.uint8]
    row_order: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model, its tensors under the model's own weight names, and what its tokenizer is built from.

    `sampling` is what the file recommends for sampling, under its own keys.
    `tensors` has exactly the names the model declares. `forget(data)` says that these bytes of a tensor are not needed
    for now, so that no more of the file stays in memory than is being read. `close()` unmaps the file: call it once
    the weights are packed; `tensors` is empty from then on.
    """

    path: Path
    architecture: str
    size_label: str
    model: Model
    tensors: Mapping[str, StoredTensor]
    tokenizer: Mapping[str, Any]
    release: Callable[[], None]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    forget: Callable[[npt.NDArray[np.uint8]], None] = lambda data: None

    def close(self) -> None:
        """Let go of the file; it is unmapped when the last array that views it is gone."""
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
