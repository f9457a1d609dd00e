"""A client is the peer of a connection, with its login and the rights of its user (rules S1, S3)."""

from __future__ import annotations

import socket as sockets
from typing import TYPE_CHECKING, Any

from coordinator.address.permissions import unauthorized
from coordinator.login import logins
from coordinator.login.logins import EXTERNAL, peer_of
from coordinator.login.password import Code, Outcome
from links.tls import TlsSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coordinator.address.permissions import Rights
    from coordinator.login.password import Challenge, Exchange, Reply
    from coordinator.service import Service
    from store.permissions import Verb


class Client:
    """The login and the rights of one connection's peer."""

    __slots__ = (
        "_let_in", "_mechanisms", "login", "peer", "rights", "roles", "service", "socket", "user", "user_id",
    )  # fmt: skip

    def __init__(self, service: Service, sock: sockets.socket, mechanisms: Sequence[str]) -> None:
        """``mechanisms``: the SASL mechanisms that its listener offers (:mod:`coordinator.login.logins`)."""
        self.service = service
        self.socket = sock
        self.peer = peer_of(sock)
        self._mechanisms = mechanisms
        #: called when its rights are known, to complete a successful login
        self._let_in: Callable[[], None] | None = None
        #: the exchange by which the client logs in, or has
        self.login: Exchange | None = None
        #: the name of its user; None: it has no login
        self.user: str | None = None
        #: the user's id in the store: a user created again with the same name has another
        self.user_id: str | None = None
        #: roles of its user besides those that the store has, by the token of its login
        self.roles: tuple[str, ...] = ()
        #: the user's rights; None: they are not known yet
        self.rights: Rights | None = None
        if isinstance(sock, TlsSocket):
            sock.distrusted = lambda why: service.users.failures.count(self._host, None, why)

    @property
    def _host(self) -> str:
        return self.peer.rpartition(":")[0]

    @property
    def _certificate(self) -> Mapping[str, Any]:
        """The client's verified certificate; empty: it has sent none."""
        return self.socket.certificate() if isinstance(self.socket, TlsSocket) else {}

    def _offered(self) -> Sequence[str]:
        return (EXTERNAL, *self._mechanisms) if self._certificate else self._mechanisms

    def _log_in(self, mechanism: str, reply: Reply) -> Exchange:
        def answer(said: Challenge | Outcome) -> None:
            if isinstance(said, Outcome) and said.code is Code.OK:
                self.user, self.user_id, self.roles = said.user, said.user_id, said.roles
                self._let_in = lambda: reply(said)
                self.service.permissions.enter(self)
            else:
                reply(said)

        self.login = logins.begin(
            self.service.users, mechanism, self._host, self._certificate, answer, self._locked_out, self._by_token
        )
        return self.login

    def _by_token(self, mechanism: str, reply: Reply) -> Exchange:
        by_token = self.service.users.by_token
        assert by_token is not None, "the mechanisms of tokens are offered where there is an issuer"
        return by_token.begin(mechanism, self._host, reply, self._locked_out, self._expire)

    def granted(self, rights: Rights) -> None:
        """Set the user's rights (S3), and then complete the login, so that the frames behind it can be checked."""
        self.rights = rights
        let_in, self._let_in = self._let_in, None
        if let_in is not None:
            let_in()

    def _locked_out(self) -> None:
        """Close the connection, as its user was disabled or removed."""
        raise NotImplementedError

    def _expire(self) -> None:
        """Close the connection, as the token of its login has expired."""
        raise NotImplementedError

    def may(self, verb: Verb, name: str) -> bool:
        """Whether the user has the permission."""
        return self.rights is not None and self.rights.may(verb, name)

    def may_ever(self, verb: Verb) -> bool:
        """Whether the user has the permission for any name."""
        return self.rights is not None and self.rights.ever(verb)

    def need(self, verb: Verb, name: str) -> None:
        """Require a permission.

        :raises Refusal: the user does not have it.
        """
        if not self.may(verb, name):
            raise unauthorized(verb, name)
