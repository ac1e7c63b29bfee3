"""What the server decides for itself, apart from the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.chat.format import ChatParsers
from octavo.server.api_keys import ApiKey


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """Which pages of other origins browsers may let talk to the server."""

    allow_origins: tuple[str, ...]
    allow_methods: tuple[str, ...] = ("*",)
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`served_model_names` are what clients may call the model; the first labels the metrics.

    Without `api_keys` no key is asked for, but for what only the `admin_key` opens, if there is one. `strict_fields`
    refuses fields that nobody knows. `max_prompt_len` and `max_tokens_per_request` hold for keys that have no limits of
    their own, and for clients without a key. A stream that has nothing to say for `ping_interval_s` says so.
    """

    served_model_names: tuple[str, ...]
    api_keys: tuple[ApiKey, ...] = ()
    admin_key: ApiKey | None = None
    log_requests: bool = False
    max_body_bytes: int = 16 * 2**20
    max_choices: int = 1024
    strict_fields: bool = True
    trust_request_chat_template: bool = False
    max_prompt_len: int | None = None
    max_tokens_per_request: int | None = None
    parsers: ChatParsers = field(default_factory=ChatParsers)
    ping_interval_s: float = 10.0
    cors: CrossOrigin | None = None
