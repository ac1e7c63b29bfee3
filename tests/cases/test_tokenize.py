"""Kind 13: tokenize and detokenize. The reports are listed in docs/cases.md."""

from __future__ import annotations

import pytest

from octavo import SamplingParams
from octavo.engine.output import OutputProcessor
from octavo.scheduler.outcome import NewToken
from tests.cases.models import QUESTION, ask
from tests.server.live import Server

MESSAGES = [{"role": "user", "content": QUESTION}]
TEXTS = ["größe", "日本語", "🙂👩‍👩‍👧", " two  blanks\n", "<|im_start|>x", "a\u0301", ""]


@pytest.mark.case("EMB-07")
def test_a_conversation_has_the_tokens_that_answering_it_counts(smollm2: Server) -> None:
    counted = smollm2.request("POST", "/tokenize", {"messages": MESSAGES}).json["count"]
    assert ask(smollm2, "chat", max_tokens=1).json["usage"]["prompt_tokens"] == counted
    open_end = smollm2.request("POST", "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False}).json
    assert 0 < open_end["count"] < counted
    refused = smollm2.request("POST", "/tokenize", {"prompt": "<|im_start|>x", "parse_special": False})
    assert (refused.status, refused.error["param"]) == (400, "parse_special"), "honoured or refused by name"


@pytest.mark.case("EMB-08")
def test_ids_are_checked_and_texts_come_back(smollm2: Server) -> None:
    vocab_size = smollm2.engine.config.vocab_size
    for tokens in ([4294967295], [-1], [vocab_size], ["a"], [1.5], [10**30], None):
        refused = smollm2.request("POST", "/detokenize", {"tokens": tokens})
        assert refused.status == 400 and refused.error["param"].startswith("tokens"), tokens
    assert smollm2.request("POST", "/detokenize", {"tokens": []}).json == {"prompt": ""}
    assert smollm2.request("POST", "/detokenize", {"tokens": [vocab_size - 1] * 1_000_000}).status == 200
    for text in TEXTS:
        tokens = smollm2.request("POST", "/tokenize", {"prompt": text}).json["tokens"]
        assert smollm2.request("POST", "/detokenize", {"tokens": tokens}).json["prompt"] == text


@pytest.mark.case("EMB-09")
@pytest.mark.parametrize("bad", [-1, 49152, 2**40])
def test_an_id_that_is_none_ends_its_request_alone(smollm2: Server, bad: int) -> None:
    """Also in the middle of a character."""
    processor = OutputProcessor(smollm2.engine.tokenizer)
    requests = [smollm2.engine.input.from_prompt("a", SamplingParams(max_tokens=9)) for _ in range(2)]
    for request in requests:
        processor.open(request.request_id, processor.prepare(request))
    tokenizer = smollm2.engine.tokenizer
    half = next(token_id for token_id in range(tokenizer.vocab_size) if tokenizer.token_bytes(token_id) == b"\xf0")
    first, second = (request.request_id for request in requests)
    reasons = [
        delta.finish_reason
        for ids in ((half, 500), (bad, 501))
        for delta in processor.append([NewToken(first, ids[0]), NewToken(second, ids[1])], 0.0)
    ]
    assert reasons == [None, None, "error", None]
