"""One client's login, by the mechanism that it has chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from socket import socket
from typing import TYPE_CHECKING, Any

from coordinator.login import verifiers
from coordinator.login.password import REFUSED, Anonymous, Code, Comparison, Exchange, Outcome, Plain, Say, Scram

if TYPE_CHECKING:
    from coordinator.login.users import Users
    from coordinator.settings import LoginSettings


# The client's certificate says its user (RFC 4422, appendix A): TLS has verified it against ``tls.client_ca``.

#: Kinds of a subject's alternative name that can be a user's.
_ALTERNATIVES = ("email", "DNS", "URI")


def user_of(certificate: Mapping[str, Any]) -> str | None:
    """The common name (CN) of the subject, or, where it has none, its one alternative name. ``certificate``: as
    :meth:`ssl.SSLObject.getpeercert` has it. None: there is none, or more than one.
    """
    found = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    found = found or [value for kind, value in certificate.get("subjectAltName", ()) if kind in _ALTERNATIVES]
    try:
        return verifiers.prepared_name(found[0]) if len(found) == 1 else None
    except verifiers.NotPrepared:
        return None


class External:
    """``address``: of its host. ``disabled``: called when the user may not be in any more."""

    def __init__(
        self,
        users: Users,
        address: str,
        certificate: Mapping[str, Any],
        say: Say,
        disabled: Callable[[], None],
    ) -> None:
        self._users = users
        self._address = address
        self._user = user_of(certificate)
        self._say = say
        self._disabled = disabled
        self._ended = False
        self._may = True
        self._id: str | None = None
        self._in = False

    def end(self) -> None:
        self._ended = True
        if self._user is not None:
            self._users.leave(self._user, self._lock_out)

    def _lock_out(self, user_id: str | None = None) -> None:
        if user_id is not None and self._id in (None, user_id):
            return
        self._may = False
        if self._in:
            self._disabled()

    def take(self, response: bytes | None) -> None:
        if self._user is None or (response or b"") not in (b"", self._user.encode()):
            self._refuse()
            return
        self._users.enter(self._user, self._lock_out)
        self._users.ask_enabled(self._user, self._found, self._found_none)

    def _found(self, user_id: str | None) -> None:
        if self._ended:
            return
        self._id = user_id
        self._in = user_id is not None and self._may
        if self._in:
            self._say(Outcome(Code.OK, user=self._user, user_id=user_id))
        else:
            self._refuse()

    def _refuse(self) -> None:
        """Its certificate is genuine: the name in it can be told."""
        self._users.failures.count(self._address, self._user)
        self._say(REFUSED)

    def _found_none(self, outcome: Outcome) -> None:
        if not self._ended:
            self._say(outcome)


# Which SASL mechanisms are offered where clients come in.

#: Without a login; where it is offered, a client may leave the SASL layer out, too.
ANONYMOUS = "ANONYMOUS"
PLAIN = "PLAIN"
#: By the certificate that the client has shown.
EXTERNAL = "EXTERNAL"


def offered(login: LoginSettings, *, loopback: bool, tls: bool) -> tuple[str, ...]:
    """The best first, without ``EXTERNAL``, which is for clients that have shown a certificate. ``loopback``: only this
    machine can connect.
    """
    found = [*verifiers.HASHES]
    if tls or login.plain == "always":
        found.append(PLAIN)
    if login.anonymous == "always" or (login.anonymous == "loopback" and loopback):
        found.append(ANONYMOUS)
    return tuple(found)


def begin(
    users: Users,
    mechanism: str,
    address: str,
    certificate: Mapping[str, Any],
    say: Say,
    disabled: Callable[[], None],
) -> Exchange:
    """``mechanism``: one that is offered. ``address``: of the client's host. ``certificate``: the client's,
    verified, or empty. ``disabled``: called when its user may not be in any more.
    """
    if mechanism == EXTERNAL:
        return External(users, address, certificate, say, disabled)
    if mechanism == ANONYMOUS:
        return Anonymous(say)
    comparison = Comparison(users, address, disabled)
    if mechanism == PLAIN:
        return Plain(comparison, say)
    return Scram(mechanism, comparison, say)


# Where a client comes from, as it is counted: by its host, or by what a host may have many of.


def origin_of(host: str) -> str:
    """Of IPv6 the network of 64 bits, all of whose addresses one host may have."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))


def peer_of(sock: socket) -> str:
    """The other end as the log names it: by host and port."""
    try:
        name = sock.getpeername()
    except OSError:
        return "gone"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


def origin_of_peer(peer: str) -> str:
    """Of a client as :func:`peer_of` names it."""
    return origin_of(peer.rpartition(":")[0] or peer)
