"""The file of API keys: what it says, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.server.api_keys import ApiKey, digest, matching, numbered_keys, read_keys

FILE = """
[research]
key = "sk-1"
weight = 2
max_prompt_len = 8000
max_tokens_per_request = 10000

[interns]
key = "sk-2"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    return path


def test_a_file_names_keys_with_weights_and_limits(tmp_path: Path) -> None:
    research, interns = read_keys(write(tmp_path, FILE))
    assert research == ApiKey("research", digest(b"sk-1"), 2.0, 8000, 10_000)
    assert interns == ApiKey("interns", digest(b"sk-2"))
    assert "sk-1" not in repr(research)


def test_keys_without_names_are_numbered_and_found() -> None:
    keys = numbered_keys(["first", "second"])
    assert [key.name for key in keys] == ["key-1", "key-2"]
    assert matching(keys, b"second") is keys[1] and matching(keys, b"third") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no keys"),
        ("[a", "keys.toml"),
        ("a = 1", r"\[a\] is 1"),
        ("[a]\nweight = 2", r"\[a\]: key is missing"),
        ('[a]\nkey = " "', r"\[a\]: key is empty"),
        ('[a]\nkey = "x"\nweight = 0', r"\[a\]: weight is 0"),
        ('[a]\nkey = "x"\nweight = true', r"weight is True"),
        ('[a]\nkey = "x"\nmax_prompt_len = "8k"', r"max_prompt_len is '8k'"),
        ('[a]\nkey = "x"\nwieght = 2', r"has 'wieght'"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_keys(write(tmp_path, text))
