"""A conversation of the test client as a capture file that a dissector reads: classic pcap, raw IPv4, one TCP stream.

The file is written from the octets that :attr:`Peer.record` kept, so that no right to capture is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from tests.wire.peer import Octets

#: The port of the service in the file, which dissectors know as AMQP's.
PORT = 5672
_CLIENT = 50_000
_ADDRESS = bytes((127, 0, 0, 1))
#: octets of one segment: what an IPv4 packet holds, with room for the headers
_MOST = 60_000
_RAW_IPV4 = 228
_SYN, _ACK, _PUSH_ACK = 0x02, 0x10, 0x18


def write(path: Path, conversations: Iterable[list[Octets]]) -> None:
    """Each conversation is a stream of its own, from a client port of its own."""
    with path.open("wb") as stream:
        stream.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, _RAW_IPV4))
        for number, conversation in enumerate(conversations):
            for packet in _packets(_CLIENT + number, conversation):
                stream.write(packet)


def _packets(client: int, conversation: list[Octets]) -> Iterable[bytes]:
    #: the next sequence number of each side; by whether the client sends
    next_number = {True: 1, False: 1}
    start = conversation[0].moment if conversation else 0.0
    yield _packet(start, client, PORT, 0, 0, _SYN, b"")
    yield _packet(start, PORT, client, 0, 1, _SYN | _ACK, b"")
    yield _packet(start, client, PORT, 1, 1, _ACK, b"")
    for piece in conversation:
        for at in range(0, len(piece.octets), _MOST):
            octets = piece.octets[at : at + _MOST]
            source, target = (client, PORT) if piece.sent else (PORT, client)
            number, heard = next_number[piece.sent], next_number[not piece.sent]
            yield _packet(piece.moment, source, target, number, heard, _PUSH_ACK, octets)
            next_number[piece.sent] = (number + len(octets)) & 0xFFFFFFFF


def _packet(moment: float, source: int, target: int, number: int, heard: int, flags: int, octets: bytes) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", source, target, number, heard, 5 << 4, flags, 65535, 0, 0) + octets
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, _ADDRESS, _ADDRESS)
    size = len(ip) + len(tcp)
    return struct.pack("<IIII", int(moment), int(moment % 1 * 1e6), size, size) + ip + tcp
