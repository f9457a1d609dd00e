"""Users as one instance knows them: what passwords are compared with, and the connections of each (rule S1)."""

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
    from store.users import Verifier

log = structlog.get_logger(__name__)

T = TypeVar("T")
#: Takes the outcome of a login that fails.
Fail = Callable[[Outcome], None]
#: Takes the id of the user that may be in by now; None: none of that name may.
Leave = Callable[[str | None], None]

#: How long a client that logs in waits for the store.
STORE_SECONDS = 5.0
#: No verifier is told of sooner: to read one takes some hundredths of a millisecond longer than to find none.
FOUND_SECONDS = 0.01
#: Questions about users that the store has at once. The others stand in line here, so that the questions of clients
#: that are in do not wait behind all who log in.
MOST_ASKED = 4
#: How long a question which users may stay waits before it is asked again, as the store could not answer.
LOOK_AGAIN_SECONDS = 5.0


class Users:
    """``secret``: the store's, from which the verifiers are made of users that are not there."""

    def __init__(self, instance: Instance, secret: bytes) -> None:
        self._instance = instance
        self._secret = secret
        self._asked = 0
        self._numbers = count()
        #: by number, what asks the questions in line, the first to come first
        self._line: OrderedDict[int, Callable[[], None]] = OrderedDict()
        #: by user: what ends its connections, unless it has the id that is given
        self._connected: dict[str, set[Leave]] = {}
        #: whether all of them are asked for in a while
        self._looks_again = False
        self.penalties = Penalties()
        self.failures = Failures(instance)

    # -- for the exchanges

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._instance.loop.call_later(seconds, callback)

    def decoy(self, mechanism: str, name: str) -> Verifier:
        return verifiers.decoy(mechanism, name, self._secret)

    def look_up(self, name: str, mechanism: str, found: Callable[[Verifier | None], None], say: Fail) -> None:
        """``found`` gets the verifier, or None; ``say`` the outcome where the store does not answer in time."""
        began = time.monotonic()

        def wait(verifier: Verifier | None) -> None:
            self.call_later(max(0.0, began + FOUND_SECONDS - time.monotonic()), partial(found, verifier))

        self._ask(lambda answered: questions.verifier(self._instance.queries, name, mechanism, answered), wait, say)

    def ask_enabled(self, name: str, found: Leave, say: Fail) -> None:
        """As :meth:`look_up`: the id of the user if it may log in."""

        def ask(answered: Callable[[dict[str, str] | StoreError], None]) -> None:
            questions.enabled(self._instance.queries, [name], answered)

        self._ask(ask, lambda ids: found(ids.get(name)), say)

    def _ask(
        self, ask: Callable[[Callable[[T | StoreError], None]], None], found: Callable[[T], None], say: Fail
    ) -> None:
        number = next(self._numbers)
        # emptied by the answer: the deadline, which comes seconds later, then keeps nothing of the connection
        waiting = [say]

        def begin() -> None:
            self._asked += 1
            ask(answered)

        def answered(answer: T | StoreError) -> None:
            self._asked -= 1
            self._ask_next()
            if waiting:
                waiting.clear()
                if isinstance(answer, StoreError):
                    say(Outcome(Code.SYS_TEMP))
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

    # -- users that are disabled, removed or made anew while they are in

    def enter(self, user: str, leave: Leave) -> None:
        self._connected.setdefault(user, set()).add(leave)

    def leave(self, user: str, leave: Leave) -> None:
        connections = self._connected.get(user)
        if connections is not None:
            connections.discard(leave)
            if not connections:
                del self._connected[user]

    def changed(self, user: str) -> None:
        """The user was disabled or removed, perhaps to be there again by now."""
        if user in self._connected:
            self._look([user])

    def look(self) -> None:
        """Notices may have been missed."""
        if self._connected:
            self._look(list(self._connected))

    def _look_again(self) -> None:
        self._looks_again = False
        self.look()

    def _look(self, users: list[str]) -> None:
        def answered(enabled: dict[str, str] | StoreError) -> None:
            if isinstance(enabled, StoreError):
                log.warning("it is not known which users may stay", reason=str(enabled))
                if not self._looks_again:
                    self._looks_again = True
                    self.call_later(LOOK_AGAIN_SECONDS, self._look_again)
                return
            for user in users:
                for leave in list(self._connected.get(user, ())):
                    leave(enabled.get(user))

        questions.enabled(self._instance.queries, users, answered)
