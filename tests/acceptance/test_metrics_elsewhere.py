"""Metrics for others than this machine: behind TLS, for those who show the token (S11)."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fix_certificates import Authority, key_of
from tests.fix_command import Serve
from tests.fix_service import PATIENCE, Service, running_service

pytestmark = pytest.mark.rule("S11")

_TOKEN = "d2h5LW5vdC1ub3c~0123"
_HOST = "IP:127.0.0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, ca: Authority) -> Path:
    """With what the service reads: its certificate, its key, its token."""
    folder = tmp_path_factory.mktemp("metrics")
    _put(folder, ca.sign("metrics", alternative=_HOST), _TOKEN)
    return folder


def _put(folder: Path, certificate: Path, token: str) -> None:
    for name, content in (
        ("certificate", certificate.read_text("utf-8")),
        ("key", key_of(certificate).read_text("utf-8")),
        ("token", f"{token}\n"),
    ):
        (folder / name).write_text(content, "utf-8")
        (folder / name).chmod(0o600)


def _settings(folder: Path) -> dict[str, str]:
    return {
        "metrics.listen": "https://127.0.0.1:0",
        "metrics.token": str(folder / "token"),
        "tls.certificate": str(folder / "certificate"),
        "tls.key": str(folder / "key"),
    }


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    brief = {"coordinator.http.server._LONGEST_REQUEST_SECONDS": 2.0}
    with running_service({"log.level": "debug", **_settings(folder)}, brief) as service:
        yield service


def _port(service: Service) -> int:
    (line,) = (line for line in service.log_lines() if line.get("event") == "metrics")
    place = urlsplit(line["listen"][0])
    assert (place.scheme, place.hostname) == ("https", "127.0.0.1")
    return place.port or 0


def _get(service: Service, ca: Authority, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, body, and the number of the certificate."""
    context = ssl.create_default_context(cafile=str(ca.certificate))
    connection = http.client.HTTPSConnection("127.0.0.1", _port(service), timeout=PATIENCE, context=context)
    try:
        connection.connect()
        shown: Any = connection.sock.getpeercert()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), str(shown["serialNumber"])
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/metrics", "/metrics?x=/healthz"])
@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"Authorization": f"Bearer {_TOKEN}x"},
        {"Authorization": f"Basic {_TOKEN}"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer \xff"},
    ],
    ids=["none", "another", "of another kind", "an empty one", "no ASCII"],
)
def test_without_the_token_no_metrics_are_told(
    service: Service, ca: Authority, path: str, shown: dict[str, str]
) -> None:
    status, body, _ = _get(service, ca, path, **shown)
    assert (status, body) == (401, "expected the token of metrics.token\n")


def test_with_it_they_are_and_health_needs_none(service: Service, ca: Authority) -> None:
    service.wait_for(lambda line: line.get("event") == "listening")
    status, body = 0, ""
    while status != 200:  # 503 before the first look
        status, body, _ = _get(service, ca, "/metrics", Authorization=f"Bearer {_TOKEN}")
        assert status in (200, 503), (status, body)
    assert "coordinator_instances" in body
    assert _get(service, ca, "/healthz")[:2] == (200, "ok\n")
    assert _get(service, ca, "/readyz")[0] in (200, 503)
    assert _TOKEN not in str(service.log_lines())


def test_what_is_no_tls_gets_nothing(service: Service, ca: Authority) -> None:
    for octets in (b"GET /healthz HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01\xff\xff"):
        with socket.create_connection(("127.0.0.1", _port(service)), timeout=PATIENCE) as peer:
            peer.sendall(octets)
            peer.shutdown(socket.SHUT_WR)
            # it may close before it has read all
            with peer.makefile("rb") as answer, suppress(ConnectionResetError):
                assert b"HTTP" not in answer.read()
    assert _get(service, ca, "/healthz")[:2] == (200, "ok\n")


def test_those_who_begin_no_handshake_are_cut_off(service: Service, ca: Authority) -> None:
    silent = [socket.create_connection(("127.0.0.1", _port(service)), timeout=PATIENCE) for _ in range(100)]
    for peer in silent:
        assert peer.recv(1) == b""
        peer.close()
    assert _get(service, ca, "/healthz")[:2] == (200, "ok\n")


def test_a_new_certificate_and_token_are_read_at_a_sighup(ca: Authority, tmp_path: Path) -> None:
    _put(tmp_path, ca.sign("before", alternative=_HOST), "a-token-of-yesterday")
    with running_service(_settings(tmp_path)) as service:
        old, new = ({"Authorization": f"Bearer {each}"} for each in ("a-token-of-yesterday", "the-token-of-today"))
        first = _get(service, ca, "/metrics", **old)
        assert first[0] in (200, 503)
        _put(tmp_path, ca.sign("after", alternative=_HOST), "the-token-of-today")
        os.kill(service.pid, signal.SIGHUP)
        while _get(service, ca, "/metrics", **old)[0] != 401:
            pass
        now = _get(service, ca, "/metrics", **new)
        assert now[0] in (200, 503)
        assert now[2] != first[2]
        # what cannot be used changes nothing
        (tmp_path / "token").write_text("short", "utf-8")
        os.kill(service.pid, signal.SIGHUP)
        error = service.wait_for(lambda line: line.get("event") == "certificates not read again")
        assert "expected 16 or more letters" in error["reason"]
        assert "short" not in error["reason"]
        assert _get(service, ca, "/metrics", **new)[0] in (200, 503)


def test_a_new_token_is_read_on_loopback_too(ca: Authority, tmp_path: Path) -> None:
    """There without TLS, which clients have."""
    _put(tmp_path, ca.sign("clients", alternative=_HOST), "a-token-of-yesterday")

    def asked(service: Service, token: str, path: str = "/metrics") -> int:
        (line,) = (line for line in service.log_lines() if line.get("event") == "metrics")
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(line["listen"][0]).port, timeout=PATIENCE)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        try:
            answer = connection.getresponse()
            assert (answer.headers["WWW-Authenticate"] is None) is (answer.status != 401)
            return answer.status
        finally:
            connection.close()

    with running_service({**_settings(tmp_path), "metrics.listen": "http://127.0.0.1:0"}) as service:
        assert asked(service, "the-token-of-today") == 401
        (tmp_path / "token").write_text("the-token-of-today", "utf-8")
        os.kill(service.pid, signal.SIGHUP)
        service.wait_for(lambda line: line.get("event") == "certificates read again")
        deadline = time.monotonic() + PATIENCE
        while asked(service, "a-token-of-yesterday") != 401:
            assert time.monotonic() < deadline
        assert asked(service, "the-token-of-today") in (200, 503)
        assert asked(service, "the-token-of-today", "/api/v1/addresses") == 200
        assert asked(service, "a-token-of-yesterday", "/api/v1/addresses") == 401


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"LISTEN": "http://0.0.0.0:0"}, "expected https:// and metrics.token, or metrics.anonymous: always"),
        ({"LISTEN": "https://0.0.0.0:0"}, "expected https:// and metrics.token, or metrics.anonymous: always"),
        ({"LISTEN": "http://0.0.0.0:0", "TOKEN": "good"}, "expected https:// and metrics.token"),
        ({"LISTEN": "https://127.0.0.1:0", "TOKEN": "none"}, "metrics.token: .*none: No such file"),
        ({"LISTEN": "http://127.0.0.1:0", "TOKEN": "open"}, r"metrics.token: .*all users may read it \(mode 644\)"),
        (
            {"LISTEN": "http://127.0.0.1:0", "TOKEN": "two"},
            "expected 16 or more letters, digits and -._~\\+/= in a line",
        ),
    ],
)
def test_what_would_let_others_read_is_refused(
    serve: Serve, folder: Path, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    for name, content in (("good", _TOKEN), ("open", "0123456789abcdef"), ("two", "0123456789abcdef\nx")):
        (tmp_path / name).write_text(content, "utf-8")
        (tmp_path / name).chmod(0o644 if name == "open" else 0o600)
    given = {f"COORDINATOR_METRICS__{name}": value for name, value in settings.items()}
    if "TOKEN" in settings:
        given["COORDINATOR_METRICS__TOKEN"] = str(tmp_path / settings["TOKEN"])
    service = serve(
        "--data-dir",
        str(tmp_path / "data"),
        COORDINATOR_TLS__CERTIFICATE=str(folder / "certificate"),
        COORDINATOR_TLS__KEY=str(folder / "key"),
        **given,
    )
    assert service.end(None) == 2
    (reason,) = service.values("cannot start", "reason")
    assert re.search(said, reason), reason


def test_they_are_open_where_that_is_asked_for_by_name() -> None:
    with running_service({"metrics.listen": "http://0.0.0.0:0", "metrics.anonymous": "always"}) as service:
        (line,) = (line for line in service.log_lines() if line.get("event") == "metrics")
        port = urlsplit(line["listen"][0]).port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status in (200, 503)
        connection.close()
