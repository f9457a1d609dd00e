"""Which SASL mechanisms are offered where clients come in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.login import verifiers

if TYPE_CHECKING:
    from coordinator.settings import LoginSettings

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
