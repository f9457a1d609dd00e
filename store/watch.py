"""Finds dead instances: those whose heartbeat stands still while the database answers.

Only the clock of this process counts, and only whether the *value* of a heartbeat changes, not its age: so neither a
step of a clock nor an outage of the database makes an instance dead.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import Connection, Row

from store import recovery
from store.database import Patience, connected
from store.errors import StoreError, boundary
from store.processes import gone, machine
from store.recovery import STALE_SECONDS, GivenUp

#: How often to look.
LOOK_SECONDS = 1.0

# Looks that are further apart, or take as long, do not show that a heartbeat stood still in between.
_LONGEST_GAP_SECONDS = 3.0
_LOOK_PATIENCE = Patience(connect_seconds=2, statement_seconds=2.0, lock_seconds=2.0)
# To give an instance up may take reading all entries.
_GIVE_UP_PATIENCE = Patience(connect_seconds=2, statement_seconds=600.0, lock_seconds=2.0)


@dataclass(frozen=True, kw_only=True)
class Look:
    """``ended``: processes of this machine, as (pid, start), that still run although their instance has ended."""

    given_up: GivenUp
    ended: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class _Beat:
    value: datetime | None
    #: when this process first saw the value, by its own clock
    since: float
    #: the process of the instance, if it is on this machine
    process: tuple[int, int] | None


class Watch:
    """Call ``look()`` every :data:`LOOK_SECONDS`; ``close()`` at the end."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._machine = machine()
        self._looked_at: float | None = None
        self._beats: dict[int, _Beat] = {}
        #: processes whose instance an earlier look has seen
        self._ended: set[tuple[int, int]] = set()
        #: instances have ended, perhaps before the first look, and may not be wholly given up yet
        self._owed = True
        #: kept from look to look: a new one costs ten times as much as the look
        self._connection: Connection | None = None
        self._kept = ExitStack()

    def close(self) -> None:
        self._connection = None
        self._kept.close()

    def look(self) -> Look:
        """Give up dead instances.

        :raises StoreError: the database is away; the next look treats all heartbeats as new.
        """
        before, self._looked_at = self._looked_at, None
        begun = self._clock()
        living = self._living()
        now = self._clock()
        # A process has the time from one look to the next to end by itself.
        ended = tuple(process for process in sorted(self._ended) if not gone(*process))
        self._compare(living, now, throughout=before is not None and now - before <= _LONGEST_GAP_SECONDS)
        self._looked_at = now
        still = {number: beat.value for number, beat in self._beats.items() if begun - beat.since >= STALE_SECONDS}
        given_up = GivenUp()
        if still or any(beat.process is not None and gone(*beat.process) for beat in self._beats.values()):
            self._owed = True
        if self._owed:
            with connected(self._url, application_name="coordinator watch", patience=_GIVE_UP_PATIENCE) as connection:
                given_up = recovery.give_up_dead(connection, still)
            self._owed = given_up.owed
        return Look(given_up=given_up, ended=ended)

    def _living(self) -> Sequence[Row[Any]]:
        try:
            if self._connection is None:
                kept = connected(self._url, application_name="coordinator watch", patience=_LOOK_PATIENCE)
                self._connection = self._kept.enter_context(kept)
            with boundary(), _cut_after(_LONGEST_GAP_SECONDS, self._connection):
                living = self._connection.execute(recovery.LIVING).all()
                self._connection.rollback()
        except StoreError:
            self.close()
            raise
        return living

    def _compare(self, living: Sequence[Row[Any]], now: float, *, throughout: bool) -> None:
        """``throughout``: the database has answered since the last look."""
        before, self._beats = self._beats, {}
        for row in living:
            known = before.get(row.id) if throughout else None
            process = (row.pid, row.process_start) if row.host == self._machine else None
            if known is None or known.value != row.beaten_at:
                known = _Beat(value=row.beaten_at, since=now, process=process)
            self._beats[row.id] = known
        was_there = {beat.process for number, beat in before.items() if number not in self._beats}
        if was_there:  # what others held when it was given up is left
            self._owed = True
        # A process that registered twice, because the answer to the first time was lost, still lives.
        lives = {beat.process for beat in self._beats.values()}
        self._ended = {each for each in (self._ended | was_there) - lives if each is not None and not gone(*each)}


@contextmanager
def _cut_after(seconds: float, connection: Connection) -> Iterator[None]:
    """Cut the connection then, if the block has not ended: a database that stands still, or that is not there any more,
    keeps to no limit of its own, and its machine may take what it is sent all the same.
    """
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)

    def cut() -> None:
        with suppress(OSError):  # it is cut already
            wire.shutdown(socket.SHUT_RDWR)

    with socket.socket(fileno=os.dup(driver.fileno())) as wire:
        timer = threading.Timer(seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
