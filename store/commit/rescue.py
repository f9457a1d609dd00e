"""What becomes of a batch that the store has not taken: its units are sent again in parts, or refused."""

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

#: how often a batch of one connection is sent that the server cannot take, or any batch with which the connection to
#: the server is lost. Then its halves are sent once each, and their halves, down to the single unit, which is refused
MOST_ATTEMPTS = 5
#: one that finds a row locked is not sent again after some two thirds of this: another instance's commit may wait for a
#: slow disk
LONGEST_LOCKED_SECONDS = 18.0
#: between attempts
PAUSES = Backoff(first=0.02, longest=1.0)
#: of one that has waited for a lock, for each batch that pauses: no other was sent meanwhile, and all together may take
#: a fifth of the time of the others
WAITED_PAUSE_SECONDS = 4 * LOCK_WAIT_SECONDS


def pause_seconds(attempts: int, error: StoreError, pausing: int, took: float) -> float | None:
    """Before it is sent once more, after so many attempts; None: not again. ``pausing``: batches that do, with it.
    ``took``: seconds of the last attempt.
    """
    pause = PAUSES.after(attempts)
    if not isinstance(error, Locked):
        return None if attempts >= MOST_ATTEMPTS else pause
    if took >= LOCK_WAIT_SECONDS:
        pause = max(pause, WAITED_PAUSE_SECONDS * pausing)
    return None if attempts * pause >= LONGEST_LOCKED_SECONDS else pause


class Salvage:
    """Parts, with how often each was sent. They are sent before any newer unit of their connections."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: deque[tuple[list[Unit], int]] = deque()

    def put(self, attempts: int, *parts: list[Unit]) -> None:
        """Put a part before all others."""
        self.parts.extendleft((units, attempts) for units in reversed(parts))

    def take(self) -> tuple[list[Unit], int]:
        """The first part, and how often it was sent. There must be one."""
        return self.parts.popleft()

    def remove(self, owner: object) -> list[Unit]:
        """Take out all parts of this connection."""
        removed: list[Unit] = []
        parts, self.parts = self.parts, deque()
        for units, attempts in parts:
            removed += [unit for unit in units if unit.owner is owner]
            if others := [unit for unit in units if unit.owner is not owner]:
                self.parts.append((others, attempts))
        return removed

    def apart(self, units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
        """``units`` of connections that have parts here, and the other units."""
        owners = {unit.owner for part, _ in self.parts for unit in part}
        return [unit for unit in units if unit.owner in owners], [unit for unit in units if unit.owner not in owners]


log = structlog.get_logger(__name__)


class Rescue:
    """``salvage``: what is to be sent again now."""

    def __init__(self, loop: Loop, sender: GroupCommit) -> None:
        self._loop = loop
        self._sender = sender
        self.salvage = Salvage()
        #: batches of one connection each, which wait for their next attempt
        self.pausing = 0

    @property
    def busy(self) -> bool:
        """Whether anything is to be sent again, now or later."""
        return bool(self.salvage.parts or self.pausing)

    def try_again(self, batch: Batch, error: StoreError) -> None:
        """The server could not take the batch now, and perhaps never can. This must not keep other connections from
        being committed: a batch of several is divided, and that of one is sent again after pauses, in which the others
        go on, but not for ever.
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
        """The batch needs rows of transactions that others have ``locked``. The connections whose units name them wait,
        each for itself; the units of all others are sent at once.
        """
        waiting: dict[object, Batch] = {unit.owner: Batch() for unit in batch.units if locked & _named(unit)}
        if not waiting:  # they are free by now, or it is another lock
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
        """The batch of one connection is sent again after a pause. False: it was sent often enough."""
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
        """The store will never take the batch: each half of its units is sent, down to the one that is refused."""
        units = batch.units
        if len(units) == 1:
            log.warning("unit refused by the store", unit=type(units[0]).__name__, error=str(error))
            self._sender.answer(units, error)
            return
        middle = len(units) // 2
        attempts = max(0, batch.attempts - 1)  # sent as often as this one: once more is enough
        self.salvage.put(attempts, units[:middle], units[middle:])
        self._sender.kick()


def owners_of(batch: Batch) -> list[object]:
    """The connections of its units, each once."""
    return list(dict.fromkeys(unit.owner for unit in batch.units))


def _named(unit: Unit) -> Set[bytes]:
    """The checkable transactions whose rows the unit needs."""
    alone = Batch()
    try:
        unit.write(alone)
    except Exception:  # noqa: BLE001 - it is refused when it is written to be sent
        return frozenset()
    return frozenset() if alone.checkable is None else alone.checkable.named
