"""Structured logs on standard error: text on a terminal, JSON otherwise.

Control characters in values are escaped, so that no value can forge a line or move a terminal's cursor (S7).
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog

from coordinator.login.logins import origin_of_peer
from coordinator.printable import printable
from coordinator.settings import LogSettings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(settings: LogSettings, *, stream: TextIO | None = None, **always: object) -> None:
    """Set up the logs of this process. ``always`` is added to every line, for example the number of a worker."""
    stream = sys.stderr if stream is None else stream
    console = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    level = _LEVELS[settings.level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _exception,
    ]
    last: list[structlog.typing.Processor]
    if console:
        last = [_one_line, structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_never)]
    else:
        # JSON escapes control characters (RFC 8259, section 7); ASCII only, so that no other line ends remain.
        last = [structlog.processors.JSONRenderer(ensure_ascii=True)]
    structlog.configure(
        processors=[Sparing(), *shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write per line, so that lines of several processes on one pipe do not mix.
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**always)
    # Warnings of libraries that use the standard logging, in the same form.
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.WARNING))


#: The most lines of one event about the clients of one host and user in one period; further ones are left out.
MOST_LINES = 100
PERIOD_SECONDS = 10.0
#: how many hosts and events are remembered; the least used is forgotten first
_MOST_REMEMBERED = 10_000


class Sparing:
    """Limits the lines of one event about the clients of one host and user, so that they do not fill the disk (S5). The
    next line of that event has the number of lines ``left_out`` before it. Errors are never left out.
    """

    def __init__(self) -> None:
        #: by event, host and user: the begin of the period, its lines, and lines left out since the last one
        self._seen: OrderedDict[tuple[object, ...], tuple[float, int, int]] = OrderedDict()

    def __call__(self, _logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        peer = event.get("peer")
        if peer is None or method not in ("debug", "info", "warning"):
            return event
        key = (event.get("event"), origin_of_peer(str(peer).rpartition(" ")[2]), event.get("user"))
        now = time.monotonic()
        began, lines, left_out = self._seen.pop(key, (now, 0, 0))
        if now - began >= PERIOD_SECONDS:
            began, lines = now, 0
        if lines >= MOST_LINES:
            self._seen[key] = (began, lines, left_out + 1)
            raise structlog.DropEvent
        self._seen[key] = (began, lines + 1, 0)
        if len(self._seen) > _MOST_REMEMBERED:
            self._seen.popitem(last=False)
        if left_out:
            event["left_out"] = left_out
        return event


def _exception(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the traceback without local variables, which hold bodies and secrets (S8)."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    elif isinstance(info, BaseException):
        info = (type(info), info, info.__traceback__)
    if info and info[0] is not None:
        event["traceback"] = "".join(traceback.format_exception(*info)).rstrip()
    return event


def _one_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {key: _escaped(value) for key, value in event.items()}


def _escaped(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return printable(value if isinstance(value, str) else repr(value))


def _never(_stream: TextIO, _info: object) -> None:
    """Never called: :func:`_exception` has taken the traceback out."""
