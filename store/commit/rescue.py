"""Recover a batch that the store has not committed: its units are sent again in parts, or refused."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import structlog

from store.commit.batch import Batch
from store.commit.parts import LOCK_WAIT_SECONDS
from store.errors import Locked
from store.loop import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from store.commit.batch import Unit
    from store.commit.group_commit import GroupCommit
    from store.errors import StoreError
    from store.loop import Loop


# Parts of batches that the store has refused and that are to be sent again, in the order of their units.

#: attempts to send a batch of one connection that the server cannot execute, or any batch during which the connection
#: to the server is lost. After that each half of it is sent once, and their halves, down to the unit that is refused
MOST_ATTEMPTS = 5
#: a batch that finds a row locked is not sent again after some two thirds of this time: another instance's commit may
#: wait for a slow disk
LONGEST_LOCKED_SECONDS = 18.0
#: the pauses between attempts
PAUSES = Backoff(first=0.02, longest=1.0)
#: the pause of a batch that has waited for a lock, for each batch that pauses: no other was sent during its wait, and
#: all such batches together may use a fifth of the connection's time
WAITED_PAUSE_SECONDS = 4 * LOCK_WAIT_SECONDS


def pause_seconds(attempts: int, error: StoreError, pausing: int, took: float) -> float | None:
    """Return the pause in seconds before a batch is sent again after ``attempts``, or None to refuse it.

    ``pausing``: batches that pause, with this one. ``took``: seconds of the last attempt.
    """
    pause = PAUSES.after(attempts)
    if not isinstance(error, Locked):
        return None if attempts >= MOST_ATTEMPTS else pause
    if took >= LOCK_WAIT_SECONDS:
        pause = max(pause, WAITED_PAUSE_SECONDS * pausing)
    return None if attempts * pause >= LONGEST_LOCKED_SECONDS else pause


class Salvage:
    """Holds the parts to be sent again, with the attempts of each; they precede newer units of their connections."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: deque[tuple[list[Unit], int]] = deque()

    def put(self, attempts: int, *parts: list[Unit]) -> None:
        """Put the parts, in this order, before all others."""
        self.parts.extendleft((units, attempts) for units in reversed(parts))

    def take(self) -> tuple[list[Unit], int]:
        """Take the first part, and how often it was sent. There must be one."""
        return self.parts.popleft()

    def remove(self, owner: object) -> list[Unit]:
        """Remove and return the units of this connection from all parts."""
        removed: list[Unit] = []
        parts, self.parts = self.parts, deque()
        for units, attempts in parts:
            removed += [unit for unit in units if unit.owner is owner]
            if others := [unit for unit in units if unit.owner is not owner]:
                self.parts.append((others, attempts))
        return removed

    def apart(self, units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
        """Divide ``units`` into those of connections that have parts here, and the others."""
        owners = {unit.owner for part, _ in self.parts for unit in part}
        return [unit for unit in units if unit.owner in owners], [unit for unit in units if unit.owner not in owners]


log = structlog.get_logger(__name__)


class Rescue:
    """Sends the units of refused batches again, in parts and after pauses. ``salvage``: parts to be sent now."""

    def __init__(self, loop: Loop, sender: GroupCommit) -> None:
        self._loop = loop
        self._sender = sender
        self.salvage = Salvage()
        #: number of batches, of one connection each, that wait for their next attempt
        self.pausing = 0

    @property
    def busy(self) -> bool:
        """Whether anything is to be sent again, now or later."""
        return bool(self.salvage.parts or self.pausing)

    def try_again(self, batch: Batch, error: StoreError) -> None:
        """Send a batch again that the server could not execute now, and perhaps never can.

        It must not delay the commits of other connections: a batch of several connections is divided; a batch of one is
        sent again after pauses, in which the others are committed, until its attempts are used up.
        """
        owners = owners_of(batch)
        if len(owners) > 1:
            some = set(owners[: len(owners) // 2])
            first = [unit for unit in batch.units if unit.owner in some]
            self.salvage.put(batch.attempts, first, [unit for unit in batch.units if unit.owner not in some])
        elif not self._pauses(batch, owners[0], error):
            self.refused(batch, error)
            return
        self._sender.kick()

    def set_aside(self, batch: Batch, locked: Set[bytes], error: StoreError) -> None:
        """Divide a batch that needs rows of transactions that others have ``locked``.

        Connections whose units need these rows wait, each alone; the units of all others are sent at once.
        """
        waiting: dict[object, Batch] = {unit.owner: Batch() for unit in batch.units if locked & _named(unit)}
        if not waiting:  # the rows are unlocked by now, or another lock was the reason
            self.try_again(batch, error)
            return
        for unit in batch.units:
            if unit.owner in waiting:
                waiting[unit.owner].units.append(unit)
        if others := [unit for unit in batch.units if unit.owner not in waiting]:
            self.salvage.put(batch.attempts, others)
        tried_enough = []
        for owner, part in waiting.items():
            part.attempts, part.begun = batch.attempts, batch.begun
            if not self._pauses(part, owner, error):
                tried_enough.append(part)
        for part in tried_enough:
            self.refused(part, error)
        self._sender.kick()

    def _pauses(self, batch: Batch, owner: object, error: StoreError) -> bool:
        """Send the batch of one connection again after a pause. False: its attempts are used up."""
        batch.attempts += 1
        pause = pause_seconds(batch.attempts, error, self.pausing + 1, time.monotonic() - batch.begun)
        if pause is None:
            return False
        log.warning("batch is sent again", error=str(error), attempts=batch.attempts, seconds=pause)
        self._sender.hold(owner)
        self.pausing += 1
        self._loop.call_later(pause, lambda: self._pause_over(batch, owner))
        return True

    def _pause_over(self, batch: Batch, owner: object) -> None:
        self.pausing -= 1
        self._sender.release(owner)
        self.salvage.put(batch.attempts, batch.units)
        self._sender.kick()

    def refused(self, batch: Batch, error: StoreError) -> None:
        """Divide a batch that the store will never accept: each half is sent alone, down to the refused unit."""
        units = batch.units
        if len(units) == 1:
            log.warning("unit refused by the store", unit=type(units[0]).__name__, error=str(error))
            self._sender.answer(units, error)
            return
        middle = len(units) // 2
        attempts = max(0, batch.attempts - 1)  # its halves count its attempts: one more is enough
        self.salvage.put(attempts, units[:middle], units[middle:])
        self._sender.kick()


def owners_of(batch: Batch) -> list[object]:
    """Return the connections of the batch's units, each once."""
    return list(dict.fromkeys(unit.owner for unit in batch.units))


def _named(unit: Unit) -> Set[bytes]:
    """Return the checkable transactions whose rows the unit needs."""
    alone = Batch()
    try:
        unit.write(alone)
    except Exception:  # noqa: BLE001 - it is refused when it is written to be sent
        return frozenset()
    return frozenset() if alone.checkable is None else alone.checkable.named
