"""Logs: one line an event, whatever its values hold."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from coordinator.login.logins import origin_of_peer, peer_of
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


@pytest.mark.rule("S5")
def test_the_lines_about_one_host_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one event, in a period; the first line of the next says how many were left out."""
    now = [0.0]
    monkeypatch.setattr("coordinator.process.logs.time.monotonic", lambda: now[0])
    stream = _logged("json")
    log = structlog.get_logger()
    for port in range(logs.MOST_LINES + 7):
        log.info("refused", peer=f"192.0.2.1:{port}")
        log.warning("slow", peer=f"container 192.0.2.1:{port}")
        log.error("defect", peer=f"192.0.2.1:{port}")
        log.info("said by the service")
    log.info("refused", peer="192.0.2.1:1", user="another")
    now[0] += logs.PERIOD_SECONDS
    log.info("refused", peer="192.0.2.1:1")
    log.info("refused", peer="192.0.2.1:1")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    counted = Counter(line["event"] for line in lines[:-3])
    assert counted == {
        "refused": logs.MOST_LINES,
        "slow": logs.MOST_LINES,
        "defect": logs.MOST_LINES + 7,
        "said by the service": logs.MOST_LINES + 7,
    }
    assert [(line["peer"], line.get("left_out")) for line in lines[-3:]] == [
        ("192.0.2.1:1", None),
        ("192.0.2.1:1", 7),
        ("192.0.2.1:1", None),
    ]


@pytest.mark.rule("S5", "S2")
@pytest.mark.parametrize(("listening", "named"), [("127.0.0.1", "127.0.0.1"), ("::1", "::")])
def test_the_origin_of_a_client_as_the_log_names_it(listening: str, named: str) -> None:
    """Of IPv6 the network: a host may have all its addresses, and hides no other."""
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    with socket.create_server((listening, 0), family=family) as server, socket.socket(family) as client:
        client.connect(server.getsockname())
        assert origin_of_peer(peer_of(client)) == named


@pytest.mark.rule("S5")
def test_of_hosts_beyond_those_remembered_the_least_used_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_REMEMBERED", 10)
    sparing = logs.Sparing()
    for number in range(100):
        sparing(None, "info", {"event": "refused", "peer": f"192.0.2.{number}:1"})
    assert len(sparing._seen) == 10
    assert ("refused", "192.0.2.99", None) in sparing._seen
