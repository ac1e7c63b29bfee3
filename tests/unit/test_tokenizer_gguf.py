"""Tokenizers from vocabularies trained here, and from vocabularies that are malformed.

Oracles: the tokenizer that was trained, in the original structure of its family, and transformers' conversion. That
conversion differs from the original tokenizers in three ways we do not follow:
- Llama 3 takes a piece that is a token as a whole, whatever its merges (`ignore_merges` in its `tokenizer.json`);
- Llama 3 writes BOS (as does llama.cpp) where the file does not say;
- SentencePiece puts its space in front of text that begins with one, too, and after every special token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers.integrations.gguf import convert_gguf_tokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from octavo.errors import TokenizerError, UnsupportedModelError
from octavo.tokenizer.gguf import load_tokenizer
from octavo.tokenizer.piece_merges import piece_merges
from tests.unit.tokenizer_corpus import DECOMPOSED, FOREIGN_NUMBERS, TEXTS

CORPUS = [*TEXTS.values(), *DECOMPOSED.values(), *FOREIGN_NUMBERS.values()]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def train_byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizer
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|begin_of_text|>", "<|eot_id|>", "<|endoftext|>", "<\uff5cmark\u2581er\uff5c>"]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator([*CORPUS, *Path(pytest.__file__).read_text().splitlines()], trainer)
    return trained


def byte_level_metadata(trained: Tokenizer, pre: str | None) -> dict[str, Any]:
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (len(tokens) - 4),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return metadata if pre is None else {**metadata, "tokenizer.ggml.pre": pre}


def llama3_split() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"]), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.fixture(scope="module")
def gpt2_trained() -> Tokenizer:
    return train_byte_level(gpt2_split())


@pytest.fixture(scope="module")
def llama3_trained() -> Tokenizer:
    return train_byte_level(llama3_split())


@pytest.mark.parametrize("pre", ["gpt-2", "default", None])
def test_gpt2_splits(gpt2_trained: Tokenizer, pre: str | None) -> None:
    metadata = byte_level_metadata(gpt2_trained, pre)
    ours = load_tokenizer(metadata)
    converted, _ = convert_gguf_tokenizer("gpt2", {"tokenizer_type": "gpt2", **described(metadata)})
    for text in CORPUS:
        expected = gpt2_trained.encode(text).ids
        assert ours.encode(text) == expected == converted.encode(text, add_special_tokens=False).ids
        assert ours.decode(expected, skip_special_tokens=False) == text


def test_llama3_splits_and_adds_bos(llama3_trained: Tokenizer) -> None:
    ours = load_tokenizer(byte_level_metadata(llama3_trained, "llama-bpe"))
    llama3_trained.model.ignore_merges = True
    for text in CORPUS:
        assert ours.encode(text) == [0, *llama3_trained.encode(text).ids]
    declared = load_tokenizer(
        {**byte_level_metadata(llama3_trained, "llama-bpe"), "tokenizer.ggml.add_bos_token": False}
    )
    assert declared.encode("x") == llama3_trained.encode("x").ids


def test_llama3_takes_a_piece_that_is_a_token_whole(llama3_trained: Tokenizer) -> None:
    metadata = byte_level_metadata(llama3_trained, "llama-bpe")
    unreachable = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "ĠXylophonquark"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    assert load_tokenizer(metadata).encode("a Xylophonquark", add_special_tokens=False)[-1] == unreachable
    assert unreachable not in load_tokenizer({**metadata, "tokenizer.ggml.pre": "gpt-2"}).encode("a Xylophonquark")


def test_a_marker_outside_the_byte_alphabet_is_matched_and_spelled_as_it_stands(gpt2_trained: Tokenizer) -> None:
    ours = load_tokenizer(byte_level_metadata(gpt2_trained, "gpt-2"))
    assert ours.encode("<\uff5cmark\u2581er\uff5c>") == [3]
    assert ours.decode([3], skip_special_tokens=False) == "<\uff5cmark\u2581er\uff5c>"


def test_every_known_end_of_turn_token_ends_an_answer_if_it_is_a_control_token(gpt2_trained: Tokenizer) -> None:
    metadata = byte_level_metadata(gpt2_trained, "gpt-2")
    assert load_tokenizer(metadata).eos_token_ids == {1, 2}
    assert load_tokenizer({**metadata, "tokenizer.ggml.token_type": None}).eos_token_ids == {2}
    with_eot = {**metadata, "tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.eom_token_id": 900}
    assert load_tokenizer(with_eot).eos_token_ids == {1, 2, 3, 900}
    del metadata["tokenizer.ggml.eos_token_id"]
    assert load_tokenizer(metadata).eos_token_ids == {1, 2}


def test_eos_is_written_where_the_file_says_so(gpt2_trained: Tokenizer) -> None:
    ours = load_tokenizer({**byte_level_metadata(gpt2_trained, "gpt-2"), "tokenizer.ggml.add_eos_token": True})
    assert ours.encode("x")[-1] == 2
    assert ours.encode("x", add_special_tokens=False) == gpt2_trained.encode("x").ids


def test_chat_prompts_have_one_bos(gpt2_trained: Tokenizer) -> None:
    metadata = {**byte_level_metadata(gpt2_trained, "gpt-2"), "tokenizer.ggml.add_bos_token": True}
    messages = [{"role": "user", "content": "Hi"}]
    for template in ("{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"):
        ours = load_tokenizer({**metadata, "tokenizer.chat_template": template})
        assert ours.encode_chat(messages) == [0, *gpt2_trained.encode("Hi").ids]


def train_sentencepiece() -> Tokenizer:
    """Merges over whole lines with spaces respelled and bytes for rare characters: Llama 2's structure."""
    trained = Tokenizer(BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trained.pre_tokenizer = pre_tokenizers.Split("\u2581", behavior="merged_with_next")
    special = ["<unk>", "<s>", "</s>", *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=special, limit_alphabet=150, show_progress=False)
    trained.train_from_iterator([*CORPUS, *Path(pytest.__file__).read_text().splitlines()], trainer)
    return trained


@pytest.fixture(scope="module")
def sentencepiece_metadata() -> dict[str, Any]:
    model = json.loads(train_sentencepiece().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def described(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata under the names of transformers' conversion."""
    short = {"pre": "pre_tokenizer_type", "model": "tokenizer_type"}
    keys = {key: key.removeprefix("tokenizer.ggml.") for key in metadata}
    return {short.get(key, key): metadata[full] for full, key in keys.items()}


def original_sentencepiece(metadata: dict[str, Any], prefix: bool) -> Tokenizer:
    """The structure of a Llama 2 `tokenizer.json` around the merges that transformers rebuilds from scores."""
    original, _ = convert_gguf_tokenizer("llama", described(metadata))
    spaces = normalizers.Replace(" ", "\u2581")
    original.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefix else spaces
    original.pre_tokenizer = None
    return original


def test_sentencepiece_rebuilds_merges_from_scores(sentencepiece_metadata: dict[str, Any]) -> None:
    ours = load_tokenizer(sentencepiece_metadata)
    converted, _ = convert_gguf_tokenizer("llama", described(sentencepiece_metadata))
    original = original_sentencepiece(sentencepiece_metadata, prefix=True)
    for text in CORPUS:
        ids = ours.encode(text)
        assert ids == [1, *original.encode(text, add_special_tokens=False).ids]
        if "<s>" not in text and "</s>" not in text:
            assert ours.decode(ids) == text.replace("\u2581", " ")
            if not text.startswith(" "):
                assert ids[1:] == converted.encode(text, add_special_tokens=False).ids
                assert ours.decode(ids) == converted.decode(ids)


def test_scores_decide_where_they_do_not_follow_the_ids(sentencepiece_metadata: dict[str, Any]) -> None:
    scores = sentencepiece_metadata["tokenizer.ggml.scores"]
    reversed_scores = {**sentencepiece_metadata, "tokenizer.ggml.scores": scores[:259] + scores[:258:-1]}
    original = original_sentencepiece(reversed_scores, prefix=True)
    ours = load_tokenizer(reversed_scores)
    assert ours.encode(TEXTS["prose"]) != load_tokenizer(sentencepiece_metadata).encode(TEXTS["prose"])
    for text in CORPUS:
        assert ours.encode(text, add_special_tokens=False) == original.encode(text, add_special_tokens=False).ids


def test_the_space_prefix_rules_of_sentencepiece(sentencepiece_metadata: dict[str, Any]) -> None:
    tokens = sentencepiece_metadata["tokenizer.ggml.tokens"]
    prefixed = load_tokenizer(sentencepiece_metadata)
    plain = load_tokenizer({**sentencepiece_metadata, "tokenizer.ggml.add_space_prefix": False})
    assert "".join(tokens[i] for i in prefixed.encode("x", add_special_tokens=False)) == "\u2581x"
    assert "".join(tokens[i] for i in prefixed.encode(" x", add_special_tokens=False)) == "\u2581\u2581x"
    assert "".join(tokens[i] for i in prefixed.encode("</s>x", add_special_tokens=False)) == "</s>\u2581x"
    assert "".join(tokens[i] for i in plain.encode(" x", add_special_tokens=False)) == "\u2581x"
    for text in ("x", " x", "  x", " ", ""):
        assert prefixed.decode(prefixed.encode(text)) == plain.decode(plain.encode(text)) == text
        pieces = prefixed.detokenizer()
        assert "".join(map(pieces.append, prefixed.encode(text))) + pieces.flush() == text


def test_bytes_of_sentencepiece_that_are_no_text(sentencepiece_metadata: dict[str, Any]) -> None:
    ours = load_tokenizer(sentencepiece_metadata)
    euro = [3 + byte for byte in "€".encode()]
    assert ours.decode(euro) == "€"
    assert ours.decode([*euro[:2], *euro]) == "\ufffd€"  # transformers would give up on the whole run of bytes
    assert ours.token_bytes(euro[0]) == b"\xe2"


def test_runs_of_spaces_written_out_in_the_file(sentencepiece_metadata: dict[str, Any]) -> None:
    metadata = dict(sentencepiece_metadata)
    tokens = [token for token in metadata["tokenizer.ggml.tokens"] if set(token) != {"\u2581"} or len(token) == 1]
    kinds = [2, 3, 3] + [6] * 256 + [4, 4, 4] + [1] * (len(tokens) - 259)
    metadata["tokenizer.ggml.tokens"] = [*tokens[:259], "  ", "    ", "<|user|>", *tokens[259:]]
    metadata["tokenizer.ggml.token_type"] = kinds
    metadata["tokenizer.ggml.scores"] = [0.0] * 259 + [-1000.0] * 3 + [-float(i) for i in range(len(tokens) - 259)]
    metadata["tokenizer.ggml.add_space_prefix"] = False
    ours = load_tokenizer(metadata)
    converted, _ = convert_gguf_tokenizer("gemma3", described(metadata))
    for text in [*CORPUS, "a    b  c", "<|user|>  x"]:
        if "<eos>" in text:  # which the conversion adds to every vocabulary
            continue
        assert ours.encode(text, add_special_tokens=False) == converted.encode(text, add_special_tokens=False).ids
    assert ours.encode("    ") == [1, 260]
    assert ours.decode([259, 261]) == "  <|user|>"


def test_merges_of_pieces_are_all_there_are() -> None:
    pieces = ["a", "b", "aa", "ab", "aab", "😀", "a😀", "abaab", "", "\ufffd", "aaab"]
    expected = [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    assert piece_merges(pieces) == expected
    assert piece_merges([]) == piece_merges(["x"]) == []


TINY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<e>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.eos_token_id": 3,
}
TINY_PIECES = {**TINY, "tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0, -1.0, -2.0, 0.0]}


def test_the_tiny_vocabularies_are_fine() -> None:
    assert load_tokenizer(TINY).encode("aab<e>") == [0, 2, 3]
    assert load_tokenizer({**TINY_PIECES, "tokenizer.ggml.add_space_prefix": False}).encode("aab<e>") == [0, 2, 3]


@pytest.mark.parametrize(
    ("metadata", "key", "value", "message"),
    [
        (TINY, "model", None, r"no tokenizer\.ggml\.model"),
        (TINY, "tokens", None, r"no tokenizer\.ggml\.tokens"),
        (TINY, "tokens", [], r"tokenizer\.ggml\.tokens is empty"),
        (TINY, "tokens", 7, r"tokenizer\.ggml\.tokens is not a list of strings"),
        (TINY, "tokens", ["a", 5], r"tokenizer\.ggml\.tokens is not a list of strings"),
        (TINY, "tokens", ["a", "b", "ab", "b"], r"tokenizer\.ggml\.tokens has 'b' twice, as 1 and 3"),
        (TINY, "merges", None, r"no tokenizer\.ggml\.merges"),
        (TINY, "merges", ["a b", "a c"], r"merges\[1\] merges 'a' and 'c', but 'c' is not"),
        (TINY, "merges", ["b a"], r"merges\[0\] merges 'b' and 'a', but 'ba' is not"),
        (TINY, "merges", ["ab"], r"merges\[0\] merges 'ab' and '', but '' is not"),
        (TINY, "merges", ["a b b"], r"merges\[0\] merges 'a' and 'b b'"),
        (TINY, "merges", [3], r"tokenizer\.ggml\.merges is not a list of strings"),
        (TINY, "token_type", [1, 1, 1], r"token_type has 3 entries for the 4"),
        (TINY, "token_type", [1, 1, 1, 9], r"token_type has 9; known kinds"),
        (TINY, "token_type", "abcd", r"token_type is not a list of numbers"),
        (TINY, "eos_token_id", 4, r"eos_token_id is 4; it must be a token id from 0 to 3"),
        (TINY, "bos_token_id", -1, r"bos_token_id is -1"),
        (TINY, "eot_token_id", 4294967295, r"eot_token_id is 4294967295"),
        (TINY, "unknown_token_id", "x", r"unknown_token_id is 'x'"),
        (TINY, "add_bos_token", 1, r"add_bos_token is 1; it must be true or false"),
        (TINY, "add_bos_token", True, r"add_bos_token is true, but the file has no tokenizer\.ggml\.bos_token_id"),
        (TINY, "pre", 5, r"tokenizer\.ggml\.pre is int; it must be text"),
        (TINY_PIECES, "scores", None, r"no tokenizer\.ggml\.scores"),
        (TINY_PIECES, "scores", [0.0] * 5, r"scores has 5 entries for the 4"),
        (TINY_PIECES, "scores", [0.0, float("nan"), 0.0, 0.0], r"scores has a value that is not a number"),
        (TINY_PIECES, "token_type", [1, 6, 1, 3], r"token_type says that 'b' is a byte"),
        (TINY_PIECES, "tokens", ["  ", "\u2581\u2581", "a", "<e>"], r"tokens has a run of spaces in two spellings"),
    ],
)
def test_a_malformed_vocabulary_is_refused_by_key(
    metadata: dict[str, Any], key: str, value: object, message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer({**metadata, f"tokenizer.ggml.{key}": value})


def test_unknown_kinds_are_named_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre is 'poro-chat'.*known: .*qwen2"):
        load_tokenizer({**TINY, "tokenizer.ggml.pre": "poro-chat"})
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.model is 'bert'.*known: gpt2, llama"):
        load_tokenizer({**TINY, "tokenizer.ggml.model": "bert"})
