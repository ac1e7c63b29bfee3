"""What the makers of a model recommend for sampling: generation_config.json, or `general.sampling.*` in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.config import GenerationDefaults
from octavo.errors import ConfigError, InvalidValueError
from octavo.json_text import parse_json
from octavo.sampling_params import SamplingParams

FILE_NAME = "generation_config.json"

# As transformers and GGUF files call the fields of SamplingParams.
_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_GGUF_FIELDS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_FLAG, _OVERRIDE = "--generation-config", "--override-generation-config"


def read_generation_defaults(
    choice: str, override: str | None, model_path: Path, metadata: Mapping[str, Any]
) -> GenerationDefaults:
    """The defaults of a model.

    `choice` is "auto" (the file beside the model, else the model's own `metadata`), "vllm" (none), or where the file
    is. `override` is JSON whose fields win. Raises `ConfigError` naming the flag, file or key at fault.
    """
    found = _chosen(choice, model_path, metadata)
    if override is not None:
        found = {**found, **_override(override)}
    sampling = {name: found[name] for name in _FIELDS if found.get(name) is not None}
    _check(sampling)
    return GenerationDefaults(
        sampling, _max_tokens(found.get("max_new_tokens")), _eos_token_ids(found.get("eos_token_id"))
    )


def _chosen(choice: str, model_path: Path, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    if choice == "vllm":
        return {}
    if choice == "auto":
        beside = model_path.with_name(FILE_NAME)
        if beside.is_file():
            return _read(beside)
        return {name: metadata[key] for key, name in _GGUF_FIELDS.items() if key in metadata}
    path = Path(choice)
    return _read(path / FILE_NAME if path.is_dir() else path)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{_FLAG}: {path} cannot be read: {error.strerror}; give auto, vllm, or where {FILE_NAME} is"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{_FLAG}: {path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{_FLAG}: {path} is not a JSON object")
    return content


def _override(text: str) -> Mapping[str, Any]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{_OVERRIDE} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{_OVERRIDE} is not a JSON object")
    known = (*_FIELDS, "max_new_tokens", "eos_token_id")
    for name in content:
        if name not in known:
            raise ConfigError(f"{_OVERRIDE} has the unknown key {name!r}; known are {', '.join(known)}")
    return content


def _check(sampling: Mapping[str, Any]) -> None:
    try:
        SamplingParams(**sampling)
    except InvalidValueError as error:
        raise ConfigError(f"the model's generation config: {error}; {_OVERRIDE} can set it") from None


def _max_tokens(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ConfigError(f"the model's generation config: max_new_tokens is {value!r}; it must be at least 1")


def _eos_token_ids(value: Any) -> tuple[int, ...]:
    """One id or a list of them."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise ConfigError(f"the model's generation config: eos_token_id is {value!r}; it must be token ids")
    return tuple(sorted(set(ids)))
