"""A client behind TLS 1.2 that asks, record after record, to negotiate again (RFC 5246, section 7.4.1.1), and reads no
answer.
"""

from __future__ import annotations

import hmac
import ssl
import struct
from pathlib import Path

from tests.wire.records import HANDSHAKE, VERSION, sealed, secrets_of, shaken

_CIPHER = "ECDHE-ECDSA-AES128-GCM-SHA256"
#: of a hello, the header alone: enough to be refused
_HELLO = b"\x01\x00\x00\x00"


class Renegotiating:
    """Its handshake is done."""

    def __init__(self, port: int, context: ssl.SSLContext, keys: Path) -> None:
        """``keys``: a file that is not there yet."""
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHER)
        context.options |= ssl.OP_NO_TICKET
        self.socket, came = shaken(port, context, keys)
        server_random = came[11:43]  # behind the headers of the record and the message, and the version
        client_random, master = secrets_of(keys, "CLIENT_RANDOM")
        block = _expanded(master, b"key expansion" + server_random + client_random, 40)
        self._key, self._salt = block[:16], block[32:36]
        self._records = 1  # the first was the end of the handshake

    def hello(self) -> bytes:
        """The next record that asks."""
        number = struct.pack(">Q", self._records)
        self._records += 1
        beside = number + struct.pack(">BHH", HANDSHAKE, VERSION, len(_HELLO))
        body = number + sealed(self._key, self._salt + number, beside, _HELLO)
        return struct.pack(">BHH", HANDSHAKE, VERSION, len(body)) + body


def _expanded(secret: bytes, seed: bytes, size: int) -> bytes:
    """RFC 5246, section 5."""
    octets, state = b"", seed
    while len(octets) < size:
        state = hmac.digest(secret, state, "sha256")
        octets += hmac.digest(secret, state + seed, "sha256")
    return octets[:size]
