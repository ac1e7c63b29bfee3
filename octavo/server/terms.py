"""On which terms a request is served: what its API key allows and what its body asks for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

from octavo.config import SchedulingConfig
from octavo.engine.priority import checked_priority
from octavo.errors import ContextLengthError
from octavo.request import PrefixKey, Request, Tenant
from octavo.server.api_keys import ApiKey
from octavo.server.settings import ServerSettings
from octavo.server.wire import SamplingFields, ServiceTier

ServedTier = Literal["default", "flex", "priority"]

_SERVED_TIERS: dict[ServiceTier, ServedTier] = {
    "auto": "default",
    "default": "default",
    "scale": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
}
_TIER_PRIORITIES: dict[ServedTier, int] = {"default": 0, "flex": 6, "priority": -3}


@dataclass(frozen=True, slots=True)
class Terms:
    """In whose name, how urgently, and within which limits (None: none) a request is served.

    `max_prompt_len` limits the tokens of the prompt, `max_tokens_per_request` those of prompt and answer together.
    `gives_max_tokens`: the client named the length of the answer; what it left open is cut to the limit.
    """

    tenant: Tenant
    prefix_key: PrefixKey
    priority: int = 0
    queue_timeout_s: float | None = None
    max_prompt_len: int | None = None
    max_tokens_per_request: int | None = None
    gives_max_tokens: bool = False

    def applied_to(self, request: Request) -> Request:
        """The request on these terms. Raises `ContextLengthError`, with the numbers, if it exceeds a limit."""
        self._check_prompt(len(request.prompt_token_ids))
        return replace(
            request,
            sampling=replace(request.sampling, max_tokens=self._max_tokens(request)),
            tenant=self.tenant,
            prefix_key=self.prefix_key,
            priority=self.priority,
            queue_timeout_s=self.queue_timeout_s,
        )

    def _check_prompt(self, num_tokens: int) -> None:
        most = self.max_prompt_len
        if most is not None and num_tokens > most:
            raise ContextLengthError(
                f"the prompt has {num_tokens} tokens; the server allows this client prompts of at most {most}",
                param="prompt",
            )
        most = self.max_tokens_per_request
        if most is not None and num_tokens >= most:
            raise ContextLengthError(
                f"the prompt has {num_tokens} tokens; the server allows this client at most {most} tokens a request, "
                "prompt and answer together",
                param="prompt",
            )

    def _max_tokens(self, request: Request) -> int | None:
        num_tokens, wanted, most = (
            len(request.prompt_token_ids),
            request.sampling.max_tokens,
            self.max_tokens_per_request,
        )
        if most is None or wanted is None or num_tokens + wanted <= most:
            return wanted
        if self.gives_max_tokens or request.sampling.min_tokens > most - num_tokens:
            raise ContextLengthError(
                f"max_tokens is {wanted}; after a prompt of {num_tokens} tokens the server allows this client "
                f"{most - num_tokens}, since a request may have at most {most} tokens",
                param="max_tokens",
            )
        return most - num_tokens


def terms_of(body: SamplingFields, key: ApiKey | None, settings: ServerSettings, scheduling: SchedulingConfig) -> Terms:
    """Raises a `RequestError` for a priority that the server does not honour, or that is out of range."""
    return Terms(
        tenant=Tenant("" if key is None else key.name, _user_digest(body.safety_identifier or body.user)),
        prefix_key=PrefixKey(cache_salt=body.cache_salt),
        priority=_priority(body, scheduling),
        queue_timeout_s=body.queue_timeout,
        max_prompt_len=(key and key.max_prompt_len) or settings.max_prompt_len,
        max_tokens_per_request=(key and key.max_tokens_per_request) or settings.max_tokens_per_request,
        gives_max_tokens=body.gives_max_tokens,
    )


def served_tier(body: SamplingFields, scheduling: SchedulingConfig) -> ServedTier | None:
    """The tier that the answer names: the one that was served, if one was asked for."""
    if body.service_tier is None:
        return None
    return _SERVED_TIERS[body.service_tier] if scheduling.honours_priority else "default"


def _priority(body: SamplingFields, scheduling: SchedulingConfig) -> int:
    """The priority asked for; without one, that of the service tier."""
    if body.priority is None:
        return _TIER_PRIORITIES[served_tier(body, scheduling) or "default"]
    return checked_priority(body.priority, scheduling)


def _user_digest(user: str | None) -> str:
    """Stands for an end user without saying who it is."""
    return hashlib.sha256(user.encode()).hexdigest()[:16] if user else ""
