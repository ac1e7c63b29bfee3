"""Octavo: an LLM inference engine and server for CPUs. `from octavo import LLM, SamplingParams`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.errors import OctavoError as OctavoError
    from octavo.llm import LLM as LLM
    from octavo.request import CompletionOutput as CompletionOutput
    from octavo.request import RequestOutput as RequestOutput
    from octavo.sampling_params import SamplingParams as SamplingParams
    from octavo.structured_outputs import StructuredOutputsParams as StructuredOutputsParams

# Loaded on first use, so that `import octavo` stays cheap.
_HOMES = {
    "LLM": "octavo.llm",
    "SamplingParams": "octavo.sampling_params",
    "StructuredOutputsParams": "octavo.structured_outputs",
    "RequestOutput": "octavo.request",
    "CompletionOutput": "octavo.request",
    "OctavoError": "octavo.errors",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "OctavoError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(home), name)
