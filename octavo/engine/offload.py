"""The files that blocks of the KV cache go to, and what makes them fit this engine and no other."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from octavo.config import BLOCK_TOKENS, EngineConfig
from octavo.errors import ConfigError
from octavo.kvcache.block_store import BlockStore
from octavo.step import KvGroup
from octavo.version import __version__

logger = logging.getLogger(__name__)


def open_block_store(config: EngineConfig, groups: Sequence[KvGroup], build: str) -> BlockStore | None:
    """What `--kv-offload-dir` asks for, with the blocks that the backend's `build` can read.

    Raises `ConfigError` when the folder cannot be used.
    """
    if config.kv_offload_dir is None:
        return None
    part_bytes = [group.block_bytes for group in groups]
    if config.kv_offload_bytes < sum(part_bytes):
        raise ConfigError(
            f"--kv-offload-size is {config.kv_offload_bytes}; one block alone takes {sum(part_bytes)} bytes"
        )
    try:
        store = BlockStore(
            Path(config.kv_offload_dir), _fingerprint(config, groups, build), part_bytes, config.kv_offload_bytes
        )
    except OSError as error:
        raise ConfigError(f"--kv-offload-dir {config.kv_offload_dir} cannot be used: {error}") from error
    logger.info("%d blocks of the KV cache are in %s", len(store), config.kv_offload_dir)
    return store


def _fingerprint(config: EngineConfig, groups: Sequence[KvGroup], build: str) -> bytes:
    """Everything that the bytes of a block depend on beside the tokens."""
    with Path(config.model_path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    parts = {
        "version": __version__,
        "build": build,
        "model": digest,
        "isa": config.isa,
        "activation_dtype": config.activation_dtype,
        "quantization": config.quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "groups": [asdict(group) for group in groups],
        "block_tokens": BLOCK_TOKENS,
        "byte_order": sys.byteorder,
    }
    return json.dumps(parts, sort_keys=True).encode()
