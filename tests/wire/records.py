"""Records of TLS that Python's ``ssl`` cannot be told to send, made with the keys that it writes to a file.

Its socket takes little of what is not read.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import ssl
from pathlib import Path
from typing import Any

from tests.wire.peer import PATIENCE

HANDSHAKE, APPLICATION_DATA, VERSION = 22, 23, 0x0303
TAG_OCTETS = 16
_GET_TAG = 0x10


def shaken(port: int, context: ssl.SSLContext, keys: Path) -> tuple[socket.socket, bytes]:
    """A socket whose handshake is done, and what came meanwhile. ``keys``: a file that is not there yet."""
    context.keylog_filename = str(keys)
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(coming, going, server_hostname="127.0.0.1")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.settimeout(PATIENCE)
    sock.connect(("127.0.0.1", port))
    came = b""
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(going.read())
            octets = sock.recv(1 << 16)
            came += octets
            coming.write(octets)
    sock.sendall(going.read())
    return sock, came


def secrets_of(keys: Path, kind: str) -> list[bytes]:
    """What the line of that kind says."""
    line = next(line for line in keys.read_text("ascii").splitlines() if line.startswith(f"{kind} "))
    return [bytes.fromhex(word) for word in line.split()[1:]]


_crypto = ctypes.CDLL(ctypes.util.find_library("crypto"))
_crypto.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
_CIPHERS = {16: _crypto.EVP_aes_128_gcm, 32: _crypto.EVP_aes_256_gcm}
for _each in _CIPHERS.values():
    _each.restype = ctypes.c_void_p


def sealed(key: bytes, nonce: bytes, beside: bytes, octets: bytes) -> bytes:
    """AES in GCM: ``octets`` encrypted, and the tag, which is over ``beside``, too."""
    context = ctypes.c_void_p(_crypto.EVP_CIPHER_CTX_new())
    size, made, tag = ctypes.c_int(), *(ctypes.create_string_buffer(length) for length in (len(octets), TAG_OCTETS))
    steps: list[Any] = [
        _crypto.EVP_EncryptInit_ex(context, ctypes.c_void_p(_CIPHERS[len(key)]()), None, key, nonce),
        _crypto.EVP_EncryptUpdate(context, None, ctypes.byref(size), beside, len(beside)),
        _crypto.EVP_EncryptUpdate(context, made, ctypes.byref(size), octets, len(octets)),
        _crypto.EVP_EncryptFinal_ex(context, None, ctypes.byref(size)),
        _crypto.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, TAG_OCTETS, tag),
    ]
    _crypto.EVP_CIPHER_CTX_free(context)
    assert steps == [1] * len(steps)
    return made.raw + tag.raw
