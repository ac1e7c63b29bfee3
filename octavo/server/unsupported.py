"""Fields that Octavo knows and does not act on: when they ask for nothing they pass, else they are refused by name.

A field that a wire type does not declare must stand in one of these tables. A test walks the fields of OpenAI's own
client and vLLM's extras and fails when one is neither declared nor listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.errors import InvalidValueError, UnsupportedParameterError
from octavo.server.body import short_json

AsksNothing = Callable[[Any], bool]
"""Whether a value (never null) leaves the answer as it would be without the field."""

_MAX_METADATA_PAIRS = 16
_MAX_METADATA_KEY = 64
_MAX_METADATA_VALUE = 512


def only(*neutral: object) -> AsksNothing:
    """Only these values; true is not 1, while 0.0 is 0."""

    def asks_nothing(value: object) -> bool:
        return any(isinstance(value, bool) == isinstance(n, bool) and value == n for n in neutral)

    return asks_nothing


def never(_: object) -> bool:
    """Any value asks for something."""
    return False


def text(value: object) -> bool:
    """A label that changes nothing about the answer."""
    return isinstance(value, str)


def flag(value: object) -> bool:
    """Either way, since what it would switch does not arise."""
    return isinstance(value, bool)


def labels(value: object) -> bool:
    """OpenAI's metadata: at most 16 pairs of text, which are not long."""
    return (
        isinstance(value, dict)
        and len(value) <= _MAX_METADATA_PAIRS
        and all(len(key) <= _MAX_METADATA_KEY for key in value)
        and all(isinstance(item, str) and len(item) <= _MAX_METADATA_VALUE for item in value.values())
    )


def options(value: object) -> bool:
    """Hints for a cache of OpenAI's."""
    return isinstance(value, dict)


def predicted_content(value: object) -> bool:
    """OpenAI's predicted output: it may make an answer quicker, and never changes it."""
    if not isinstance(value, dict) or set(value) != {"type", "content"} or value["type"] != "content":
        return False
    content = value["content"]
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_text_part, content)))


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


_SAMPLING: Mapping[str, AsksNothing] = {
    # vLLM
    "guided_decoding_backend": only("auto", "guidance"),
    "kv_transfer_params": never,
    "logprob_token_ids": never,
    "repetition_detection": never,
    "request_id": never,
    "return_prompt_text": only(False),
    "session_id": text,
    "spaces_between_special_tokens": flag,
    "vllm_xargs": only({}),
}

_REASONS = {
    "guided_decoding_backend": "grammars are enforced by guidance (llguidance) alone",
    "kv_transfer_params": "keys and values are not handed from server to server",
    "metadata": f"it must be at most {_MAX_METADATA_PAIRS} pairs of text, of {_MAX_METADATA_KEY} and "
    f"{_MAX_METADATA_VALUE} characters",
    "logprob_token_ids": "log probabilities are given of the likeliest tokens (logprobs, top_logprobs; -1 for all)",
    "repetition_detection": "repetition can be made unlikely (repetition_penalty, frequency_penalty), not detected",
    "request_id": "the header X-Request-Id names a request",
    "store": "no answer is kept",
    "functions": "tools take their place",
    "function_call": "tool_choice takes its place",
}
"""What to do instead, or why."""

CHAT: Mapping[str, AsksNothing] = {
    **_SAMPLING,
    # OpenAI
    "audio": never,
    "function_call": only("none", "auto"),
    "functions": only([]),
    "metadata": labels,
    "modalities": only(["text"]),
    "moderation": never,
    "prediction": predicted_content,
    "prompt_cache_key": text,
    "prompt_cache_options": options,
    "prompt_cache_retention": only("in_memory"),
    "store": only(False),
    "verbosity": only("medium"),
    "web_search_options": never,
    # vLLM
    "add_special_tokens": only(False),
    "documents": only([]),
    "media_io_kwargs": only({}),
    "mm_processor_kwargs": only({}),
}

COMPLETION: Mapping[str, AsksNothing] = _SAMPLING

MESSAGE: Mapping[str, AsksNothing] = {
    "annotations": only([]),
    "audio": never,
    "function_call": never,
    "refusal": only(""),
}

RESPONSE_FORMAT: Mapping[str, AsksNothing] = {}

STRUCTURED_OUTPUTS: Mapping[str, AsksNothing] = {"disable_additional_properties": only(False)}

CONTENT_PART: Mapping[str, AsksNothing] = {"prompt_cache_breakpoint": options}

STREAM_OPTIONS: Mapping[str, AsksNothing] = {
    "include_obfuscation": flag,
}


def check_undeclared(
    fields: Mapping[str, Any], table: Mapping[str, AsksNothing], path: str = "", *, strict: bool
) -> None:
    """Checks the fields of a body that its wire type does not declare; `path` is where they lie, as in "messages[0]".

    Raises `UnsupportedParameterError` for a known field that asks for something and, if `strict`, `InvalidValueError`
    for one that nobody knows.
    """
    for name, value in fields.items():
        param = f"{path}.{name}" if path else name
        if name not in table:
            if not strict:
                continue
            raise InvalidValueError(f"{param[:200]} is not a known field", param=param[:200], code="unknown_parameter")
        if value is not None and not table[name](value):
            reason = _REASONS.get(name, "Octavo does not support that")
            raise UnsupportedParameterError(f"{param} is {short_json(value)}; {reason}", param=param)
