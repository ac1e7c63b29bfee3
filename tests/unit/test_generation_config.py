"""Sampling defaults that come with a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.config import GenerationDefaults
from octavo.errors import ConfigError
from octavo.weights.generation_config import read_generation_defaults

# As Qwen2.5 has it.
QWEN = {
    "bos_token_id": 151643, "do_sample": True, "repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20,
    "top_p": 0.8, "transformers_version": "4.37.0",
}  # fmt: skip
SAMPLING = {"repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
GGUF = {"general.sampling.temp": 0.5, "general.sampling.top_k": 64, "general.sampling.mirostat": 0}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps(QWEN))
    return tmp_path / "model.gguf"


def test_the_file_beside_the_model_comes_before_what_the_model_says(model: Path, tmp_path: Path) -> None:
    assert read_generation_defaults("auto", None, model, GGUF) == GenerationDefaults(SAMPLING)
    elsewhere = tmp_path / "other" / "model.gguf"
    found = read_generation_defaults("auto", None, elsewhere, GGUF)
    assert found == GenerationDefaults({"temperature": 0.5, "top_k": 64})
    assert read_generation_defaults("auto", None, elsewhere, {}) == GenerationDefaults()


def test_a_file_or_none_can_be_named_and_overridden(model: Path, tmp_path: Path) -> None:
    assert read_generation_defaults("vllm", None, model, GGUF) == GenerationDefaults()
    for named in (tmp_path, tmp_path / "generation_config.json"):
        found = read_generation_defaults(str(named), '{"top_k": 3, "max_new_tokens": 9}', Path("m.gguf"), {})
        assert found == GenerationDefaults({**SAMPLING, "top_k": 3}, 9)


def test_end_tokens_are_one_or_a_list(model: Path) -> None:
    for value, ids in ((7, {7}), ([7, 9], {7, 9}), (None, set())):
        found = read_generation_defaults("auto", json.dumps({"eos_token_id": value}), model, {})
        assert set(found.eos_token_ids) == ids


@pytest.mark.parametrize(
    ("choice", "override", "message"),
    [
        ("nowhere", None, "--generation-config: nowhere cannot be read"),
        ("auto", "{", "--override-generation-config is not JSON"),
        ("auto", "[" * 100_000, "--override-generation-config is not JSON: it is nested too deeply"),
        ("auto", "9" * 5000, "--override-generation-config is not JSON: an integer has more than 4300 digits"),
        ("auto", "[]", "--override-generation-config is not a JSON object"),
        ("auto", '{"temprature": 1}', "unknown key 'temprature'; known are temperature"),
        ("auto", '{"temperature": -1}', "temperature is -1"),
        ("auto", '{"max_new_tokens": 0}', "max_new_tokens is 0"),
        ("auto", '{"eos_token_id": "</s>"}', "eos_token_id is '</s>'; it must be token ids"),
        ("auto", '{"eos_token_id": [3, -1]}', r"eos_token_id is \[3, -1\]"),
    ],
)
def test_what_cannot_be_used_is_refused(model: Path, choice: str, override: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_generation_defaults(choice, override, model, {})
