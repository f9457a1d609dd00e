"""The client's certificate says its user (RFC 4422, appendix A): TLS has verified it against ``tls.client_ca``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.login import prepared
from coordinator.login.exchange import REFUSED, Code, Outcome

if TYPE_CHECKING:
    from coordinator.login.exchange import Say
    from coordinator.login.users import Users

#: Kinds of a subject's alternative name that can be a user's.
_ALTERNATIVES = ("email", "DNS", "URI")


def user_of(certificate: Mapping[str, Any]) -> str | None:
    """The common name (CN) of the subject, or, where it has none, its one alternative name. ``certificate``: as
    :meth:`ssl.SSLObject.getpeercert` has it. None: there is none, or more than one.
    """
    found = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    found = found or [value for kind, value in certificate.get("subjectAltName", ()) if kind in _ALTERNATIVES]
    try:
        return prepared.name(found[0]) if len(found) == 1 else None
    except prepared.NotPrepared:
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
