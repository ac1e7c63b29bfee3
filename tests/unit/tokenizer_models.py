"""The real models' tokenizers, ours and the reference's, each built once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

from octavo.tokenizer.gguf import load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.weights.gguf import GGUFFile


@cache
def metadata_of(path: Path) -> dict[str, Any]:
    with GGUFFile(path) as file:
        return {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}


@cache
def tokenizer_of(path: Path) -> Tokenizer:
    return load_tokenizer(metadata_of(path))


@cache
def reference_of(path: Path) -> tokenizers.Tokenizer:
    """What transformers' AutoTokenizer builds from the file; these two functions are its way there."""
    architecture, description, _ = get_gguf_tokenizer(str(path))
    reference, _ = convert_gguf_tokenizer(architecture, description)
    return reference
