"""How the server logs: lines for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]

# The attributes under which `log_event` hands a record its name and values.
_EVENT, _VALUES = "octavo_event", "octavo_values"


def configure_logging(log_format: LogFormat) -> None:
    """Logs of level INFO and above go to stdout from now on."""
    stream = logging.StreamHandler(sys.stdout)
    stream.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[stream], force=True)


def log_event(logger: logging.Logger, event: str, text: str, values: Mapping[str, object]) -> None:
    """Logs one event: `text` for people, or `event` with its `values` as JSON."""
    logger.info("%s", text, extra={_EVENT: event, _VALUES: values})


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")


class JsonFormatter(logging.Formatter):
    """An object with time, level, logger, event and message, and an event's values beside them."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        event = record.__dict__.get(_EVENT)
        if event is None:
            line["message"] = record.getMessage()
        else:
            line["event"] = event
            line.update(record.__dict__[_VALUES])
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
