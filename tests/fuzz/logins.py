"""What clients say in the SASL layer, whole or not, in its place or not."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fuzz.grammar import Grammar
from tests.wire.frames import SaslInit, SaslMechanisms, SaslOutcome, SaslResponse

_MECHANISMS = ("ANONYMOUS", "PLAIN", "EXTERNAL", "SCRAM-SHA-256", "SCRAM-SHA-512", "SCRAM-SHA-256-PLUS", "", "x" * 300)
_LOGINS = (
    b"\0u\0p", b"u\0u\0p", b"\0\0p", b"\0u\0", b"\0u\0p\0", b"\0" + b"u" * 300 + b"\0p", b"\0u\0" + b"p" * 300,
    b"n,,n=u,r=abc", b"y,,n=u=2C=3D,r=abc", b"n,a=u,n=u,r=abc", b"p=tls-unique,,n=u,r=abc", b"n,,n=u,r=" + b"r" * 300,
    b"n,,n=\xc3\xa4\xff,r=abc", b"n,,m=x,n=u,r=abc", b"n,,n=u,r=abc,x=y", b"c=biws,r=abc,p=QUJD", b"c=biws,r=abc", b"",
)  # fmt: skip


def login(random: Random, grammar: Grammar) -> Any:
    """A frame's body."""
    kind = random.choice((SaslInit, SaslInit, SaslInit, SaslResponse, SaslResponse, SaslMechanisms, SaslOutcome))
    given: dict[str, Any] = {}
    if kind is SaslInit:
        given["mechanism"] = random.choice(_MECHANISMS)
    if kind in (SaslInit, SaslResponse) and random.random() < 0.7:
        given["initial_response" if kind is SaslInit else "response"] = _message(random)
    return grammar.record(kind, **given)


def _message(random: Random) -> bytes:
    octets = bytearray(random.choice(_LOGINS))
    if octets and random.random() < 0.3:
        octets[random.randrange(len(octets))] = random.randrange(256)
    return bytes(octets) if random.random() < 0.8 else bytes(octets[: random.randrange(len(octets) + 1)])
