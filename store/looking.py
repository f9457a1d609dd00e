"""Looks into the store for the metrics: each part by itself, so that one that fails hides none of the others."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from store import figures, runs, watched
from store.database import Patience, connected
from store.errors import StoreError
from store.figures import AddressFigures, Decided, GroupFigures, State, Undecided
from store.runs import Stored
from store.watched import Watched

Found = TypeVar("Found")

_PATIENCE = Patience(connect_seconds=2, statement_seconds=5.0, lock_seconds=1.0)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a look has seen; None: it could not be read."""

    state: State | None = None
    entries: tuple[GroupFigures, ...] | None = None
    dead_letters: tuple[AddressFigures, ...] | None = None
    undecided: Undecided | None = None
    #: the last run of a reconciliation that is stored; None also: there is none
    last_run: Stored | None = None
    #: how far coordinator watch is; None also: it has never run
    watched: Watched | None = None
    #: since the first look
    decided: Decided
    #: parts that could not be read although the store answered
    failed: tuple[str, ...] = ()
    #: how long it took
    seconds: float = 0.0


class Looks:
    """Call ``look()`` now and then; decisions are counted from the first on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._decided = Decided()
        #: the decisions below are counted
        self._position: int | None = None
        self._failed: list[str] = []

    def look(self) -> Seen:
        """Never fails: what could not be read is None, and named by ``failed``."""
        begun = time.monotonic()
        self._failed = []
        found = Seen(decided=self._decided)
        try:
            with connected(self._url, application_name="coordinator metrics", patience=_PATIENCE) as connection:
                found = self._look(connection)
        except StoreError:
            pass
        return Seen(
            state=found.state,
            entries=found.entries,
            dead_letters=found.dead_letters,
            undecided=found.undecided,
            last_run=found.last_run,
            watched=found.watched,
            decided=copy.deepcopy(self._decided),
            failed=tuple(self._failed),
            seconds=time.monotonic() - begun,
        )

    def _look(self, connection: Connection) -> Seen:
        state = figures.state(connection)
        if not state.schema:
            return Seen(state=state, decided=self._decided)
        self._part("decisions", connection, self._count)
        return Seen(
            state=state,
            entries=self._part("entries", connection, figures.entries),
            dead_letters=self._part("dead-letters", connection, figures.dead_letters),
            undecided=self._part("undecided", connection, figures.undecided),
            last_run=self._part("last-run", connection, runs.last),
            watched=self._part("watched", connection, watched.watched),
            decided=self._decided,
        )

    def _part(self, name: str, connection: Connection, ask: Callable[[Connection], Found]) -> Found | None:
        try:
            return ask(connection)
        except StoreError:
            self._failed.append(name)
            connection.rollback()
            return None

    def _count(self, connection: Connection) -> None:
        now = figures.position(connection)
        # A server that was restored from a dump begins its count anew.
        if self._position is None or now < self._position:
            self._position = now
        while self._position < now:
            self._position = figures.add_decided(connection, self._decided, self._position, now)
