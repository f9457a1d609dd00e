"""A password is compared with what the store keeps of it, and a wrong one answered as if its user were not there.

The store is asked, and the time until the answer depends, in the same way whether there is such a user or not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from coordinator.login import prepared, verifiers
from coordinator.login.exchange import REFUSED, Challenge, Code, Outcome

if TYPE_CHECKING:
    from coordinator.login.exchange import Say
    from coordinator.login.users import Users
    from store.users import Verifier

log = structlog.get_logger(__name__)

#: How long a password stands behind wrong ones of the same address for the same user; then its client is told to come
#: again. Guesses in any number would otherwise hold it, and themselves, until the time to open is up.
LONGEST_WAIT_SECONDS = 10.0

#: What a verifier says of a password: the outcome if it fits, else None.
Fits = Callable[["Verifier"], Outcome | None]


class Comparison:
    """Of one connection. ``address``: of its host. ``disabled``: called when its user may not be in any more."""

    def __init__(self, users: Users, address: str, disabled: Callable[[], None]) -> None:
        self._users = users
        self._address = address
        self._disabled = disabled
        self._verifier: Verifier | None = None
        self._ended = False
        self._in = False
        #: as which the client wants to come in; '': there cannot be such a user
        self.user = ""
        self._there = False
        #: behind wrong passwords
        self._waited = 0.0

    def end(self) -> None:
        self._ended = True
        self._users.leave(self.user, self._lock_out)

    def _lock_out(self, user_id: str | None = None) -> None:
        """The user may not log in any more, unless it is the one with this id."""
        if user_id is not None and (self._verifier is None or self._verifier.user_id == user_id):
            return
        self._there = False
        if self._in:
            self._disabled()

    def look_up(self, name: str, mechanism: str, then: Callable[[Verifier], None], say: Say) -> None:
        """``then`` gets the verifier of the user, or one that no password fits. ``say`` gets the outcome where the
        store does not answer.
        """
        try:
            self.user = prepared.name(name)
        except prepared.NotPrepared:
            self.user = ""
        decoy = self._users.decoy(mechanism, self.user or name)

        def found(verifier: Verifier | None) -> None:
            self._verifier = verifier or decoy
            self._there = verifier is not None
            then(self._verifier)

        # before the store is asked: a change that it has not seen comes as a notice
        self._users.enter(self.user, self._lock_out)
        self._users.look_up(self.user, mechanism, self._unless_ended(found), self._unless_ended(say))

    def compare(self, fits: Fits, say: Say) -> None:
        """When it is time, say whether ``fits`` has an outcome for the verifier that was looked up."""
        if self._ended:
            return
        penalties = self._users.penalties
        wait = penalties.wait(self._address, self.user)
        if wait > 0:
            self._waited += wait
            if self._waited > LONGEST_WAIT_SECONDS:
                say(Outcome(Code.SYS_TEMP))
                return
            self._users.call_later(wait, lambda: self.compare(fits, say))
            return
        assert self._verifier is not None
        outcome = fits(self._verifier)
        if outcome is not None and self._there:
            self._in = True
            say(replace(outcome, user_id=self._verifier.user_id))
            return
        # another name is not logged: it may be a password
        known = self.user if self._there else None
        log.info("login refused", address=self._address, user=known)
        self._users.failures.count(self._address, known)
        refuse = self._unless_ended(say)
        self._users.call_later(penalties.failed(self._address, self.user), lambda: refuse(REFUSED))

    def _unless_ended(self, call: Callable[..., None]) -> Callable[..., None]:
        def called(*arguments: object) -> None:
            if not self._ended:
                call(*arguments)

        return called


class Plain:
    """The password itself (RFC 4616): offered where TLS hides it, or where that is asked for by name."""

    def __init__(self, comparison: Comparison, say: Say) -> None:
        self._comparison = comparison
        self._say = say

    def end(self) -> None:
        self._comparison.end()

    def take(self, response: bytes | None) -> None:
        if response is None:
            self._say(Challenge(b""))
            return
        try:
            as_whom, name, password = response.decode().split("\0")
        except ValueError:  # not UTF-8, or not three parts
            self._say(REFUSED)
            return
        if not name or not password or as_whom not in ("", name):  # to act as another is not possible
            self._say(REFUSED)
            return
        with suppress(prepared.NotPrepared):  # then it is compared as it is, for the same time: no user has it
            password = prepared.password(password)

        def fits(verifier: Verifier) -> Outcome | None:
            if not verifiers.fits(password, verifiers.OF_PLAIN, verifier):
                return None
            return Outcome(Code.OK, user=self._comparison.user)

        def compare(_: Verifier) -> None:
            self._comparison.compare(fits, self._say)

        self._comparison.look_up(name, verifiers.OF_PLAIN, compare, self._say)
