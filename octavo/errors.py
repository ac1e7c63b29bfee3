"""Every error Octavo raises on purpose, as one tree.

The server maps these classes to HTTP statuses in one place (`server/errors.py`); nothing here knows about HTTP.
A message names the file, key, field or flag at fault, the value found, and what would work.
"""

from __future__ import annotations


class OctavoError(Exception):
    """Root of the tree: catching it catches everything Octavo raises on purpose."""


class ConfigError(OctavoError):
    """A flag or argument, or a combination of them, cannot be satisfied."""


class ModelError(OctavoError):
    """A model cannot be found, fetched, read or run."""


class ModelNotFoundError(ModelError):
    """A model reference names nothing that exists."""


class DownloadError(ModelError):
    """A model could not be fetched."""


class WrongDigestError(DownloadError):
    """What arrived is not what was announced: its sha256 differs."""


class ModelFileError(ModelError):
    """A model file is damaged or malformed; the message names file and tensor or key."""


class UnsupportedModelError(ModelError):
    """A model file is well formed but asks for what Octavo does not have (architecture, tensor type, rope scaling)."""


class ModelDefinitionError(ModelError):
    """A model description contradicts itself: shapes that do not fit, a weight not declared or not used."""


class TokenizerError(ModelError):
    """A tokenizer cannot be built from what the model file holds."""


class RequestError(OctavoError):
    """A request cannot be served as asked; it hurts nobody else.

    `param` names the request field at fault, `code` is a stable slug.
    """

    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class InvalidValueError(RequestError):
    """A field has a value outside what is allowed."""


class UnsupportedParameterError(RequestError):
    """A field Octavo knows of but does not support (yet): refused by name, never ignored."""

    code = "unsupported_parameter"


class ContextLengthError(RequestError):
    """A prompt cannot fit the context length or the KV cache; the message has both numbers."""

    code = "context_length_exceeded"


class ChatTemplateError(RequestError):
    """The model has no chat template, or its template refused the messages."""

    code = "chat_template_error"


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""

    code = "model_not_found"


class EngineError(OctavoError):
    """The engine failed or is not available; the request itself was fine."""


class QueueFullError(EngineError):
    """Too much is waiting already; the request may be tried again shortly. `limit` names the limit that was met."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class QueueTimeoutError(EngineError):
    """The request waited longer than it may without its turn coming."""


class StepError(EngineError):
    """The step that ran this request raised; the engine goes on with the others."""


class ShuttingDownError(EngineError):
    """The engine no longer takes requests because it is shutting down."""


class EngineDeadError(EngineError):
    """The backend is broken and the engine has stopped."""
