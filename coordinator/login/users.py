"""Users of one instance: it looks up their verifiers, and closes the connections of disabled ones (rule S1)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import structlog

from coordinator.login import verifiers
from coordinator.login.password import Code, Outcome
from coordinator.login.penalties import Failures, Penalties
from store import users as questions
from store.errors import StoreError

if TYPE_CHECKING:
    from coordinator.instance import Instance
    from coordinator.login.bearer import TokenLogins
    from store.users import Account, Verifier

log = structlog.get_logger(__name__)

T = TypeVar("T")
#: Called with the outcome of a failed login.
Fail = Callable[[Outcome], None]
#: Called with the user of a name, after a change; None: there is no such user.
Leave = Callable[["Account | None"], None]

#: Seconds that a login waits for the store.
STORE_SECONDS = 5.0
#: Each look-up takes at least this long: finding a verifier takes some hundredths of a millisecond longer than not.
FOUND_SECONDS = 0.01
#: How many queries about users are under way at once. The others wait here, so that the queries of connected clients do
#: not wait for all logins.
MOST_ASKED = 4
#: Seconds before a failed query for enabled users is retried.
CHECK_AGAIN_SECONDS = 5.0


class Users:
    """Looks up users for logins. ``secret``: the store's key, from which verifiers of unknown users are derived.
    ``tokens``: who logs in by a token need not be in the store.
    """

    def __init__(self, instance: Instance, secret: bytes, *, tokens: bool = False) -> None:
        self._instance = instance
        self._secret = secret
        self._asked = 0
        self._numbers = count()
        #: functions that send the waiting queries, by number, in order
        self._line: OrderedDict[int, Callable[[], None]] = OrderedDict()
        #: by user: functions that end its connections, unless it may stay
        self._connected: dict[str, set[Leave]] = {}
        #: whether a retry for all of them is scheduled
        self._checks_again = False
        self.penalties = Penalties()
        #: the logins by token; None: there is no issuer of tokens
        self.by_token: TokenLogins | None = None
        self.failures = Failures(instance, tokens=tokens)

    # -- for the exchanges

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._instance.loop.call_later(seconds, callback)

    def decoy(self, mechanism: str, name: str) -> Verifier:
        return verifiers.decoy(mechanism, name, self._secret)

    def look_up(self, name: str, mechanism: str, found: Callable[[Verifier | None], None], reply: Fail) -> None:
        """Look up a verifier: ``found`` gets it, or None; ``reply`` an outcome if the store does not answer in time."""
        began = time.monotonic()

        def wait(verifier: Verifier | None) -> None:
            self.call_later(max(0.0, began + FOUND_SECONDS - time.monotonic()), partial(found, verifier))

        self._ask(lambda answered: questions.verifier(self._instance.queries, name, mechanism, answered), wait, reply)

    def look_up_account(self, name: str, found: Leave, reply: Fail) -> None:
        """Look up the user of a name, like :meth:`look_up`."""

        def ask(answered: Callable[[dict[str, Account] | StoreError], None]) -> None:
            questions.accounts(self._instance.queries, [name], answered)

        self._ask(ask, lambda users: found(users.get(name)), reply)

    def _ask(
        self, ask: Callable[[Callable[[T | StoreError], None]], None], found: Callable[[T], None], reply: Fail
    ) -> None:
        number = next(self._numbers)
        # emptied by the answer: then the deadline, seconds later, keeps no reference to the connection
        waiting = [reply]

        def begin() -> None:
            self._asked += 1
            ask(answered)

        def answered(answer: T | StoreError) -> None:
            self._asked -= 1
            self._ask_next()
            if waiting:
                waiting.clear()
                if isinstance(answer, StoreError):
                    reply(Outcome(Code.SYS_TEMP))
                else:
                    found(answer)

        self._line[number] = begin
        self._ask_next()
        self.call_later(STORE_SECONDS, partial(self._too_late, number, waiting))

    def _too_late(self, number: int, waiting: list[Fail]) -> None:
        self._line.pop(number, None)
        if waiting:
            log.warning("a client cannot log in: the store does not answer", seconds=STORE_SECONDS)
            waiting.pop()(Outcome(Code.SYS_TEMP))

    def _ask_next(self) -> None:
        while self._line and self._asked < MOST_ASKED:
            _, begin = self._line.popitem(last=False)
            begin()

    # -- users that are disabled, removed or created again while they are connected

    def enter(self, user: str, leave: Leave) -> None:
        self._connected.setdefault(user, set()).add(leave)

    def leave(self, user: str, leave: Leave) -> None:
        connections = self._connected.get(user)
        if connections is not None:
            connections.discard(leave)
            if not connections:
                del self._connected[user]

    def changed(self, user: str) -> None:
        """Check a user that was disabled or removed, and may have been created again."""
        if user in self._connected:
            self._check([user])

    def check_all(self) -> None:
        """Check all connected users, as a NOTIFY may have been lost."""
        if self._connected:
            self._check(list(self._connected))

    def _check_again(self) -> None:
        self._checks_again = False
        self.check_all()

    def _check(self, users: list[str]) -> None:
        def answered(accounts: dict[str, Account] | StoreError) -> None:
            if isinstance(accounts, StoreError):
                log.warning("it is not known which users may stay", reason=str(accounts))
                if not self._checks_again:
                    self._checks_again = True
                    self.call_later(CHECK_AGAIN_SECONDS, self._check_again)
                return
            for user in users:
                for leave in list(self._connected.get(user, ())):
                    leave(accounts.get(user))

        questions.accounts(self._instance.queries, users, answered)
