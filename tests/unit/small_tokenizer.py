"""A byte-level tokenizer of some hundred tokens, trained in a moment: for tests that need merges but no model."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE

from octavo.tokenizer import tokenizer as octavo_tokenizer
from octavo.tokenizer.gguf import load_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_end|>", "<|call|>", "[TOOL_CALLS]", "[ARGS]"]
USER_DEFINED = ["<think>", "</think>"]
_CORPUS = [
    '{"name": "Ada", "age": 36, "tags": ["a", "b"], "address": {"street": "1 Long Road", "zip": "12345"}}',
    'The quick brown fox says "hello" to the naïve café; <tool_call>{"arguments": {"city": "Paris"}}</tool_call>',
    "true false null -1.5e10 2026-11-29T12:00:00Z größe 日本 🙂",
]


@cache
def small_tokenizer(chat_template: str | None = None) -> octavo_tokenizer.Tokenizer:
    """EOS are the first two special tokens, the others are markers; `<think>` and `</think>` are single tokens."""
    return load_tokenizer(small_tokenizer_metadata(chat_template))


@cache
def small_tokenizer_metadata(chat_template: str | None = None) -> dict[str, Any]:
    """What a GGUF file of that tokenizer says."""
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(_CORPUS * 20, trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = [*SPECIAL, *USER_DEFINED, *sorted(model["vocab"], key=model["vocab"].get)]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [4] * len(USER_DEFINED) + [1] * len(model["vocab"]),
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 1,
    }
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    return metadata
