"""Structured logs on stderr: a stable event name and fields. Built on stdlib logging, so libraries are included."""

import atexit
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from parlmesh.config import LogConfig
from parlmesh.harmless_text import visible, visible_json

from .log_rate_limit import LineLimit

_LONGEST_TEXT = 2000
_SECRET_WORDS = frozenset({"token", "key", "secret", "password", "authorization", "credential"})
_RESERVED = frozenset({"time", "level", "service", "logger", "event", "exception"})

_bound: ContextVar[Mapping[str, object]] = ContextVar("parlmesh_log_fields", default=MappingProxyType({}))


@contextmanager
def bind(**fields: object) -> Iterator[None]:
    """Adds the fields to every line logged inside the block, in this task and the tasks it starts."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


class Logger:
    """Logs events with fields; never formats a sentence."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, /, error: BaseException | None = None, **fields: object) -> None:
        """Logs an error with the traceback of `error`, or of the exception being handled."""
        self._log(logging.ERROR, event, fields, error if error is not None else sys.exception())

    def _log(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"parlmesh_fields": {**_bound.get(), **fields}}
            # A program that has not configured logging sees only the message, so the fields go into it.
            text = event if self._logger.hasHandlers() else " ".join([event, *_pairs(fields)])
            self._logger.log(level, "%s", text, extra=extra, exc_info=error)


def get_logger(name: str) -> Logger:
    """The logger with that name; services name theirs explicitly (`parlmesh.learner`)."""
    return Logger(name)


def configure_logging(config: LogConfig, service: str) -> None:
    """Sends everything logged in this process to stderr. A second call replaces the first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service) if config.format == "json" else _PrettyFormatter())
    limit = LineLimit()
    handler.addFilter(limit)
    atexit.register(limit.tell)
    root = logging.getLogger()
    for old in list(root.handlers):
        if getattr(old, "parlmesh", False):
            root.removeHandler(old)
    handler.parlmesh = True  # type: ignore[attr-defined]  # marks the handler as ours for the next call
    root.addHandler(handler)
    root.setLevel(config.level.upper())


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(_fields(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return visible_json(json.dumps(line, ensure_ascii=False))


class _PrettyFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = visible(record.getMessage())
        head = f"{_time(record):%H:%M:%S}.{int(record.msecs):03d} {record.levelname.lower():<7} {event}"
        text = " ".join([head, *_pairs(getattr(record, "parlmesh_fields", {}))])
        if not record.exc_info:
            return text
        # Indented, so that no line of it looks like a log line.
        trace = [f"    {visible(line)}" for line in self.formatException(record.exc_info).split("\n")]
        return "\n".join([text, *trace])


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _pairs(fields: Mapping[str, object]) -> list[str]:
    return [f"{visible(name)}={_pretty(value)}" for name, value in _plain_fields(fields).items()]


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return _plain_fields(getattr(record, "parlmesh_fields", {}))


def _plain_fields(fields: Mapping[str, object]) -> dict[str, Any]:
    return {
        (f"{name}_" if name in _RESERVED else name): "***" if _is_secret(name, value) else _plain(value)
        for name, value in fields.items()
    }


def _is_secret(name: str, value: object) -> bool:
    return value is not None and name.lower().rpartition("_")[2] in _SECRET_WORDS


def _plain(value: object) -> Any:
    """The value in JSON types, bounded in size; logging must never raise or print a whole tensor."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no inf and no nan
    if isinstance(value, Mapping):
        return {str(k): "***" if _is_secret(str(k), v) else _plain(v) for k, v in list(value.items())[:200]}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in list(value)[:200]]
    try:
        text = str(value)
    except Exception as error:
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def _pretty(value: object) -> str:
    """Bare when it is one printable word, else quoted as JSON, so that no value can fake a line."""
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))
