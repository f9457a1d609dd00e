"""What clients say in the SASL layer, whole or not, in its place or not."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc import jwk, jws

from tests.fuzz.grammar import Grammar
from tests.wire.frames import SaslInit, SaslMechanisms, SaslOutcome, SaslResponse

#: The issuer's, the same in each run, as its signatures are.
_KEY = jwk.OKPKey.import_key(Ed25519PrivateKey.from_private_bytes(bytes(32)), {"kid": "fuzz"})
KEYS = json.dumps({"keys": [_KEY.as_dict(private=False)]})
ISSUER, AUDIENCE = "fuzz", "fuzz"
_CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "fuzz", "exp": 4_102_444_800}
_REGISTRY = jws.JWSRegistry(algorithms=["Ed25519"], strict_check_header=False)


def _token(*, header: dict[str, Any] | None = None, **more: Any) -> bytes:
    """A right one, but for what is given."""
    head = {"alg": "Ed25519", "kid": "fuzz", **(header or {})}
    return jws.serialize_compact(head, json.dumps({**_CLAIMS, **more}), _KEY, registry=_REGISTRY).encode()


_TOKENS = (
    _token(), _token(exp=1), _token(exp=float("inf")), _token(exp=10**400), _token(exp="1"), _token(nbf=-1e300),
    _token(aud=[]), _token(aud=["fuzz", 1]), _token(sub=[]), _token(sub="\ud800"), _token(sub="x" * 9000),
    _token(roles=["a\0", "\ud800", 1, {}]), _token(roles="x " * 4000), _token(header={"kid": "other"}),
    _token(header={"crit": ["b64"], "b64": False}), b"a.b.c", b"..", b"e30.e30.", b"W10.W10.W10", b"x" * 16_000,
    b"eyJhbGciOiJub25lIn0.e30.", b"eyJhbGciOlsxXX0.e30.AA", b"W1tb" * 3000 + b".e30.AA", b".".join([b"a"] * 5),
)  # fmt: skip
_BEARERS = (
    b"n,,\x01auth=Bearer %s\x01\x01",
    b"n,a=fuzz,\x01host=h\x01auth=bearer %s\x01\x01",
    b"user=fuzz\x01auth=Bearer %s\x01\x01",
)
_MECHANISMS = (
    "ANONYMOUS", "PLAIN", "EXTERNAL", "SCRAM-SHA-256", "SCRAM-SHA-512", "SCRAM-SHA-256-PLUS", "", "x" * 300,
    "OAUTHBEARER", "XOAUTH2",
)  # fmt: skip
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
    if random.random() < 0.3:
        octets = bytearray(random.choice(_BEARERS) % random.choice(_TOKENS))
    else:
        octets = bytearray(random.choice(_LOGINS))
    if octets and random.random() < 0.3:
        octets[random.randrange(len(octets))] = random.randrange(256)
    return bytes(octets) if random.random() < 0.8 else bytes(octets[: random.randrange(len(octets) + 1)])
