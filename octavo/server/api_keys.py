"""API keys: who a client is, what share of the machine it has, and how much it may ask for."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError

_FIELDS = ("key", "weight", "max_prompt_len", "max_tokens_per_request")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. `name` stands for it in the scheduler and in logs; the key itself is kept as a digest only.

    `weight` is its share among keys that compete; limits are in tokens (None: the server's default).
    """

    name: str
    digest: bytes = field(repr=False)
    weight: float = 1.0
    max_prompt_len: int | None = None
    max_tokens_per_request: int | None = None


def numbered_keys(keys: Sequence[str]) -> tuple[ApiKey, ...]:
    """Keys without names, as `--api-key` gives them: they are called key-1, key-2, ..."""
    return tuple(named_key(f"key-{number}", key) for number, key in enumerate(keys, start=1))


def named_key(name: str, key: str) -> ApiKey:
    return ApiKey(name, digest(key.encode()))


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys of a TOML file: a table for each, named by it, with `key` and what else `ApiKey` has.

    Raises `ConfigError` that names the table and the field, or `OSError`.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-keys-file {path}: {error}") from None
    if not tables:
        raise ConfigError(f'--api-keys-file {path} has no keys; write a table for each: [NAME] and key = "..."')
    return tuple(_key(name, table, f"--api-keys-file {path}") for name, table in tables.items())


def matching(keys: Sequence[ApiKey], given: bytes) -> ApiKey | None:
    """The key that `given` is. Compared as digests in constant time, each against all: timing tells nothing."""
    given_digest = digest(given)
    matches = [key for key in keys if hmac.compare_digest(given_digest, key.digest)]
    return matches[0] if matches else None


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _key(name: str, table: Any, place: str) -> ApiKey:
    place = f"{place}: [{name}]"
    if not isinstance(table, dict):
        raise ConfigError(f'{place} is {table!r}; it must be a table: [{name}] and key = "..." below it')
    unknown = [field for field in table if field not in _FIELDS]
    if unknown:
        raise ConfigError(f"{place} has {unknown[0]!r}; a key has {', '.join(_FIELDS)}")
    secret = table.get("key")
    if not isinstance(secret, str) or not secret.strip():
        raise ConfigError(f"{place}: key is {'missing' if secret is None else 'empty or no text'}")
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise ConfigError(f"{place}: weight is {weight!r}; it must be a number above 0")
    limits = {limit: table.get(limit) for limit in ("max_prompt_len", "max_tokens_per_request")}
    for limit, value in limits.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{place}: {limit} is {value!r}; it must be an integer of at least 1")
    return ApiKey(name, digest(secret.encode()), float(weight), **limits)
