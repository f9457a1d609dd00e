"""Peers behind TLS that do not read, or ask for what costs more than it says: they hold up themselves alone (rules S2,
S5).
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fix_certificates import NONSENSE, Authority, key_of
from tests.fix_service import Service, running_service
from tests.wire.frames import Accepted
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.renegotiating import Renegotiating
from tests.wire.updating import Updating

_BODIES = [os.urandom(1_000_000) for _ in range(24)]
#: Many more than the answers to them that the sockets' buffers hold
_HELLOS = 300_000
#: They take the service a second or more.
_UPDATES = 60_000
#: Questions of a neighbour meanwhile, one after the other, at least: with 64 KiB of them in a turn, 14.
_BESIDE = 50


@pytest.fixture(scope="module")
def service(ca: Authority) -> Iterator[Service]:
    certificate = ca.sign("read", alternative="IP:127.0.0.1")
    settings = {"tls.certificate": str(certificate), "tls.key": str(key_of(certificate))}
    with running_service({**settings, "bounds.opening_seconds": "600"}) as service:
        yield service
        assert not [line for line in service.log_lines() if line.get("event") in ("internal error", "worker ended")]


def _client(ca: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca.certificate))


def _dial(service: Service, ca: Authority) -> Peer:
    peer = Peer(service.port)
    peer.behind_tls(_client(ca))
    peer.open()
    return peer


@pytest.mark.rule("S2", "S5")
def test_a_consumer_that_does_not_read_holds_up_none(service: Service, ca: Authority) -> None:
    reader, neighbour = _dial(service, ca), _dial(service, ca)
    session = neighbour.begin()
    sender = session.sender("not-read")
    for body in _BODIES:
        assert sender.outcome(data(body)) == Accepted()
    receiver = reader.begin().receiver("not-read")
    receiver.credit(len(_BODIES))
    for _ in range(20):
        assert session.sender("beside").outcome(data(b"x")) == Accepted()
    assert [delivery.body for delivery in receiver.take_many(len(_BODIES))] == _BODIES


@pytest.mark.rule("S2", "S5")
def test_one_who_asks_to_negotiate_again_and_reads_no_answer_is_closed(
    service: Service, ca: Authority, tmp_path: Path
) -> None:
    neighbour = _dial(service, ca)
    asking = Renegotiating(service.port, _client(ca), tmp_path / "keys")
    with asking.socket, suppress(ConnectionError):
        _ask_on(asking)
        while asking.socket.recv(1 << 16):  # the service may read on for a moment, so that the end is seen here alone
            pass
    said = service.wait_for(lambda line: line.get("event") == "connection failed")
    assert said["why"] == "TLS: it asks for answers, and reads none"
    assert neighbour.begin().sender("beside").outcome(data(b"x")) == Accepted()


def _ask_on(asking: Renegotiating) -> None:
    for _ in range(_HELLOS // 1000):
        asking.socket.sendall(b"".join(asking.hello() for _ in range(1000)))


@pytest.mark.rule("S2", "S5")
@pytest.mark.parametrize("asks", [False, True], ids=["says so", "asks for the same"])
def test_new_keys_record_after_record_hold_up_none(service: Service, ca: Authority, tmp_path: Path, asks: bool) -> None:
    session = _dial(service, ca).begin()
    updating = Updating(service.port, _client(ca), tmp_path / "keys")
    octets = b"".join(updating.update(asks=asks) for _ in range(_UPDATES)) + NONSENSE
    seen, done = len(service.log_lines()), 0
    with updating.socket:
        sending = threading.Thread(target=_send, args=(updating.socket, octets))
        sending.start()
        while not [line for line in service.log_lines()[seen:] if line.get("event") == "connection failed"]:
            session.sync()
            done += 1
        sending.join()
    assert done > _BESIDE


def _send(sock: socket.socket, octets: bytes) -> None:
    with suppress(ConnectionError):
        sock.sendall(octets)
