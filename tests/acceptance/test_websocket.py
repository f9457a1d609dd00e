"""AMQP over WebSockets, octet for octet (rule S14; RFC 6455; AMQP WebSocket Binding)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from tests.fix_certificates import Authority, key_of
from tests.fix_compiled import BOTH_RULES
from tests.fix_service import Service, running
from tests.fix_websocket import PlainWebSocket, WebSockets
from tests.wire import frames
from tests.wire.frames import AMQP_HEADER, Close, Open
from tests.wire.messages import data
from tests.wire.queues import goes_through, reads_late
from tests.wire.websocket import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONTINUATION,
    KEY,
    PATH,
    PING,
    PONG,
    TEXT,
    Client,
    Message,
    WebSocketPeer,
    connected,
    frame,
    request,
)

pytestmark = BOTH_RULES

_names = count()
_PAGES = "https://shop.example"
#: more than the sockets of both sides take
_MUCH = 16 << 20


@pytest.fixture(scope="module")
def service(rules: None, ca: Authority) -> Iterator[Service]:
    certificate = ca.sign("websocket", alternative="IP:127.0.0.1")
    settings = {
        "tls.certificate": str(certificate),
        "tls.key": str(key_of(certificate)),
        "websocket.origins": f"{_PAGES}, http://127.0.0.1:8080",
    }
    with running(lambda folder: WebSockets(folder, settings)) as service:
        yield service


#: An AMQP client whose octets go in messages of a WebSocket, behind TLS or not.
Dial = Callable[..., WebSocketPeer]


@pytest.fixture
def dial(service: Service, ca: Authority) -> Iterator[Dial]:
    peers: list[WebSocketPeer] = []

    def connect(*, tls: bool = False) -> WebSocketPeer:
        peer = WebSocketPeer(service.ports[tls])
        peers.append(peer)
        if tls:
            peer.behind_tls(ssl.create_default_context(cafile=str(ca.certificate)))
        peer.begin_websocket()
        return peer

    yield connect
    for peer in peers:
        peer.close_socket()
    assert not [line for line in service.log_lines() if line.get("event") in ("internal error", "worker ended")]


@pytest.fixture
def raw(service: Service) -> Iterator[socket.socket]:
    sock = connected(service.port)
    yield sock
    sock.close()


@pytest.fixture
def address() -> str:
    return f"websocket-{next(_names)}"


def _greeted(client: Client) -> Client:
    """AMQP is begun in it."""
    client.socket.sendall(frame(BINARY, AMQP_HEADER))
    assert client.read() == Message(BINARY, AMQP_HEADER)
    return client


def _of(sock: socket.socket) -> Callable[[dict[str, Any]], bool]:
    """The lines of the log about this client."""
    whose = "{}:{}".format(*sock.getsockname())
    return lambda line: line.get("peer") == whose


# -- messages


@pytest.mark.rule("S14", "P2")
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("size", [1, 5_000_000])
def test_messages_go_through(dial: Dial, address: str, tls: bool, size: int) -> None:
    peer = dial(tls=tls)
    peer.open()
    goes_through(peer.begin(), address, size)
    peer.send(Close())
    assert peer.wait(Close).error is None
    assert peer.web.read() == Message(CLOSE, (1000).to_bytes(2, "big"))
    assert peer.web.ended()


@pytest.mark.rule("S5", "S14")
@pytest.mark.parametrize("tls", [False, True])
def test_a_peer_that_reads_late_gets_all(dial: Dial, address: str, tls: bool) -> None:
    """What its socket does not take waits, and so does the answer to its last ping."""
    peer = dial(tls=tls)
    peer.open()
    reads_late(peer.begin(), address, dial)


@pytest.mark.rule("S14", "P14")
def test_octet_by_octet(raw: socket.socket) -> None:
    octets = request() + frame(BINARY, AMQP_HEADER)
    for at in range(len(octets)):
        raw.sendall(octets[at : at + 1])
    client = Client(raw, b"")
    assert client.status == 101
    assert client.read() == Message(BINARY, AMQP_HEADER)


@pytest.mark.rule("S14", "P14")
@pytest.mark.parametrize("tls", [False, True])
def test_frames_of_an_octet_at_once(dial: Dial, tls: bool) -> None:
    """More than a read takes: the socket has nothing more, nor TLS, when the last of them are taken."""
    peer = dial(tls=tls)
    octets = AMQP_HEADER + frames.frame(Open(container_id="x" * 1000)) + frames.frame(Close())
    peer.web.socket.sendall(b"".join(frame(BINARY, octets[at : at + 1]) for at in range(len(octets))))
    assert peer.read_header() == AMQP_HEADER
    peer.wait(Open)
    assert peer.wait(Close).error is None


@pytest.mark.rule("S14")
def test_the_answer_to_the_request(raw: socket.socket) -> None:
    """No extension is taken of those that a client offers."""
    client = Client(raw, request(Sec_WebSocket_Extensions="permessage-deflate", Sec_WebSocket_Protocol="mqtt, amqp"))
    status, *lines = client.head.strip().split("\r\n")
    assert status == "HTTP/1.1 101 Switching Protocols"
    assert {line.lower() for line in lines} == {
        "upgrade: websocket",
        "connection: upgrade",
        f"sec-websocket-accept: {ACCEPT}".lower(),
        "sec-websocket-protocol: amqp",
    }


@pytest.mark.rule("S14")
def test_a_message_in_fragments_with_a_ping_between(raw: socket.socket) -> None:
    first, middle, rest = AMQP_HEADER[:3], AMQP_HEADER[3:4], AMQP_HEADER[4:]
    raw.sendall(
        request()
        + frame(BINARY, first, last=False)
        + frame(CONTINUATION, middle, last=False, mask=b"\0\0\0\0")
        + frame(PING, b"still there?")
        + frame(CONTINUATION, b"", last=False)
        + frame(CONTINUATION, rest, mask=b"\xff\0\xff\0")
        + frame(PONG, b"nobody asked")
    )
    client = Client(raw, b"")
    assert {client.read(), client.read()} == {Message(PONG, b"still there?"), Message(BINARY, AMQP_HEADER)}


@pytest.mark.rule("S14", "S2")
def test_the_last_of_many_pings_is_answered(dial: Dial, raw: socket.socket) -> None:
    """Its peer reads none of the answers meanwhile: there are as many as the sockets take, and then one."""
    client = _greeted(Client(raw))
    pings = frame(PING, b"x" * 125) * 1000
    for _ in range(_MUCH // len(pings)):
        raw.sendall(pings)
    raw.sendall(frame(PING, b"last"))
    dial().open()
    answers = 0
    while client.read() != Message(PONG, b"last"):
        answers += 1
    assert answers < _MUCH // 125


# -- frames that are wrong


_WRONG = {
    "no mask": (frame(BINARY, AMQP_HEADER, mask=None), 1002, "unmasked"),
    "a text": (frame(TEXT, b"AMQP"), 1003, "text"),
    "the begin of a long text": (frame(TEXT, b"x" * 70_000)[:100], 1003, "text"),
    "a text that is no UTF-8": (frame(TEXT, b"\xff\xff"), 1007, "utf-8"),
    "a ping in fragments": (frame(PING, b"x", last=False), 1002, "fragment"),
    "a ping of 126 octets": (frame(PING, b"x" * 126), 1002, "125"),
    "a close of one octet": (frame(CLOSE, b"x"), 1002, "1 byte"),
    "a close with a code of nobody": (frame(CLOSE, b"\x03\xed"), 1002, "CLOSE"),
    "an unknown opcode": (frame(3, b"x"), 1002, "opcode"),
    "a reserved bit": (b"\xc2" + frame(BINARY, b"x")[1:], 1002, "Reserved"),
    "a continuation of nothing": (frame(CONTINUATION, b"x"), 1002, "CONTINUATION"),
    "a message within another": (frame(BINARY, b"", last=False) + frame(BINARY, b""), 1002, "CONTINUATION"),
    "a size of 64 bits": (b"\x82\xff" + b"\xff" * 8, 1002, "MSB"),
    "a size in more octets than it needs": (b"\x82\xfe\x00\x08\1\2\3\4", 1002, "sufficed"),
}


@pytest.mark.rule("S14", "P14", "S6")
@pytest.mark.parametrize(("octets", "code", "why"), _WRONG.values(), ids=_WRONG)
def test_wrong_frames_end_their_connection(
    dial: Dial, service: Service, raw: socket.socket, octets: bytes, code: int, why: str
) -> None:
    neighbour = dial()
    neighbour.open()
    client = _greeted(Client(raw))
    raw.sendall(octets)
    closed = client.read()
    assert closed.code == code
    assert why in closed.payload[2:].decode()
    assert client.ended()
    line = service.wait_for(_of(raw))
    assert line["event"] == "connection failed"
    assert line["reason"] == "websocket-failed"
    assert why in line["why"]
    assert neighbour.close().error is None


@pytest.mark.rule("S14")
def test_what_came_before_a_wrong_frame_counts(dial: Dial, address: str) -> None:
    peer = dial()
    peer.open()
    session = peer.begin()
    sender = session.sender(address)
    sender.post(data(b"there"), settled=True)
    peer.web.socket.sendall(frame(TEXT))
    assert peer.web.read().code == 1003
    other = dial()
    other.open()
    assert other.begin().receiver(address, credit=1).take().body == b"there"


@pytest.mark.rule("S14")
@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x03\xe9going away", b"\x0f\xa0"])
def test_a_close_is_answered_with_its_code(raw: socket.socket, payload: bytes) -> None:
    """What comes behind it is not looked at."""
    client = _greeted(Client(raw))
    raw.sendall(frame(CLOSE, payload) + frame(TEXT))
    assert client.read() == Message(CLOSE, payload[:2])
    assert client.ended()


# -- requests


_REFUSED = {
    "another path": (request("/other"), 404, "at /amqp, not at /other"),
    "no sub-protocol": (request(Sec_WebSocket_Protocol=None), 400, "sub-protocol amqp, and the client offers none"),
    "another sub-protocol": (request(Sec_WebSocket_Protocol="mqtt, AMQP"), 400, "the client offers mqtt, AMQP"),
    "no upgrade": (request(Connection=None, Upgrade=None), 400, "Connection: Upgrade"),
    "another upgrade": (request(Upgrade="h2c"), 400, "Upgrade: websocket"),
    "another version": (request(Sec_WebSocket_Version="8"), 426, "Sec-WebSocket-Version"),
    "no key": (request(Sec_WebSocket_Key=None), 400, "Sec-WebSocket-Key"),
    "an empty key": (request(Sec_WebSocket_Key=""), 400, "Sec-WebSocket-Key of 16 octets"),
    "a short key": (request(Sec_WebSocket_Key="AAAA"), 400, "Sec-WebSocket-Key of 16 octets"),
    "a key that is no base64": (request(Sec_WebSocket_Key="not base64!!"), 400, "Sec-WebSocket-Key of 16 octets"),
    "a long key": (request(Sec_WebSocket_Key="A" * 500), 400, "Sec-WebSocket-Key of 16 octets"),
    "HTTP/1.0": (request().replace(b"HTTP/1.1", b"HTTP/1.0"), 400, "by HTTP/1.1"),
    "HTTP/0.9": (request().replace(b"HTTP/1.1", b"HTTP/0.9"), 400, "by HTTP/1.1"),
    "HTTP/2.0": (request().replace(b"HTTP/1.1", b"HTTP/2.0"), 400, "by HTTP/1.1"),
    "no host": (request(Host=None), 400, "Bad HTTP message"),
    "a host that is none": (request(Host="\xff"), 400, "no ASCII"),
    "a sub-protocol that is none": (request(Sec_WebSocket_Protocol="\xff"), 400, "no ASCII"),
    "a body": (request(Content_Length="3") + b"abc", 400, "it has no body"),
    "a body in chunks": (request(Transfer_Encoding="chunked") + b"0\r\n\r\n", 400, "it has no body"),
    "two hosts": (request(Connection="Upgrade\r\nHost: elsewhere"), 400, "Bad HTTP message"),
    "two keys": (request(Connection=f"Upgrade\r\nSec-WebSocket-Key: {KEY}"), 400, "one Sec-WebSocket-Key"),
    "a line that ends by LF": (request(Connection="Upgrade\nA: b"), 400, "line that does not end by CRLF"),
    "an end by LF, and more": (request()[:-4] + b"\n\n" + request(), 400, "line that does not end by CRLF"),
    "a line that is folded": (request(Connection="Upgrade\r\n B: c"), 400, "'Connection: Upgrade'"),
    "POST": (request(method="POST"), 400, "begins with GET"),
    "AMQP's header": (AMQP_HEADER, 400, "begins with GET"),
    "TLS": (b"\x16\x03\x01\x02\x00", 400, "begins with GET"),
    "no HTTP": (b"GET nothing\r\n\r\n", 400, "Bad HTTP message"),
    "more than 8 KiB": (b"GET /amqp HTTP/1.1\r\nA: " + b"x" * 8192, 431, "8192 octets"),
    "another origin": (request(Origin="https://elsewhere.example"), 403, "pages of https://elsewhere.example may not"),
    "a name that leads here": (request(Host="a.example:80", Origin="http://a.example:80"), 403, "websocket.origins"),
    "another port": (request(Host="127.0.0.1:9", Origin="http://127.0.0.1:8"), 403, "websocket.origins"),
    "no URL": (request(Host="[", Origin="http://["), 403, "websocket.origins"),
    "a file": (request(Origin="null"), 403, "pages of null may not"),
}


@pytest.mark.rule("S14", "S6", "S7")
@pytest.mark.parametrize(("octets", "status", "why"), _REFUSED.values(), ids=_REFUSED)
def test_requests_that_are_refused(
    dial: Dial, service: Service, raw: socket.socket, octets: bytes, status: int, why: str
) -> None:
    """By a status, and a sentence that says what was expected."""
    client = Client(raw, octets)
    assert client.status == status
    assert why in client.body()
    line = service.wait_for(_of(raw))
    assert line["event"] == "connection failed"
    assert line["reason"] == "websocket-failed"
    assert why in line["why"]
    dial().open()


@pytest.mark.rule("S14", "S1")
@pytest.mark.parametrize("origin", [_PAGES, "http://127.0.0.1:8080", "HTTPS://Shop.Example"])
def test_pages_of_origins_that_the_settings_name_come_in(raw: socket.socket, origin: str) -> None:
    assert Client(raw, request(Origin=origin)).status == 101


@pytest.mark.rule("S14", "S1")
@pytest.mark.parametrize("host", ["127.0.0.1:5673", "[::1]:5673", "localhost"])
def test_its_own_address_is_no_other_origin(raw: socket.socket, host: str) -> None:
    """Netty sends it, and Qpid JMS with it."""
    assert Client(raw, request(Host=host, Origin=f"http://{host}")).status == 101


@pytest.mark.rule("S14", "S1")
def test_its_own_name_is_no_other_origin_where_a_login_is_asked_for(rules: None) -> None:
    with running(lambda folder: PlainWebSocket(folder, {"login.anonymous": "never"})) as service:
        for origin, status in (("https://a.example", 101), ("https://b.example", 403)):
            with connected(service.port) as sock:
                assert Client(sock, request(Host="a.example", Origin=origin)).status == status


@pytest.mark.rule("S14")
def test_a_query_behind_the_path_says_nothing(raw: socket.socket) -> None:
    assert Client(raw, request(f"{PATH}?x=1")).status == 101


# -- what takes too long


@pytest.mark.rule("S5", "S14", "P4")
def test_peers_that_stop_give_way(rules: None) -> None:
    """As those that send no header of AMQP: half a request, no frame, half a frame, pings alone."""
    stages = (b"", request()[:-3], request(), request() + frame(BINARY, AMQP_HEADER)[:9], request() + frame(PING))
    settings = {"bounds.opening_seconds": "1"}
    with running(lambda folder: PlainWebSocket(folder, settings)) as service:
        peers = [connected(service.port) for _ in stages]
        for peer, octets in zip(peers, stages, strict=True):
            peer.sendall(octets)
        for peer in peers:
            with suppress(ConnectionResetError):
                while peer.recv(4096):
                    pass
            assert service.wait_for(_of(peer))["reason"] == "not-opened"
            peer.close()


@pytest.mark.rule("S14", "F5")
def test_a_service_that_stops_ends_its_websockets(rules: None) -> None:
    """Behind AMQP's close, where there was an open; a request that is not whole ends."""
    closed = Message(CLOSE, (1000).to_bytes(2, "big"))
    with running(lambda folder: PlainWebSocket(folder, {})) as service:
        peer = WebSocketPeer(service.port)
        peer.begin_websocket()
        peer.open()
        half, silent, greeted = (connected(service.port) for _ in range(3))
        half.sendall(request()[:-3])
        begun = [peer.web, Client(silent), _greeted(Client(greeted))]
        assert service.stop() == 0
        assert peer.wait(Close).error.condition == "amqp:connection:forced"
        for client in begun:
            assert closed in iter(client.read, None)
            assert client.ended()
        assert half.recv(1) == b""
        for sock in (half, silent, greeted):
            sock.close()
        peer.close_socket()
