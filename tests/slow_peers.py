"""Peers that stop at some stage and stay, by the thousand: each a socket of this process and the octets that it sends.

None waits for an answer, as AMQP lets a client send everything before it reads anything (part 2, section 2.4.2), but
for the credit to post.
"""

from __future__ import annotations

import resource
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path

from tests.fix_service import PATIENCE
from tests.wire import websocket
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SASL,
    SASL_HEADER,
    SENDER,
    Attach,
    Begin,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
    frame,
)

_WINDOW = 1 << 20
_HALF = 20_000
#: in place of it each peer has one of its own: links of one container steal each other
_CONTAINER = "slow-0000"
#: the mask of a WebSocket behind which octets are what they were
_SEEN = bytes(4)
_OPEN = AMQP_HEADER + frame(Open(container_id=_CONTAINER))
_SESSION = frame(Begin(next_outgoing_id=0, incoming_window=_WINDOW, outgoing_window=_WINDOW))
_ATTACH = frame(
    Attach(name="s", handle=0, role=SENDER, source=Source(), target=Target(address="slow"), initial_delivery_count=0)
)
_POSTER = _OPEN + _SESSION + _ATTACH
#: how the credit comes: a flow's descriptor
_CREDIT = b"\x00\x53\x13"
_POST = Transfer(handle=0, delivery_id=0, delivery_tag=b"0", message_format=0, more=True)
_PAYLOAD = bytes(2 * _HALF)


def _consumer(address: str, mode: str) -> bytes:
    source = Source(address=address, distribution_mode=mode)
    link = Attach(name="r", handle=0, role=RECEIVER, source=source, target=Target())
    credit = Flow(
        next_incoming_id=0, incoming_window=_WINDOW, next_outgoing_id=0, outgoing_window=_WINDOW,
        handle=0, delivery_count=0, link_credit=1000,
    )  # fmt: skip
    return _OPEN + _SESSION + frame(link) + frame(credit)


HALF_A_MESSAGE = "half a message"


def stages(full: str) -> dict[str, bytes]:
    """What a peer has said when it stops. ``full``: an address with messages, for those that read nothing, and for
    those that settle nothing.
    """
    init = frame(SaslInit(mechanism="SCRAM-SHA-256", initial_response=b"n,,n=alice,r=slow"), kind=SASL)
    transfer = frame(_POST, payload=_PAYLOAD)
    return {
        "nothing": b"",
        "half a header": AMQP_HEADER[:4],
        "the header of SASL": SASL_HEADER,
        "half a frame of SASL": SASL_HEADER + init[:-9],
        "SASL without its last message": SASL_HEADER + init,
        "no open": AMQP_HEADER,
        "half an open": _OPEN[:-3],
        "an open": _OPEN,
        "half a frame": _POSTER + transfer[:_HALF],
        HALF_A_MESSAGE: _POSTER,
        "reads nothing": _consumer(full, "copy"),
        "settles nothing": _consumer(full, "move"),
    }


def before_tls(authority: Path) -> dict[str, bytes]:
    """The same for TLS: before the service has answered."""
    going = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(authority))
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), going, server_hostname="127.0.0.1").do_handshake()
    hello = going.read()
    return {"nothing": b"", "half a hello": hello[: len(hello) // 2], "a hello": hello}


def within_websockets(full: str) -> dict[str, bytes]:
    """The same over WebSockets, and before it and between it what is theirs alone."""
    asked = websocket.request()
    hidden = websocket.frame(websocket.BINARY, AMQP_HEADER)
    there = {
        f"{stage}, in a message": asked + websocket.frame(websocket.BINARY, octets, mask=_SEEN)
        for stage, octets in stages(full).items()
        if octets and stage != HALF_A_MESSAGE
    }
    return {
        "nothing": b"",
        "half a request": asked[:-3],
        "a request": asked,
        "a request of nearly 8 KiB": asked[:-2] + b"A: " + b"b" * (8000 - len(asked)),
        "half a frame of a WebSocket": asked + hidden[:9],
        "the begin of a frame of 1 GiB": asked + b"\x82\xff" + (1 << 30).to_bytes(8, "big") + hidden[2:],
        "a message without an end": asked + websocket.frame(websocket.BINARY, AMQP_HEADER, last=False),
        "a text": asked + websocket.frame(websocket.TEXT, b"AMQP"),
        "pings": asked + websocket.frame(websocket.PING, bytes(125)) * 100,
        "a close": asked + websocket.frame(websocket.CLOSE),
        **there,
    }


HALF_A_HANDSHAKE = "half a handshake"


def within_tls(full: str) -> dict[str, bytes]:
    """The same behind TLS; the first are silent before its last message is whole."""
    there = {stage: octets for stage, octets in stages(full).items() if stage != HALF_A_MESSAGE}
    return {HALF_A_HANDSHAKE: b"", **there}


def _shake_hands(sock: socket.socket, context: ssl.SSLContext, stage: str, octets: bytes) -> None:
    """In order, and then say ``octets``; or the half of what is last."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(coming, going, server_hostname="127.0.0.1")
    sock.settimeout(PATIENCE)
    with suppress(ConnectionError, ssl.SSLError):  # the connection's time is up
        while True:
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            sock.sendall(going.read())
            coming.write(sock.recv(1 << 16))
        if octets:
            tls.write(octets)
        last = going.read()
        sock.sendall(last[: len(last) // 2] if stage == HALF_A_HANDSHAKE else last)
    sock.setblocking(False)


def _post(sock: socket.socket) -> None:
    """The first frame of a message, when there is credit for it, or the connection's time is up."""
    sock.settimeout(PATIENCE)
    seen = b""
    with suppress(ConnectionError):
        while _CREDIT not in seen and (octets := sock.recv(1 << 16)):
            seen += octets
        sock.sendall(frame(_POST, payload=_PAYLOAD))
    sock.setblocking(False)


class SlowPeers:
    """``sockets``: by stage."""

    def __init__(self) -> None:
        self.sockets: dict[str, list[socket.socket]] = {}

    def connect(self, port: int, said: Mapping[str, bytes], count: int, context: ssl.SSLContext | None = None) -> None:
        """So many more, over all stages alike; behind TLS, where there is a ``context``."""
        for number, (stage, same) in enumerate(islice(cycle(said.items()), count)):
            octets = same.replace(_CONTAINER.encode(), b"slow-%04d" % number)
            sock = socket.socket()
            self.sockets.setdefault(stage, []).append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port))
            if context is not None:
                _shake_hands(sock, context, stage, octets)
                continue
            sock.setblocking(False)
            with suppress(ConnectionError):  # its time may be up already
                assert sock.send(octets) == len(octets)
        for sock in self.sockets.get(HALF_A_MESSAGE, ()):
            _post(sock)

    def close(self) -> None:
        for sockets in self.sockets.values():
            for sock in sockets:
                sock.close()


@contextmanager
def slow_peers() -> Iterator[SlowPeers]:
    """Closed in the end. The usual soft limit of descriptors is too low for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    peers = SlowPeers()
    try:
        yield peers
    finally:
        peers.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
