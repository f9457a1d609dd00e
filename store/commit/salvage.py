"""Parts of batches that the store has refused and that are to be sent again, in the order of their units."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from store.commit.parts import LOCK_WAIT_SECONDS
from store.errors import Locked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.commit.unit import Unit
    from store.errors import StoreError

#: how often a batch of one connection is sent that the server cannot take, or any batch with which the connection to
#: the server is lost. Then its halves are sent once each, and their halves, down to the single unit, which is refused
MOST_ATTEMPTS = 5
#: one that finds a row locked is not sent again after some two thirds of this: another instance's commit may wait for a
#: slow disk
LONGEST_LOCKED_SECONDS = 18.0
#: pause between attempts; it doubles with each
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0
#: of one that has waited for a lock, for each batch that pauses: no other was sent meanwhile, and all together may take
#: a fifth of the time of the others
WAITED_PAUSE_SECONDS = 4 * LOCK_WAIT_SECONDS


def pause_seconds(attempts: int, error: StoreError, pausing: int, took: float) -> float | None:
    """Before it is sent once more, after so many attempts; None: not again. ``pausing``: batches that do, with it.
    ``took``: seconds of the last attempt.
    """
    pause = float(min(FIRST_PAUSE_SECONDS * 2 ** (attempts - 1), LONGEST_PAUSE_SECONDS))
    if not isinstance(error, Locked):
        return None if attempts >= MOST_ATTEMPTS else pause
    if took >= LOCK_WAIT_SECONDS:
        pause = max(pause, WAITED_PAUSE_SECONDS * pausing)
    return None if attempts * pause >= LONGEST_LOCKED_SECONDS else pause


class Salvage:
    """Parts, with how often each was sent. They are sent before any newer unit of their connections."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: deque[tuple[list[Unit], int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, attempts: int, *parts: list[Unit]) -> None:
        """Put a part before all others."""
        self._parts.extendleft((units, attempts) for units in reversed(parts))

    def take(self) -> tuple[list[Unit], int]:
        """The first part, and how often it was sent. There must be one."""
        return self._parts.popleft()

    def remove(self, owner: object) -> list[Unit]:
        """Take out all parts of this connection."""
        removed: list[Unit] = []
        parts, self._parts = self._parts, deque()
        for units, attempts in parts:
            removed += [unit for unit in units if unit.owner is owner]
            if others := [unit for unit in units if unit.owner is not owner]:
                self._parts.append((others, attempts))
        return removed

    def apart(self, units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
        """``units`` of connections that have parts here, and the other units."""
        owners = {unit.owner for part, _ in self._parts for unit in part}
        return [unit for unit in units if unit.owner in owners], [unit for unit in units if unit.owner not in owners]
