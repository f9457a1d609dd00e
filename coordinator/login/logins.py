"""A login runs the SASL mechanism that the client has chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from socket import socket
from typing import TYPE_CHECKING, Any

from coordinator.login import verifiers
from coordinator.login.password import REFUSED, Anonymous, Code, Comparison, Exchange, Outcome, Plain, Reply, Scram

if TYPE_CHECKING:
    from coordinator.login.users import Users
    from coordinator.settings import LoginSettings
    from store.users import Account


# EXTERNAL: the client's certificate names its user (RFC 4422, appendix A); TLS has verified it by ``tls.client_ca``.

#: Kinds of a subject's alternative name that can name a user.
_ALTERNATIVES = ("email", "DNS", "URI")


def user_of(certificate: Mapping[str, Any]) -> str | None:
    """Return the common name (CN) of the subject, or if it has none, its only alternative name; None: it has no name,
    or more than one. ``certificate``: from :meth:`ssl.SSLObject.getpeercert`.
    """
    found = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    found = found or [value for kind, value in certificate.get("subjectAltName", ()) if kind in _ALTERNATIVES]
    try:
        return verifiers.prepared_name(found[0]) if len(found) == 1 else None
    except verifiers.NotPrepared:
        return None


class External:
    """Logs a client in by its certificate. ``address``: of its host. ``disabled``: called when the user is locked
    out.
    """

    def __init__(
        self,
        users: Users,
        address: str,
        certificate: Mapping[str, Any],
        reply: Reply,
        disabled: Callable[[], None],
    ) -> None:
        self._users = users
        self._address = address
        self._user = user_of(certificate)
        self._reply = reply
        self._disabled = disabled
        self._ended = False
        self._may = True
        self._id: str | None = None
        self._in = False

    def end(self) -> None:
        self._ended = True
        if self._user is not None:
            self._users.leave(self._user, self._lock_out)

    def _lock_out(self, account: Account | None) -> None:
        if account is not None and account.enabled and self._id in (None, account.id):
            return
        self._may = False
        if self._in:
            self._disabled()

    def take(self, response: bytes | None) -> None:
        if self._user is None or (response or b"") not in (b"", self._user.encode()):
            self._refuse()
            return
        self._users.enter(self._user, self._lock_out)
        self._users.look_up_account(self._user, self._found, self._found_none)

    def _found(self, account: Account | None) -> None:
        if self._ended:
            return
        self._id = account.id if account is not None and account.enabled else None
        self._in = self._id is not None and self._may
        if self._in:
            self._reply(Outcome(Code.OK, user=self._user, user_id=self._id))
        else:
            self._refuse()

    def _refuse(self) -> None:
        """Refuse the login; the name in the genuine certificate may be recorded."""
        self._users.failures.count(self._address, self._user)
        self._reply(REFUSED)

    def _found_none(self, outcome: Outcome) -> None:
        if not self._ended:
            self._reply(outcome)


# The SASL mechanisms that a listener offers.

#: Without a login; where it is offered, a client may also omit the SASL layer.
ANONYMOUS = "ANONYMOUS"
PLAIN = "PLAIN"
#: By the certificate that the client has sent.
EXTERNAL = "EXTERNAL"
#: By a JSON Web Token.
OAUTHBEARER = "OAUTHBEARER"
XOAUTH2 = "XOAUTH2"


def offered(login: LoginSettings, *, loopback: bool, tls: bool, tokens: bool = False) -> tuple[str, ...]:
    """Return the offered mechanisms, the best first, without ``EXTERNAL``, which needs a client's certificate.
    ``loopback``: only this machine can connect. ``tokens``: there is an issuer, whose tokens are sent as passwords are.
    """
    found = [*verifiers.HASHES]
    if tls or login.plain == "always":
        found += [OAUTHBEARER, XOAUTH2, PLAIN] if tokens else [PLAIN]
    if login.anonymous == "always" or (login.anonymous == "loopback" and loopback):
        found.append(ANONYMOUS)
    return tuple(found)


def begin(
    users: Users,
    mechanism: str,
    address: str,
    certificate: Mapping[str, Any],
    reply: Reply,
    disabled: Callable[[], None],
    by_token: Callable[[str, Reply], Exchange],
) -> Exchange:
    """Begin the exchange of an offered mechanism. ``address``: of the client's host. ``certificate``: the client's,
    verified, or empty. ``disabled``: called when its user is locked out. ``by_token`` begins those of a token.
    """
    if mechanism in (OAUTHBEARER, XOAUTH2):
        return by_token(mechanism, reply)
    if mechanism == EXTERNAL:
        return External(users, address, certificate, reply, disabled)
    if mechanism == ANONYMOUS:
        return Anonymous(reply)
    comparison = Comparison(users, address, disabled)
    if mechanism == PLAIN:
        return Plain(comparison, reply)
    return Scram(mechanism, comparison, reply)


# The origin of a client, by which connections and failures are counted: its host, or the host's IPv6 network.


def origin_of(host: str) -> str:
    """Return the host; of IPv6 its network of 64 bits, all of whose addresses one host may have."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))


def peer_of(sock: socket) -> str:
    """Return the host and port of the other end, for the log."""
    try:
        name = sock.getpeername()
    except OSError:
        return "gone"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


def origin_of_peer(peer: str) -> str:
    """Return the origin of a client named by :func:`peer_of`."""
    return origin_of(peer.rpartition(":")[0] or peer)
