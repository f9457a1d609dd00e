"""TLS by the standard library's client and by openssl (rule S2; part 5, section 5.2)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from store import users
from store.database import connected
from store.embedded.running import running_url
from tests.fix_certificates import NONSENSE, Authority, authority, key_of
from tests.fix_compiled import both_rules
from tests.fix_service import Service, running_service
from tests.fix_users import PASSWORD, add_users
from tests.wire.frames import AMQP_HEADER
from tests.wire.peer import PATIENCE, Ended, Peer
from tests.wire.queues import goes_through, reads_late
from tests.wire.sasl import Login, ScramClient, plain

_names = count()
_HOST = "IP:127.0.0.1"


@pytest.fixture(scope="module")
def server(ca: Authority) -> Path:
    return ca.sign("server", alternative=_HOST)


@pytest.fixture(scope="module")
def service(rules: None, ca: Authority, server: Path) -> Iterator[Service]:
    settings = {"tls.certificate": str(server), "tls.key": str(key_of(server)), "tls.client_ca": str(ca.certificate)}
    with running_service(settings) as service:
        add_users(service, "alice")
        yield service


def _client(ca: Authority, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca.certificate))
    if certificate is not None:
        context.load_cert_chain(certificate, key_of(certificate))
    return context


#: A connection behind TLS.
Dial = Callable[..., Peer]


@pytest.fixture
def dial(service: Service, ca: Authority) -> Iterator[Dial]:
    peers: list[Peer] = []

    def connect(certificate: Path | None = None, context: ssl.SSLContext | None = None) -> Peer:
        peer = Peer(service.port)
        peers.append(peer)
        peer.behind_tls(context or _client(ca, certificate))
        return peer

    yield connect
    for peer in peers:
        peer.close_socket()
    assert not [line for line in service.log_lines() if line.get("event") in ("internal error", "worker ended")]


@pytest.fixture
def address() -> str:
    return f"tls-{next(_names)}"


# -- octets


@both_rules
@pytest.mark.rule("S2", "P2")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [1, 5_000_000])
def test_messages_go_through(dial: Dial, ca: Authority, address: str, version: ssl.TLSVersion, size: int) -> None:
    context = _client(ca)
    context.minimum_version = context.maximum_version = version
    peer = dial(context=context)
    peer.open()
    goes_through(peer.begin(), address, size)
    assert peer.close().error is None


@pytest.mark.rule("S2", "P14")
def test_a_peer_that_reads_late_gets_all(dial: Dial, address: str) -> None:
    """What its socket does not take waits, and goes on when there is room."""
    peer = dial()
    peer.open()
    reads_late(peer.begin(), address, dial)


class Octets:
    """A client whose records a test cuts: TLS in memory, on a socket of its own."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._coming, self._going, server_hostname="127.0.0.1")

    def send(self, size: int, more: bytes = b"") -> None:
        octets = self._going.read() + more
        for start in range(0, len(octets), size):
            self.socket.sendall(octets[start : start + size])

    def step(self, do: Callable[[], object], size: int) -> object:
        """``do`` until it no longer waits for the service; what it writes goes out in pieces."""
        while True:
            try:
                return do()
            except ssl.SSLWantReadError:
                self.send(size)
                octets = self.socket.recv(size)
                assert octets
                self._coming.write(octets)
            finally:
                self.send(size)


@pytest.mark.rule("S2", "P14")
def test_octet_by_octet(service: Service, ca: Authority) -> None:
    client = Octets(service.port, _client(ca))
    client.step(client.tls.do_handshake, 1)
    client.tls.write(AMQP_HEADER)
    client.send(1)
    assert client.step(lambda: client.tls.read(8), 1) == AMQP_HEADER
    client.socket.close()


@pytest.mark.rule("S2", "S6", "P14")
@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(AMQP_HEADER, id="no TLS"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\xff\xff" + b"x" * 70_000, id="a record too large"),
        pytest.param(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", id="no hello"),
        pytest.param(bytes(100), id="zeros"),
    ],
)
def test_what_is_no_tls_ends(dial: Dial, service: Service, octets: bytes) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as plain_one:
        plain_one.sendall(octets)
        seen = b""
        while more := plain_one.recv(4096):
            seen += more
    assert AMQP_HEADER not in seen
    dial().open()


@pytest.mark.rule("S2", "S6")
def test_nonsense_after_the_handshake_ends(dial: Dial, service: Service) -> None:
    peer = dial()
    peer.open()
    raw = socket.socket(fileno=os.dup(peer.socket.fileno()))
    raw.sendall(NONSENSE)
    with pytest.raises((Ended, ssl.SSLError)):
        _read_on(peer)
    raw.close()
    dial().open()


@pytest.mark.rule("S2", "S6")
def test_nonsense_behind_the_first_octets_ends(dial: Dial, service: Service, ca: Authority) -> None:
    """Read with them: TLS is over before they are looked at, and says no more whose certificate it was shown."""
    client = Octets(service.port, _client(ca))
    client.step(client.tls.do_handshake, 1 << 16)
    client.tls.write(AMQP_HEADER)
    client.send(1 << 16, NONSENSE)
    with contextlib.suppress(ConnectionResetError):
        while client.socket.recv(1 << 16):
            pass
    client.socket.close()
    dial().open()


def _read_on(peer: Peer) -> None:
    while True:
        peer.read()


@pytest.mark.rule("S2")
def test_the_end_is_said_as_tls_does(dial: Dial) -> None:
    """A stream that was cut off is told from one that ended (RFC 8446, section 6.1)."""
    peer = dial()
    peer.send_octets(b"AMQP\x00\x09\x09\x09")
    peer.socket.suppress_ragged_eofs = False  # type: ignore[attr-defined]
    assert peer.read_header() == AMQP_HEADER
    assert peer.socket.recv(1) == b""


def _openssl(service: Service, ca: Authority, *flags: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{service.port}", "-CAfile", str(ca.certificate), *flags,
         "-verify_return_error", "-verify_ip", "127.0.0.1"],
        input=typed, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


@pytest.mark.rule("S2")
@pytest.mark.parametrize(("flag", "there"), [("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)])
def test_openssl_sees_the_versions(service: Service, ca: Authority, flag: str, there: bool) -> None:
    done = _openssl(service, ca, flag, "-cipher", "ALL:@SECLEVEL=0")
    assert ("Verify return code: 0 (ok)" in done.stdout and "Cipher is (NONE)" not in done.stdout) == there


@pytest.mark.rule("S2")
@pytest.mark.parametrize(
    ("cipher", "there"),
    [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", True),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", True),
        ("ECDHE-ECDSA-AES128-SHA256", False),
        ("ECDHE-ECDSA-AES256-SHA384", False),
    ],
)
def test_ciphers_of_1_2_prove_what_was_sent(service: Service, ca: Authority, cipher: str, there: bool) -> None:
    done = _openssl(service, ca, "-tls1_2", "-cipher", cipher)
    assert (f"Cipher is {cipher}" in done.stdout) == there


@pytest.mark.rule("S2")
def test_nothing_is_negotiated_again(service: Service, ca: Authority) -> None:
    """As seen by a client; the option that asks for it has a test in test_certificates."""
    done = _openssl(service, ca, "-tls1_2", typed="R\n")
    assert "RENEGOTIATING" in done.stdout + done.stderr
    assert "no renegotiation" in done.stdout + done.stderr


@pytest.mark.rule("S2")
@pytest.mark.parametrize("offered", ["amqp", "http/1.1,h2"])
def test_a_client_that_offers_protocols_gets_no_answer_to_that(service: Service, ca: Authority, offered: str) -> None:
    """AMQP has no id among those of ALPN: the client goes on as without it (RFC 7301, section 3.2)."""
    done = _openssl(service, ca, "-alpn", offered)
    assert "No ALPN negotiated" in done.stdout
    assert "Verify return code: 0 (ok)" in done.stdout


# -- who comes in


@pytest.mark.rule("S1", "S2")
def test_passwords_go_behind_tls(dial: Dial) -> None:
    login = Login(dial())
    assert login.mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS")
    login.init("PLAIN", plain("alice", PASSWORD))
    assert login.outcome().code == 0
    assert Login(dial()).scram(ScramClient(user="alice", password=PASSWORD)).code == 0


@pytest.mark.rule("S1", "S2")
@pytest.mark.parametrize(
    ("subject", "alternative"),
    [("/O=x/CN=NAME", ""), ("/O=x", "DNS:NAME"), ("/O=x", "email:NAME"), ("/O=x/CN=NAME", "DNS:other")],
)
def test_a_certificate_says_the_user(
    dial: Dial, service: Service, ca: Authority, subject: str, alternative: str
) -> None:
    name = f"client{next(_names)}.example"
    name = name if "email" not in alternative else f"x@{name}"
    _add(service, name)
    certificate = ca.sign(name, subject.replace("NAME", name), alternative=alternative.replace("NAME", name))
    for response in (b"", None, name.encode()):
        login = Login(dial(certificate))
        assert login.mechanisms[0] == "EXTERNAL"
        login.init("EXTERNAL", response)
        assert login.outcome().code == 0
        login.goes_on()
    inside = login
    as_another = Login(dial(certificate))
    as_another.init("EXTERNAL", b"alice")
    as_another.refused()
    service.cli("user", "set", name, "--disable")
    assert inside.peer.closed().condition == "amqp:unauthorized-access"
    disabled = Login(dial(certificate))
    disabled.init("EXTERNAL", b"")
    disabled.refused()


def _add(service: Service, name: str) -> None:
    with connected(running_url(service.data_dir)) as store:
        users.add(store, name, {})


@pytest.mark.rule("S1", "S2")
@pytest.mark.parametrize(
    ("subject", "alternative"),
    [("/CN=not.there", ""), ("/O=x", ""), ("/CN=alice/CN=bob", ""), ("/O=x", "DNS:alice,DNS:bob")],
)
def test_a_certificate_of_no_user(dial: Dial, ca: Authority, subject: str, alternative: str) -> None:
    login = Login(dial(ca.sign(f"none{next(_names)}", subject, alternative=alternative)))
    login.init("EXTERNAL", b"")
    login.refused()


@pytest.mark.rule("S1", "S2")
def test_without_a_certificate_none_logs_in_by_one(dial: Dial) -> None:
    login = Login(dial())
    login.init("EXTERNAL", b"")
    login.refused()


@pytest.mark.rule("S2")
@pytest.mark.parametrize("whose", ["another authority's", "expired"])
def test_a_certificate_that_is_not_trusted(dial: Dial, ca: Authority, tmp_path: Path, whose: str) -> None:
    signer = authority(tmp_path / "other") if whose != "expired" else ca
    certificate = signer.sign(f"alice{next(_names)}", "/CN=alice", days="expired" if whose == "expired" else "2")
    with pytest.raises((Ended, ssl.SSLError, OSError)):
        dial(certificate).open()


@pytest.mark.rule("S2")
def test_certificates_may_be_required(ca: Authority, server: Path) -> None:
    settings = {"tls.certificate": str(server), "tls.key": str(key_of(server)), "tls.client_ca": str(ca.certificate)}
    with running_service({**settings, "tls.client_certificates": "required"}) as service:
        shown = Peer(service.port)
        shown.behind_tls(_client(ca, ca.sign("shown", "/CN=alice")))
        shown.open()
        with pytest.raises((Ended, ssl.SSLError, OSError)):
            _come_in(Peer(service.port), _client(ca))


def _come_in(peer: Peer, context: ssl.SSLContext) -> None:
    peer.behind_tls(context)
    peer.open()


# -- certificates that change


@pytest.mark.rule("S2")
def test_certificates_are_read_again_and_no_connection_ends(ca: Authority, tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def put(made: Path) -> None:
        shutil.copy(made, certificate)
        shutil.copy(key_of(made), key)

    def shown(peer: Peer) -> str:
        return str(peer.behind_tls(_client(ca))["serialNumber"])

    put(ca.sign("first", alternative=_HOST))
    with running_service({"tls.certificate": str(certificate), "tls.key": str(key), "workers": "2"}) as service:
        old = Peer(service.port)
        first = shown(old)
        old.open()
        put(ca.sign("second", alternative=_HOST))
        os.kill(service.pid, signal.SIGHUP)
        read = service.wait_for(lambda line: line.get("event") == "certificates read again")
        assert read["files"] == [str(certificate), str(key)]
        seen = {first}
        while len(seen) == 1:  # each worker reads them when it is told
            seen.add(shown(Peer(service.port)))
        certificate.write_text("nonsense")
        os.kill(service.pid, signal.SIGHUP)
        error = service.wait_for(lambda line: line.get("event") == "certificates not read again")
        assert "expected PEM" in error["reason"]
        assert shown(Peer(service.port)) in seen
        assert old.begin().control().declare()
        assert not [line for line in service.log_lines() if line.get("event") == "worker ended"]
