"""Logging as one set-up call: text for people, JSON lines for machines, the session's id on every line of a session."""

import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

LogFormat = Literal["text", "json"]

# uvicorn 0.54's sans-IO WebSocket protocol reports this after every refusal before the upgrade, though the refusal
# was sent in full: it only counts an accept or a plain close as a completed handshake.
_SPURIOUS = "ASGI callable returned without completing handshake"


def set_up(level: str = "info", form: LogFormat = "text") -> None:
    """Send every log line of this process to stderr. A second call replaces the first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # vLLM tells its whole configuration at info and warns of libraries that it works without.
    logging.getLogger("vllm").setLevel(
        root.level if root.level <= logging.DEBUG else max(logging.ERROR, root.level)
    )
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.filters[:] = [f for f in uvicorn_log.filters if not isinstance(f, _NotSpurious)]
    uvicorn_log.addFilter(_NotSpurious())
    # One line per connection is ours to write, with the session's id; uvicorn's own has the query string in it.
    uvicorn_log.setLevel(max(logging.WARNING, root.level))


def of_session(log: logging.Logger, session_id: str) -> "SessionLog":
    """`log`, with `session_id` on every line."""
    return SessionLog(log, {"session": session_id})


class SessionLog(logging.LoggerAdapter[logging.Logger]):
    """Carries a session's id into each record."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = self.extra
        return msg, kwargs


class _NotSpurious(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_SPURIOUS)


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s%(where)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        session = getattr(record, "session", None)
        record.where = f" [{session}]" if session else ""
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        session = getattr(record, "session", None)
        if session:
            line["session"] = session
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
