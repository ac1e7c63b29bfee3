"""An engine put together, ready to be driven by `AsyncEngine` or `LLM`."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.input import InputProcessor
from octavo.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Engine:
    """What `build_engine` returns: the decisions made, and the parts made from them."""

    config: EngineConfig
    tokenizer: Tokenizer
    input: InputProcessor
    core: EngineCore
