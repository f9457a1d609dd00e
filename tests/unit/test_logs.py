"""Logs: one line an event, whatever its values hold."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from coordinator.process import logs
from coordinator.settings import LogSettings

EVIL = "orders\n2026-01-01 [error] forged\r\x1b[2J\u2028"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def _logged(form: Literal["auto", "console", "json"], level: Literal["debug", "info"] = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(LogSettings(format=form, level=level), stream=stream, worker=3)
    return stream


def test_json_has_the_values() -> None:
    stream = _logged("json")
    structlog.get_logger().info("posted", address=EVIL, count=2)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    line = json.loads(lines[0])
    assert line["event"] == "posted"
    assert line["address"] == EVIL
    assert line["worker"] == 3
    assert line["level"] == "info"


def test_without_a_terminal_it_is_json() -> None:
    stream = _logged("auto")
    structlog.get_logger().info("x")
    assert json.loads(stream.getvalue())["event"] == "x"


@pytest.mark.rule("S7")
@pytest.mark.parametrize("form", ["console", "json"])
def test_no_value_makes_a_line_of_its_own(form: Literal["console", "json"]) -> None:
    stream = _logged(form)
    log = structlog.get_logger()
    log.info(EVIL, address=EVIL, nested={"a": [EVIL]}, error=ValueError(EVIL))
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("failed")
    logging.getLogger("library").warning("said %s", EVIL)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert "\x1b" not in stream.getvalue()


@pytest.mark.rule("S8")
def test_a_traceback_shows_no_local_variables() -> None:
    stream = _logged("json")
    password = "hunter2" + "!"

    def fails(secret: str) -> None:
        raise ValueError(len(secret))

    try:
        fails(password)
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "ValueError: 8" in json.loads(stream.getvalue())["traceback"]
    assert "hunter2!" not in stream.getvalue()


def test_levels() -> None:
    stream = _logged("json")
    structlog.get_logger().debug("quiet")
    logging.getLogger("library").info("quiet")
    assert stream.getvalue() == ""
    stream = _logged("json", "debug")
    structlog.get_logger().debug("said")
    assert json.loads(stream.getvalue())["event"] == "said"
