"""Penalties delay the answer to a wrong password: longer with each by the same address, or for the same user.

A right password waits only if the same address has just sent a wrong one for the same user, so that parallel guesses
gain nothing; clients at other addresses do not wait. An IPv6 network of 64 bits is one address. Each worker counts
alone, in bounded memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from coordinator.login.logins import origin_of
from store import users as questions
from store.users import are_there

if TYPE_CHECKING:
    from coordinator.instance import Instance
    from store.errors import StoreError


FIRST_SECONDS = 0.1
LONGEST_SECONDS = 3.0
#: Many clients may share an address: so many of its failures count as one of a user.
OF_AN_ADDRESS = 8
#: Seconds without a further failure after which failures are forgotten.
FORGOTTEN_SECONDS = 600.0
#: How many addresses, users, and pairs of both are remembered; beyond it the one with the oldest failure is forgotten.
MOST_REMEMBERED = 10_000

Key = TypeVar("Key", str, tuple[str, str])


class _Recent(Generic[Key]):
    """Keeps a number by key, in the order of changes, for a limited time."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, tuple[float, float]] = OrderedDict()

    def get(self, key: Key, now: float) -> float:
        found = self._known.get(key)
        return 0.0 if found is None or now - found[1] > FORGOTTEN_SECONDS else found[0]

    def put(self, key: Key, value: float, now: float) -> None:
        self._known[key] = value, now
        self._known.move_to_end(key)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)


class Penalties:
    """Computes how long a failed login waits: for its answer, and until the next password of the origin is compared."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: _Recent[str] = _Recent()
        self._by_user: _Recent[str] = _Recent()
        #: when the next password of an address for a user may be compared
        self._next: _Recent[tuple[str, str]] = _Recent()

    def wait(self, address: str, user: str) -> float:
        """Return the seconds until a password may be compared."""
        now = self._clock()
        return max(0.0, self._next.get((origin_of(address), user), now) - now)

    def failed(self, address: str, user: str) -> float:
        """Count a wrong password; return the seconds until its answer."""
        now, address = self._clock(), origin_of(address)
        of_address = self._by_address.get(address, now) + 1
        of_user = self._by_user.get(user, now) + 1
        self._by_address.put(address, of_address, now)
        self._by_user.put(user, of_user, now)
        doublings = max(of_user - 1, of_address // OF_AN_ADDRESS)
        seconds = min(FIRST_SECONDS * (1 << min(int(doublings), 10)), LONGEST_SECONDS)
        self._next.put((address, user), now + seconds, now)
        return seconds


log = structlog.get_logger(__name__)

#: Seconds from the first failure in a quiet time until it is written, and between two writes.
TOLD_AFTER_SECONDS = 1.0
BETWEEN_SECONDS = 60.0
#: How many combinations of user, host and reason are counted. Further failures are one row without these.
MOST_TOLD = 20

_OTHERS = ("", "", "")
_MOST_TIMES = (1 << 31) - 1


def _tell(there: bool | StoreError) -> None:
    if there is False:
        log.warning("no client can log in: the store has no users (coordinator user add)")


class Failures:
    """Writes failed logins to the audit (S10): once a minute and at the end, summed by user, host and reason, in
    bounded memory. A flood of them adds :data:`MOST_TOLD` rows and one more each minute to the store, at each worker.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        tokens: bool = False,
        first_seconds: float = TOLD_AFTER_SECONDS,
        between_seconds: float = BETWEEN_SECONDS,
    ) -> None:
        """``tokens``: who logs in by a token need not be in the store."""
        self._instance = instance
        self._tokens = tokens
        self._first_seconds = first_seconds
        self._between_seconds = between_seconds
        self._counts: dict[tuple[str, str, str], int] = {}
        #: whether a write is scheduled, or the time after one has not ended
        self._busy = False
        #: whether the store has still to answer a write
        self._writing = False
        self._ending = False

    def count(self, host: str, user: str | None, why: str = "") -> None:
        """Count a failed login. ``user``: None if it is unknown, as the text may be a password. ``why``: one of a few
        texts; empty for a wrong password or a user that may not log in.
        """
        self._count((user or "", host, why), 1)

    def _count(self, key: tuple[str, str, str], times: int) -> None:
        if key not in self._counts and len(self._counts) >= MOST_TOLD:
            key = _OTHERS
        self._counts[key] = min(self._counts.get(key, 0) + times, _MOST_TIMES)
        if not self._busy:
            self._busy = True
            self._instance.loop.call_later(self._first_seconds, self._write)

    def end(self) -> bool:
        """Write the counts now, as the worker ends; whether all are written."""
        self._ending = True
        if self._counts and not self._writing:
            self._write()
        return not self._writing

    def _write(self) -> None:
        if self._writing:  # since :meth:`end`
            return
        self._busy = self._writing = bool(self._counts)
        if self._busy:
            counts, self._counts = self._counts, {}
            rows = [(*key, times) for key, times in counts.items()]
            questions.failed_logins(self._instance.queries, rows, lambda error: self._written(counts, error))
            if not self._tokens:
                are_there(self._instance.queries, _tell)

    def _written(self, counts: dict[tuple[str, str, str], int], error: StoreError | None) -> None:
        self._writing = False
        if error is not None and self._ending:  # each retry would be one more line in the log
            log.warning("logins that failed are not in the audit", reason=str(error))
        elif error is not None:
            log.warning("logins that failed are not in the audit yet", reason=str(error))
            for key, times in counts.items():
                self._count(key, times)
        self._instance.loop.call_later(self._between_seconds, self._write)
