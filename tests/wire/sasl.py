"""The client's side of SASL: what the mechanisms send, right or wrong, with a SCRAM of its own (RFC 5802)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

from tests.wire.frames import (
    SASL,
    SASL_HEADER,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from tests.wire.peer import Peer

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def plain(user: str, password: str, authzid: str = "") -> bytes:
    return "\0".join((authzid, user, password)).encode()


def escaped(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


@dataclass(kw_only=True)
class ScramClient:
    user: str
    password: str
    mechanism: str = "SCRAM-SHA-256"
    gs2: str = "n,,"
    nonce: str = "fyko+d2lbbFgONRv9qkxdawL"
    #: of the server, once it is known that it has the verifier
    signature: bytes = b""

    @property
    def bare(self) -> str:
        return f"n={escaped(self.user)},r={self.nonce}"

    def first(self) -> bytes:
        return (self.gs2 + self.bare).encode()

    def final(self, challenge: bytes, *, nonce: str | None = None, binding: str | None = None) -> bytes:
        """``nonce`` and ``binding``: in place of the right ones."""
        said = dict(part.split("=", 1) for part in challenge.decode().split(","))
        name = HASHES[self.mechanism]
        salt, iterations = base64.b64decode(said["s"]), int(said["i"])
        salted = hashlib.pbkdf2_hmac(name, self.password.encode(), salt, iterations)
        key = hmac.digest(salted, b"Client Key", name)
        channel = base64.b64encode((self.gs2 if binding is None else binding).encode()).decode()
        without_proof = f"c={channel},r={said['r'] if nonce is None else nonce}"
        message = f"{self.bare},{challenge.decode()},{without_proof}".encode()
        stored = hashlib.new(name, key).digest()
        proof = bytes(a ^ b for a, b in zip(key, hmac.digest(stored, message, name), strict=True))
        self.signature = hmac.digest(hmac.digest(salted, b"Server Key", name), message, name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def server_final(self) -> bytes:
        """What the server must say last."""
        return b"v=" + base64.b64encode(self.signature)


class Login:
    """The SASL layer of one connection, step by step."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        peer.send_octets(SASL_HEADER)
        assert peer.read_header() == SASL_HEADER
        found = peer.read().performative
        assert isinstance(found, SaslMechanisms)
        offered: Any = found.sasl_server_mechanisms
        self.mechanisms = (offered,) if isinstance(offered, str) else tuple(offered)

    def init(self, mechanism: str, response: bytes | None = None) -> None:
        self.peer.send(SaslInit(mechanism=mechanism, initial_response=response), kind=SASL)

    def respond(self, response: bytes) -> None:
        self.peer.send(SaslResponse(response=response), kind=SASL)

    def challenge(self) -> bytes:
        found = self.peer.read().performative
        assert isinstance(found, SaslChallenge), found
        return bytes(found.challenge)

    def outcome(self) -> SaslOutcome:
        found = self.peer.read().performative
        assert isinstance(found, SaslOutcome), found
        return found

    def refused(self) -> None:
        """The outcome ``auth`` with nothing beside it, and then the end."""
        assert self.outcome() == SaslOutcome(code=1)
        assert self.peer.rest() == []

    def scram(self, client: ScramClient) -> SaslOutcome:
        """The whole exchange."""
        self.init(client.mechanism, client.first())
        self.respond(client.final(self.challenge()))
        return self.outcome()

    def goes_on(self) -> None:
        """Behind the SASL layer the connection works."""
        self.peer.open()
