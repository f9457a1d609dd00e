"""A client behind TLS 1.2 that asks, record after record, to negotiate again (RFC 5246, section 7.4.1.1), and reads no
answer. Python's ``ssl`` cannot ask: the records are made here, with the keys that it writes to a file.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hmac
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

from tests.wire.peer import PATIENCE

_CIPHER = "ECDHE-ECDSA-AES128-GCM-SHA256"
_HANDSHAKE, _VERSION = 22, 0x0303
#: of a hello, the header alone: enough to be refused
_HELLO = b"\x01\x00\x00\x00"
_TAG_OCTETS, _GET_TAG = 16, 0x10


class Renegotiating:
    """Its handshake is done. Its socket takes little of what is not read."""

    def __init__(self, port: int, context: ssl.SSLContext, keys: Path) -> None:
        """``keys``: a file that is not there yet."""
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHER)
        context.options |= ssl.OP_NO_TICKET
        context.keylog_filename = str(keys)
        coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(coming, going, server_hostname="127.0.0.1")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", port))
        came = b""
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(going.read())
                octets = self.socket.recv(1 << 16)
                came += octets
                coming.write(octets)
        server_random = came[11:43]  # behind the headers of the record and the message, and the version
        line = next(line for line in keys.read_text().splitlines() if line.startswith("CLIENT_RANDOM"))
        client_random, master = (bytes.fromhex(word) for word in line.split()[1:])
        block = _expanded(master, b"key expansion" + server_random + client_random, 40)
        self._key, self._salt = block[:16], block[32:36]
        self._records = 1  # the first was the end of the handshake

    def hello(self) -> bytes:
        """The next record that asks."""
        number = struct.pack(">Q", self._records)
        self._records += 1
        beside = number + struct.pack(">BHH", _HANDSHAKE, _VERSION, len(_HELLO))
        body = number + _sealed(self._key, self._salt + number, beside, _HELLO)
        return struct.pack(">BHH", _HANDSHAKE, _VERSION, len(body)) + body


def _expanded(secret: bytes, seed: bytes, size: int) -> bytes:
    """RFC 5246, section 5."""
    octets, state = b"", seed
    while len(octets) < size:
        state = hmac.digest(secret, state, "sha256")
        octets += hmac.digest(secret, state + seed, "sha256")
    return octets[:size]


_crypto = ctypes.CDLL(ctypes.util.find_library("crypto"))
_crypto.EVP_CIPHER_CTX_new.restype = _crypto.EVP_aes_128_gcm.restype = ctypes.c_void_p


def _sealed(key: bytes, nonce: bytes, beside: bytes, octets: bytes) -> bytes:
    """AES-128-GCM: ``octets`` encrypted, and the tag, which is over ``beside``, too."""
    context = ctypes.c_void_p(_crypto.EVP_CIPHER_CTX_new())
    size, sealed, tag = ctypes.c_int(), *(ctypes.create_string_buffer(length) for length in (len(octets), _TAG_OCTETS))
    steps: list[Any] = [
        _crypto.EVP_EncryptInit_ex(context, ctypes.c_void_p(_crypto.EVP_aes_128_gcm()), None, key, nonce),
        _crypto.EVP_EncryptUpdate(context, None, ctypes.byref(size), beside, len(beside)),
        _crypto.EVP_EncryptUpdate(context, sealed, ctypes.byref(size), octets, len(octets)),
        _crypto.EVP_EncryptFinal_ex(context, None, ctypes.byref(size)),
        _crypto.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, _TAG_OCTETS, tag),
    ]
    _crypto.EVP_CIPHER_CTX_free(context)
    assert steps == [1] * len(steps)
    return sealed.raw + tag.raw
