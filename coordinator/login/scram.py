"""SCRAM-SHA-256 and SCRAM-SHA-512, the server's side (RFC 5802, RFC 7677): the password never crosses the wire, and the
server shows that it knows the user, too. Channel binding is not offered.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from typing import TYPE_CHECKING, NamedTuple

from coordinator.login import verifiers
from coordinator.login.exchange import REFUSED, Challenge, Code, Outcome

if TYPE_CHECKING:
    from coordinator.login.exchange import Say
    from coordinator.login.password import Comparison
    from store.users import Verifier

_NONCE_OCTETS = 18
#: of a client's nonce: with it, the challenge is a SASL frame of 512 octets at most (part 5, section 5.3.1)
_LONGEST_NONCE = 256
#: gs2-header, authzid, name, nonce; the client may support channel binding (y), but not use it (p=), and what comes
#: before the name (m=) must not be ignored
_FIRST = re.compile(r"([ny],(?:a=([^,]*))?,)(n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?)", re.DOTALL)
_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,(?!p=)[A-Za-z]=[^,]*)*),p=([A-Za-z0-9+/=]+)")
#: the two characters that are escaped in a name
_ESCAPED = re.compile(r"=(2C|3D)|=")


class _First(NamedTuple):
    gs2_header: str
    bare: str
    name: str
    nonce: str


class Scram:
    """``comparison`` knows the users; ``say`` is given each answer."""

    def __init__(self, mechanism: str, comparison: Comparison, say: Say) -> None:
        self._mechanism = mechanism
        self._comparison = comparison
        self._say = say
        self._first: _First | None = None
        self._server_first = ""
        self._nonce = ""

    def end(self) -> None:
        self._comparison.end()

    def take(self, response: bytes | None) -> None:
        if response is None:
            self._say(Challenge(b""))
        elif self._first is None:
            self._begin(response)
        else:
            self._finish(response, self._first)

    def _begin(self, response: bytes) -> None:
        first = _read_first(response)
        if first is None:
            self._say(REFUSED)
            return
        self._first = first
        self._comparison.look_up(first.name, self._mechanism, self._challenge, self._say)

    def _challenge(self, verifier: Verifier) -> None:
        assert self._first is not None
        self._nonce = self._first.nonce + base64.b64encode(secrets.token_bytes(_NONCE_OCTETS)).decode()
        salt = base64.b64encode(verifier.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        self._say(Challenge(self._server_first.encode()))

    def _finish(self, response: bytes, first: _First) -> None:
        found = _FINAL.fullmatch(response.decode("utf-8", "replace"))
        if found is None:
            self._say(REFUSED)
            return
        without_proof, binding, nonce, proof_text = found.groups()
        proof = _decoded(proof_text)
        if proof is None or _decoded(binding) != first.gs2_header.encode() or nonce != self._nonce:
            self._say(REFUSED)
            return
        message = f"{first.bare},{self._server_first},{without_proof}".encode()

        def fits(verifier: Verifier) -> Outcome | None:
            signature = verifiers.mac(self._mechanism, verifier.stored_key, message)
            if len(proof) != len(signature):
                return None
            key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
            if not hmac.compare_digest(verifiers.digest(self._mechanism, key), verifier.stored_key):
                return None
            shown = base64.b64encode(verifiers.mac(self._mechanism, verifier.server_key, message))
            return Outcome(Code.OK, b"v=" + shown, self._comparison.user)

        self._comparison.compare(fits, self._say)


def _read_first(response: bytes) -> _First | None:
    """None: it is no ``client-first-message`` that can be taken."""
    try:
        found = _FIRST.fullmatch(response.decode())
    except UnicodeDecodeError:
        return None
    if found is None:
        return None
    gs2_header, authzid, bare, escaped, nonce = found.groups()
    name, as_whom = _unescaped(escaped), _unescaped(authzid or escaped)
    if name is None or as_whom != name or len(nonce) > _LONGEST_NONCE:  # to act as another is not possible
        return None
    return _First(gs2_header, bare, name, nonce)


def _unescaped(text: str) -> str | None:
    if any(found[0] == "=" for found in _ESCAPED.finditer(text)):
        return None
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
