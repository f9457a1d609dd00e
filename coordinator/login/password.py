"""A password is compared with the store's verifier; the answer to a wrong one does not show whether the user exists.

The query to the store, and the time until the answer, are also equal for known and unknown users.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from coordinator.login import verifiers

if TYPE_CHECKING:
    from coordinator.login.users import Users
    from store.users import Account, Verifier


# An exchange runs one SASL mechanism between a client and the service (part 5, section 5.3).
#
# An answer may take time, as the store is queried and a wrong password is delayed. So an exchange gets the client's
# octets and calls back with its answer; until then the client's next octets stay unread.


class Code(IntEnum):
    """The code of a ``sasl-outcome`` (part 5, section 5.3.3.6)."""

    OK = 0
    AUTH = 1
    #: the store does not answer: a retry may succeed
    SYS_TEMP = 4


@dataclass(frozen=True, slots=True)
class Challenge:
    octets: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an exchange. ``data``: the last octets of the mechanism. ``user``: the user of the login, with its id;
    None: the client has no login. ``roles``: those it has besides the store's, by its token.
    """

    code: Code
    data: bytes | None = None
    user: str | None = None
    user_id: str | None = None
    roles: tuple[str, ...] = ()


Reply = Callable[[Challenge | Outcome], None]

REFUSED = Outcome(Code.AUTH)


class Exchange(Protocol):
    def take(self, response: bytes | None) -> None:
        """Handle the client's octets: first the ``initial-response`` (None: it has none), then a response to each
        challenge. Each is answered once.
        """

    def end(self) -> None:
        """Stop answering, as the connection has ended."""


class Anonymous:
    """Accepts any trace information of the client (RFC 4505), and discards it."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def take(self, response: bytes | None) -> None:
        self._reply(Outcome(Code.OK))

    def end(self) -> None:
        pass


log = structlog.get_logger(__name__)

#: The longest delay of a password by wrong ones of the same address for the same user; after that its client has to
#: retry. Otherwise guesses in any number would delay it, and themselves, until the time limit of the open.
LONGEST_WAIT_SECONDS = 10.0

#: Compares a password with a verifier: the outcome if it fits, else None.
Fits = Callable[["Verifier"], Outcome | None]


class Comparison:
    """Compares the passwords of one connection. ``address``: of its host. ``disabled``: called when its user is locked
    out.
    """

    def __init__(self, users: Users, address: str, disabled: Callable[[], None]) -> None:
        self._users = users
        self._address = address
        self._disabled = disabled
        self._verifier: Verifier | None = None
        self._ended = False
        self._in = False
        #: the user that the client wants to log in as; '': such a user cannot exist
        self.user = ""
        self._there = False
        #: seconds of delay by wrong passwords
        self._waited = 0.0

    def end(self) -> None:
        self._ended = True
        self._users.leave(self.user, self._lock_out)

    def _lock_out(self, account: Account | None) -> None:
        """Lock the user out, unless it is still this one and enabled."""
        enabled = account is not None and account.enabled
        if account is not None and enabled and (self._verifier is None or self._verifier.user_id == account.id):
            return
        self._there = False
        if self._in:
            self._disabled()

    def look_up(self, name: str, mechanism: str, then: Callable[[Verifier], None], reply: Reply) -> None:
        """Look up a user: ``then`` gets the verifier, or one that no password fits. ``reply`` gets the outcome if the
        store does not answer.
        """
        try:
            self.user = verifiers.prepared_name(name)
        except verifiers.NotPrepared:
            self.user = ""
        decoy = self._users.decoy(mechanism, self.user or name)

        def found(verifier: Verifier | None) -> None:
            self._verifier = verifier or decoy
            self._there = verifier is not None
            then(self._verifier)

        # before the query: a NOTIFY reports changes that its answer does not include
        self._users.enter(self.user, self._lock_out)
        self._users.look_up(self.user, mechanism, self._unless_ended(found), self._unless_ended(reply))

    def compare(self, fits: Fits, reply: Reply) -> None:
        """Compare when the delay has ended: answer with the outcome of ``fits`` for the verifier, or refuse."""
        if self._ended:
            return
        penalties = self._users.penalties
        wait = penalties.wait(self._address, self.user)
        if wait > 0:
            self._waited += wait
            if self._waited > LONGEST_WAIT_SECONDS:
                reply(Outcome(Code.SYS_TEMP))
                return
            self._users.call_later(wait, lambda: self.compare(fits, reply))
            return
        assert self._verifier is not None
        outcome = fits(self._verifier)
        if outcome is not None and self._there:
            self._in = True
            reply(replace(outcome, user_id=self._verifier.user_id))
            return
        # another name is not logged: it may be a password
        known = self.user if self._there else None
        log.info("login refused", address=self._address, user=known)
        self._users.failures.count(self._address, known)
        refuse = self._unless_ended(reply)
        self._users.call_later(penalties.failed(self._address, self.user), lambda: refuse(REFUSED))

    def _unless_ended(self, call: Callable[..., None]) -> Callable[..., None]:
        def called(*arguments: object) -> None:
            if not self._ended:
                call(*arguments)

        return called


class Plain:
    """Receives the password itself (RFC 4616): offered if TLS encrypts it, or if the settings say so."""

    def __init__(self, comparison: Comparison, reply: Reply) -> None:
        self._comparison = comparison
        self._reply = reply

    def end(self) -> None:
        self._comparison.end()

    def take(self, response: bytes | None) -> None:
        if response is None:
            self._reply(Challenge(b""))
            return
        try:
            as_whom, name, password = response.decode().split("\0")
        except ValueError:  # not UTF-8, or not three parts
            self._reply(REFUSED)
            return
        if not name or not password or as_whom not in ("", name):  # to act as another is not possible
            self._reply(REFUSED)
            return
        with suppress(verifiers.NotPrepared):  # then it is compared unchanged, for the same time: no user has it
            password = verifiers.prepared_password(password)

        def fits(verifier: Verifier) -> Outcome | None:
            if not verifiers.fits(password, verifiers.OF_PLAIN, verifier):
                return None
            return Outcome(Code.OK, user=self._comparison.user)

        def compare(_: Verifier) -> None:
            self._comparison.compare(fits, self._reply)

        self._comparison.look_up(name, verifiers.OF_PLAIN, compare, self._reply)


# SCRAM-SHA-256 and SCRAM-SHA-512, the server's side (RFC 5802, RFC 7677): the password is never sent, and the server
# proves that it knows the user, too. Channel binding is not offered.

_NONCE_OCTETS = 18
#: the most characters of a client's nonce, so that the challenge is a SASL frame of at most 512 octets (5.3.1)
_LONGEST_NONCE = 256
#: gs2-header, authzid, name, nonce; the client may support channel binding (y), but not use it (p=), and an
#: extension before the name (m=) must not be ignored
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
    """Runs a SCRAM exchange. ``comparison`` looks up the users; ``reply`` is called with each answer."""

    def __init__(self, mechanism: str, comparison: Comparison, reply: Reply) -> None:
        self._mechanism = mechanism
        self._comparison = comparison
        self._reply = reply
        self._first: _First | None = None
        self._server_first = ""
        self._nonce = ""

    def end(self) -> None:
        self._comparison.end()

    def take(self, response: bytes | None) -> None:
        if response is None:
            self._reply(Challenge(b""))
        elif self._first is None:
            self._begin(response)
        else:
            self._finish(response, self._first)

    def _begin(self, response: bytes) -> None:
        first = _read_first(response)
        if first is None:
            self._reply(REFUSED)
            return
        self._first = first
        self._comparison.look_up(first.name, self._mechanism, self._challenge, self._reply)

    def _challenge(self, verifier: Verifier) -> None:
        assert self._first is not None
        self._nonce = self._first.nonce + base64.b64encode(secrets.token_bytes(_NONCE_OCTETS)).decode()
        salt = base64.b64encode(verifier.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        self._reply(Challenge(self._server_first.encode()))

    def _finish(self, response: bytes, first: _First) -> None:
        found = _FINAL.fullmatch(response.decode("utf-8", "replace"))
        if found is None:
            self._reply(REFUSED)
            return
        without_proof, binding, nonce, proof_text = found.groups()
        proof = _decoded(proof_text)
        if proof is None or _decoded(binding) != first.gs2_header.encode() or nonce != self._nonce:
            self._reply(REFUSED)
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

        self._comparison.compare(fits, self._reply)


def _read_first(response: bytes) -> _First | None:
    """Decode a ``client-first-message``; None: it is invalid."""
    try:
        found = _FIRST.fullmatch(response.decode())
    except UnicodeDecodeError:
        return None
    if found is None:
        return None
    gs2_header, authzid, bare, escaped, nonce = found.groups()
    name, as_whom = unescaped(escaped), unescaped(authzid or escaped)
    if name is None or as_whom != name or len(nonce) > _LONGEST_NONCE:  # to act as another is not possible
        return None
    return _First(gs2_header, bare, name, nonce)


def unescaped(text: str) -> str | None:
    """Return a name without its escapes (RFC 5801, section 4); None: it has one that does not exist."""
    if any(found[0] == "=" for found in _ESCAPED.finditer(text)):
        return None
    return text.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
