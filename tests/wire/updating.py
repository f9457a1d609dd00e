"""A client behind TLS 1.3 that says, record after record, that its keys are new ones (RFC 8446, section 4.6.3)."""

from __future__ import annotations

import hmac
import ssl
import struct
from pathlib import Path

from tests.wire.records import APPLICATION_DATA, HANDSHAKE, TAG_OCTETS, VERSION, sealed, secrets_of, shaken

#: of the first suite that both sides name, TLS_AES_256_GCM_SHA384
_HASH, _SECRET_OCTETS, _KEY_OCTETS, _NONCE_OCTETS = "sha384", 48, 32, 12


class Updating:
    """Its handshake is done."""

    def __init__(self, port: int, context: ssl.SSLContext, keys: Path) -> None:
        """``keys``: a file that is not there yet."""
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.socket, _ = shaken(port, context, keys)
        _, self._secret = secrets_of(keys, "CLIENT_TRAFFIC_SECRET_0")
        assert len(self._secret) == _SECRET_OCTETS, "another suite was taken"

    def update(self, *, asks: bool) -> bytes:
        """The next record. ``asks``: that the service do the same."""
        # every record is the first with its keys, so that its number, 0, leaves the nonce as it is
        key, nonce = _expanded(self._secret, "key", _KEY_OCTETS), _expanded(self._secret, "iv", _NONCE_OCTETS)
        self._secret = _expanded(self._secret, "traffic upd", _SECRET_OCTETS)
        octets = struct.pack(">BBHBB", 24, 0, 1, asks, HANDSHAKE)
        beside = struct.pack(">BHH", APPLICATION_DATA, VERSION, len(octets) + TAG_OCTETS)
        return beside + sealed(key, nonce, beside, octets)


def _expanded(secret: bytes, label: str, size: int) -> bytes:
    """RFC 8446, section 7.1; no more than the hash has."""
    name = b"tls13 " + label.encode()
    return hmac.digest(secret, struct.pack(">HB", size, len(name)) + name + b"\0\1", _HASH)[:size]
