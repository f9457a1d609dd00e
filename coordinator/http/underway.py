"""Acts that a page has begun go on after its request, piece by piece: a page shows how far one is, and can stop it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from pydantic import SecretStr

from coordinator.answers import Answer
from coordinator.http.acting import Acting
from coordinator.http.problems import Refused
from coordinator.operations import Operation

#: Acts that are remembered; another one has the oldest that has ended forgotten.
_MOST = 64
#: The pause between two pieces, and until one is begun again for which there was no room.
_PAUSE_SECONDS = 0.1
_BUSY_SECONDS = 1.0
#: Seconds that a request waits for the end of what it has begun.
_WAIT_SECONDS = 1.5
#: letters that stay, and findings, of which a page says why
MOST_LEFT = 20

#: Adds what a piece has done to what was done before; returns the arguments with which the act goes on; None: it has
#: ended.
Add = Callable[[dict[str, Any], Answer], dict[str, Any] | None]


def replayed(total: dict[str, Any], piece: Answer) -> dict[str, Any] | None:
    total["replayed"] = total.get("replayed", 0) + len(piece["ids"])
    total["left"] = total.get("left", 0) + len(piece["left"])
    told = total.setdefault("why", [])
    told += [f"{number}: {why}" for number, why in piece["left"][: MOST_LEFT - len(told)]]
    following: dict[str, Any] | None = piece["next"]
    return following


def purged(total: dict[str, Any], piece: Answer) -> dict[str, Any] | None:
    total["purged"] = total.get("purged", 0) + piece["purged"]
    total["held"] = piece["held"]
    following: dict[str, Any] | None = piece["next"]
    return following


def repaired(total: dict[str, Any], piece: Answer) -> dict[str, Any] | None:
    states = [each["state"] for each in piece["repairs"]]
    total["repaired"] = total.get("repaired", 0) + states.count("done")
    total["left"] = total.get("left", 0) + len(states) - states.count("done")
    by_hand = sum(each["findings"] for each in piece["by_hand"])
    total["by_hand"] = total.get("by_hand", 0) + by_hand
    told = total.setdefault("why", [])
    left = [f"{each['said']} ({each['kind']})" for each in piece["repairs"] if each["state"] != "done"]
    told += left[: MOST_LEFT - len(told)]
    following: dict[str, Any] | None = piece["next"]
    return following


@dataclass(eq=False, kw_only=True)
class Work:
    """An act with the arguments ``given``, by an operator at a place. ``add``: None: it has one piece."""

    operation: Operation
    given: Mapping[str, Any]
    operator: str
    place: str
    add: Add | None
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    begun_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    #: what was done up to now
    done: dict[str, Any] = field(default_factory=dict)
    #: why it was not done, or not to its end
    error: Refused | None = None
    #: it was done to its end
    finished: bool = False
    #: who wants it stopped
    stopped_by: str | None = None

    @property
    def state(self) -> str:
        """How it stands, in a sentence without its full stop."""
        if self.error is not None:
            return f"It has ended with an error: {self.error}"
        if self.finished:
            return "Done"
        if self.ended_at is not None:
            return f"Stopped by {self.stopped_by}"
        return "It goes on" if self.stopped_by is None else "It stops after the piece that is under way"


class Underway:
    """Has the acts of all sessions of this process, which end with it. Not for several threads."""

    def __init__(self, acting: Acting) -> None:
        self._acting = acting
        #: by their ids, the oldest first
        self._works: dict[str, Work] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def all(self) -> list[Work]:
        """Return those that are remembered, the last first."""
        return list(reversed(self._works.values()))

    def find(self, id: str) -> Work | None:
        return self._works.get(id)

    async def begin(self, work: Work) -> None:
        """Begin an act, and wait a moment for its end.

        :raises Refused: it is known by then that no piece was done to its end.
        """
        under_way = [each for each in self._works.values() if each.ended_at is None]
        if work.add is not None and any(each.add is not None for each in under_way):
            said = "another act goes on, piece by piece; stop it on the page Acts, or wait"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, said)
        # The first piece begins here, where its refusal can be told.
        first = self._acting.begin(work.operation, work.given, work.operator, work.place)
        self._works[work.id] = work
        ended = [each.id for each in self._works.values() if each.ended_at is not None]
        for id in ended[: max(0, len(self._works) - _MOST)]:
            del self._works[id]
        task = asyncio.create_task(self._go_on(work, asyncio.wrap_future(first)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait({task}, timeout=_WAIT_SECONDS)
        if work.error is not None and not work.done:
            raise work.error

    async def _go_on(self, work: Work, piece: asyncio.Future[Any]) -> None:
        """Wait for a piece of an act, and do the others."""
        fault = "a fault of the service, which its log has"
        error: Refused | None = Refused(HTTPStatus.INTERNAL_SERVER_ERROR, fault, partly=True)
        try:
            following = _added(work, await piece)
            while following is not None and work.stopped_by is None:
                await asyncio.sleep(_PAUSE_SECONDS)
                done = await self._piece(work, following)
                following = following if done is None else _added(work, done)
            work.finished, error = following is None, None
        except Refused as known:
            error = known
        finally:
            work.error, work.ended_at = error, datetime.now(UTC)
            work.given = {name: value for name, value in work.given.items() if not isinstance(value, SecretStr)}

    async def _piece(self, work: Work, following: Mapping[str, Any]) -> Any:
        """Do the next piece of an act; None: it was stopped before."""
        while work.stopped_by is None:
            given, doing = {**work.given, **following}, None
            with suppress(Refused):  # others act
                doing = self._acting.begin(work.operation, given, work.operator, work.place)
            if doing is not None:
                return await asyncio.wrap_future(doing)
            await asyncio.sleep(_BUSY_SECONDS)
        return None


def _added(work: Work, piece: Any) -> dict[str, Any] | None:
    """Add what a piece has done; return the arguments with which the act goes on; None: it has ended."""
    if work.add is not None:
        return work.add(work.done, piece)
    parts = piece if isinstance(piece, list) else [piece]
    work.done = {
        f"{name} ({number})" if number > 1 else name: value
        for number, each in enumerate(parts, 1)
        for name, value in each.items()
    }
    return None
