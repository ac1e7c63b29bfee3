"""What every route needs: the engine, the settings, the counters, and whether the server still takes requests."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from octavo.chat.format import ChatFormat
from octavo.config import EngineConfig
from octavo.errors import EngineDeadError, ShuttingDownError, UnknownModelError
from octavo.metrics.http_totals import HttpTotals
from octavo.metrics.prometheus import Exposition
from octavo.metrics.totals import EngineTotals
from octavo.request import Request
from octavo.server.auth import api_key_of
from octavo.server.settings import ServerSettings
from octavo.server.terms import Terms, served_tier, terms_of
from octavo.server.wire import SamplingFields
from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine


class Service:
    """One served model. `draining` is set once, when the server is told to stop."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, totals: EngineTotals) -> None:
        self.engine = engine
        self.settings = settings
        self.totals = totals
        self.http = HttpTotals()
        self.exposition = Exposition(totals, self.http, engine.config, settings.served_model_names[0])
        self.created = int(time.time())
        self.draining = False
        self.fingerprint = fingerprint_of(engine.config)
        self._chat_format = settings.parsers.format_under(engine.tokenizer.chat_template)

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """What holds where a request leaves a sampling parameter out."""
        return self.engine.config.generation_defaults.sampling

    @property
    def default_max_tokens(self) -> int | None:
        return self.engine.config.generation_defaults.max_tokens

    def chat_format(self, template: str | None) -> ChatFormat:
        """How the model writes calls and reasoning, under a template of the request's own if there is one."""
        return self._chat_format if template is None else self.settings.parsers.format_under(template)

    def head(self, answer_id: str, kind: str, body: SamplingFields) -> dict[str, object]:
        """The fields every answer and every chunk of one begins with."""
        head: dict[str, object] = {
            "id": answer_id,
            "object": kind,
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": self.fingerprint,
        }
        tier = served_tier(body, self.engine.config.scheduling)
        return head if tier is None else head | {"service_tier": tier}

    def check_available(self) -> None:
        """Raises `EngineDeadError` or `ShuttingDownError` if no request can be served now."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down")
        if not self.engine.healthy:
            raise EngineDeadError("the engine has stopped after an error; see the server's log")

    def check_queue(self, requests: Sequence[Request] = ()) -> None:
        """Raises `QueueFullError` if `requests` may not wait now; without any, if nothing may.

        The engine checks once more when they arrive. Here it costs nothing, and the status is still to be sent.
        """
        self.engine.check_queue(sum(len(request.prompt_token_ids) for request in requests))

    def terms_of(self, connection: HTTPConnection, body: SamplingFields) -> Terms:
        """On which terms the body that came over `connection` is served. Raises a `RequestError`."""
        return terms_of(body, api_key_of(connection), self.settings, self.engine.config.scheduling)

    def check_model(self, name: str) -> None:
        """Raises `UnknownModelError` unless `name` is served here."""
        if name not in self.settings.served_model_names:
            served = ", ".join(repr(served) for served in self.settings.served_model_names)
            raise UnknownModelError(f"the model {name[:200]!r} does not exist here; served: {served}", param="model")


def service_of(connection: HTTPConnection) -> Service:
    """The service of the app that `connection` came to."""
    service: Service = connection.app.state.service
    return service


def fingerprint_of(config: EngineConfig) -> str:
    """Changes when the same seed may give another answer: with the version, the model and how it is computed."""
    model = Path(config.model_path).name
    facts = (__version__, model, config.isa, config.quantization, config.activation_dtype, config.kv_cache_dtype)
    return "fp_" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
