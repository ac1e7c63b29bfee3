"""Prompts as `echo` writes them before their completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.request import Request
from octavo.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as it is written before its completions: its text, and where in it each token begins."""

    text: str
    token_ids: Sequence[int]
    text_offsets: Sequence[int]


def echo_of(request: Request, tokenizer: Tokenizer) -> Echo:
    """The prompt as its tokens spell it, but for the BOS that the tokeniser wrote before a text."""
    token_ids = request.prompt_token_ids
    bos_id = tokenizer.bos_token_id
    writes_bos = (
        request.prompt is not None
        and bos_id is not None
        and token_ids[0] == bos_id
        and not request.prompt.startswith(tokenizer.decode([bos_id], skip_special_tokens=False))
    )
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    offsets: list[int] = []
    text = ""
    for position, token_id in enumerate(token_ids):
        offsets.append(len(text))
        if position > 0 or not writes_bos:
            text += detokenizer.append(token_id)
    return Echo(text + detokenizer.flush(), token_ids, offsets)
