"""A sole connection claims to be the only one of its user's container, and proves that it is alive (rule P15).

The extension is AMQP Enforcing Connection Uniqueness 1.0. Detection is *weak*: connections without a claim do not
count. Of two claims, the policy of the first decides.
"""

from __future__ import annotations

import socket
import struct
import termios
import time
from contextlib import suppress
from fcntl import ioctl
from typing import TYPE_CHECKING

from proton import symbol, uint

from coordinator.errors import Condition, Refusal
from links import container, engine
from links.close_reason import CloseReason
from store.codec.encoding import DecodeError, decode, pairs, skip

if TYPE_CHECKING:
    from links.connection import Connection

_REFUSE_CONNECTION, _CLOSE_EXISTING = 0, 1
_WEAK = 1
#: the constructors of a uint (part 1, section 1.6.4)
_UINT = (0x43, 0x52, 0x70)
_ENFORCEMENT_POLICY = symbol("sole-connection-enforcement-policy")
_DETECTION_POLICY = symbol("sole-connection-detection-policy")

#: Seconds after which a host that does not answer counts as gone: time for three retransmissions.
_ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.02
_EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
#: offsets in Linux's tcp_info: unacknowledged packets, milliseconds since the last acknowledgement
_UNACKED, _SINCE_ACK = 24, 56
_TCP_INFO_ROOM = 104
#: the resolution of tcp_info's times
_TICK_SECONDS = 0.01


def policy(connection: engine.Pointer) -> int | None:
    """Return the enforcement policy in the peer's open; None if it does not claim to be the only connection.

    :raises Refusal: the extension has no such policy.
    """
    desired = engine.symbols(
        engine.connection_remote_desired_capabilities(connection), "the desired capabilities of the open"
    )
    if container.SOLE_CONNECTION not in desired:
        return None
    properties = engine.encoded(engine.connection_remote_properties(connection))
    try:
        asked = dict(pairs(properties, 0)).get(_ENFORCEMENT_POLICY) if properties else None
    except DecodeError as error:
        raise Refusal(Condition.DECODE_ERROR, f"the properties of the open: {error}") from None
    if asked is None:
        return _REFUSE_CONNECTION
    at = skip(asked, 0)
    found, _ = decode(asked, at)
    if asked[at] not in _UINT or found not in (_REFUSE_CONNECTION, _CLOSE_EXISTING):
        raise Refusal(
            Condition.INVALID_FIELD,
            f"{_ENFORCEMENT_POLICY} {found!r}: 0 (refuse-connection) or 1 (close-existing) as uint was expected",
        )
    return _CLOSE_EXISTING if found else _REFUSE_CONNECTION


class Sole:
    """Claims the container for ``connection``, whose open waits for the answer to the claim."""

    def __init__(self, connection: Connection, asked: int) -> None:
        self._connection = connection
        self._policy = asked
        self._probing = False
        self._claim = connection.service.sole_connections.claim(
            self, connection.number, connection.user_id, connection.container, close_existing=asked == _CLOSE_EXISTING
        )

    def properties(self) -> dict[object, object]:
        """Return the properties of our open frame: the policies of this connection."""
        return {_ENFORCEMENT_POLICY: uint(self._policy), _DETECTION_POLICY: uint(_WEAK)}

    def answered(self, refusal: Refusal | None) -> None:
        if refusal is None:
            self._connection.admit()
        else:
            self._connection.refuse_open(CloseReason.SOLE_CONNECTION, refusal, field="container-id")

    def release(self) -> None:
        self._claim.release()

    def called(self) -> None:
        connection = self._connection
        if self._policy == _CLOSE_EXISTING:
            connection.force_close(
                CloseReason.SOLE_CONNECTION,
                Condition.RESOURCE_LOCKED,
                "another connection of the container was opened; this one asked for close-existing",
                {symbol("sole-connection-enforcement"): True},
            )
        elif not self._probing:
            self._probing = True
            self._probe()

    def _probe(self) -> None:
        """Close the connection if the peer's host no longer answers: after a network failure, it would keep its own
        client from connecting again.
        """
        connection = self._connection
        with suppress(OSError):
            # only if no part of a frame waits to be written, and a whole one fits
            if not connection.output.writing and not _waiting(connection.socket):
                connection.socket.send(_EMPTY_FRAME)
        self._check(time.monotonic())

    def _check(self, since: float) -> None:
        connection = self._connection
        if not connection.open:
            return
        passed = time.monotonic() - since
        if _answers(connection.socket, passed):
            self._probing = False
            self._claim.renew()
        elif passed < _ANSWER_SECONDS:
            connection.service.loop.call_later(_LOOK_SECONDS, lambda: self._check(since))
        else:
            connection.close(CloseReason.HOST_GONE)


def _waiting(sock: socket.socket) -> int:
    """Return the octets written that the peer's host has not acknowledged."""
    octets = ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return int(struct.unpack("i", octets)[0])


def _answers(sock: socket.socket, seconds: float) -> bool:
    """Whether the peer's host has acknowledged all octets, or some in the last ``seconds``."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return True  # on the same machine
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_ROOM)
    except OSError:
        return False
    (unacked,) = struct.unpack_from("I", info, _UNACKED)
    (since_ack,) = struct.unpack_from("I", info, _SINCE_ACK)
    return bool(unacked == 0 or since_ack / 1000 < seconds - _TICK_SECONDS)
