"""Logins that failed go to the audit (S10): once a minute and at the end, folded by user, host and why, in bounded
memory. A flood of them adds :data:`MOST_REMEMBERED` rows and one more each minute to the store, at each worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from store.questions import audit as questions
from store.questions import users

if TYPE_CHECKING:
    from coordinator.instance import Instance
    from store.errors import StoreError

log = structlog.get_logger(__name__)

#: From the first one in a quiet time until it is written, and between two writes.
FIRST_SECONDS = 1.0
BETWEEN_SECONDS = 60.0
#: Of users, hosts and whys together. What else fails is one row without any of them.
MOST_REMEMBERED = 20

_OTHERS = ("", "", "")
_MOST_TIMES = (1 << 31) - 1


def _tell(there: bool | StoreError) -> None:
    if there is False:
        log.warning("no client can log in: the store has no users (coordinator user add)")


class Failures:
    def __init__(
        self, instance: Instance, *, first_seconds: float = FIRST_SECONDS, between_seconds: float = BETWEEN_SECONDS
    ) -> None:
        self._instance = instance
        self._first_seconds = first_seconds
        self._between_seconds = between_seconds
        self._counts: dict[tuple[str, str, str], int] = {}
        #: a write is due, or the time after one is not over
        self._busy = False
        #: and the store has not answered it
        self._writing = False
        self._ending = False

    def count(self, host: str, user: str | None, why: str = "") -> None:
        """``user``: None, if there is none of that name: it may be a password. ``why``: one of a few texts, or nothing,
        where it was a password or a user that may not log in.
        """
        self._count((user or "", host, why), 1)

    def _count(self, key: tuple[str, str, str], times: int) -> None:
        if key not in self._counts and len(self._counts) >= MOST_REMEMBERED:
            key = _OTHERS
        self._counts[key] = min(self._counts.get(key, 0) + times, _MOST_TIMES)
        if not self._busy:
            self._busy = True
            self._instance.loop.call_later(self._first_seconds, self._write)

    def end(self) -> bool:
        """The worker ends: what is counted is written now, or is lost. Whether there is no more of it."""
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
            users.are_there(self._instance.queries, _tell)

    def _written(self, counts: dict[tuple[str, str, str], int], error: StoreError | None) -> None:
        self._writing = False
        if error is not None and self._ending:  # each further try would be one more line of the log
            log.warning("logins that failed are not in the audit", reason=str(error))
        elif error is not None:
            log.warning("logins that failed are not in the audit yet", reason=str(error))
            for key, times in counts.items():
                self._count(key, times)
        self._instance.loop.call_later(self._between_seconds, self._write)
