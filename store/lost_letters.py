"""Dead letters that are lost: an op says that a delivery was given up, and its letter is not in the store (R17, R34).

The message itself is there, as the half that the op names: it is replayed from there to the group that failed it, by
the way of ``coordinator dead-letters replay``. A letter has the moment of its op, and an annotation with the half that
it was: so it is known which of the letters of one moment is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple, Self

from sqlalchemy import Connection, func, select

from store import dead_letters, history, traces
from store.errors import AddressGone, boundary
from store.ids import UuidV7
from store.repairs import REASON, SHORT_WAIT, Repair, State, TermsOf, Verdict, named, note_each, tell_each
from store.traces import SLACK, Step


class _Lost(NamedTuple):
    """A delivery without its letter, and where it goes; None: nowhere any more."""

    step: Step
    name: str
    goal: dead_letters.Goal | None


@dataclass(frozen=True)
class Replay(Repair):
    """Replay the messages whose letters are lost, of the moment at which the group gave up this half.

    ``box_of``: the address that the letters of an address and group go to; ``mark_of``: octets that only letters of
    a half have in their annotations.
    """

    half_id: int
    group: str
    box_of: Callable[[str, str], str]
    mark_of: Callable[[int], bytes]
    terms_of: TermsOf

    def look(self, connection: Connection) -> Verdict:
        return self.look_together(connection, [self])[self]

    @classmethod
    def look_together(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        found = _Look(connection, repairs).verdicts()
        connection.rollback()
        return {each: found[each][0] for each in repairs}

    def apply(self, connection: Connection, reason: str) -> Verdict:
        try:
            return self._apply(connection, [self], reason)[self]
        except AddressGone as error:
            connection.rollback()
            return Verdict(State.CANNOT, str(error))

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        connection.execute(SHORT_WAIT)
        return cls._apply(connection, repairs, reason)

    @classmethod
    def _apply(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        """:raises AddressGone: an address or a group that one of the messages goes to is removed."""
        with boundary(), dead_letters.alone(connection) as half_ids:
            look = _Look(connection, repairs)
            found = look.verdicts()
            # repairs of one moment have the same letters
            can = {(each.step.half_id, each.step.group_id): each for _, lost in found.values() for each in lost}
            if can:
                terms_of = repairs[0].terms_of
                messages = []
                for each in can.values():
                    assert each.goal is not None
                    terms = terms_of(connection, look.message(each.step.half_id), each.goal.fifo)
                    messages.append((each.step.half_id, each.goal, terms))
                dead_letters.post_anew(connection, messages, half_ids, UuidV7())
                tell_each(connection, "release", reason, [[delivery] for delivery in can])
                note_each(connection, [each.name for each in can.values()], "replay", reason)
                connection.commit()
        return {each: _done(*found[each]) for each in repairs}


def _done(verdict: Verdict, replayed: Sequence[_Lost]) -> Verdict:
    if not replayed:
        return verdict
    return Verdict(State.DONE, f"replayed: {', '.join(each.name for each in replayed)}")


class _Look:
    """What can be replayed, and how: each table is looked through once for all. The SQL transaction is the caller's."""

    def __init__(self, connection: Connection, repairs: Sequence[Replay]) -> None:
        self._connection = connection
        self._repairs = repairs
        self._messages = history.messages(connection, sorted({each.half_id for each in repairs}))
        with boundary():
            self._now = connection.execute(select(func.now())).scalar_one()
        self._goal = cache(lambda address, group: dead_letters.goal(connection, address, group))

    def message(self, half_id: int) -> history.Message:
        return self._messages[half_id]

    def verdicts(self) -> dict[Replay, tuple[Verdict, Sequence[_Lost]]]:
        """Also those that can be replayed."""
        moments = self._moments()
        lost = self._lost(sorted(set().union(*moments.values())))
        found: dict[Replay, tuple[Verdict, Sequence[_Lost]]] = {}
        for each in self._repairs:
            if each not in moments:
                found[each] = Verdict(State.CANNOT, f"message {each.half_id} is not there any more"), ()
            elif not moments[each]:
                said = f"no group of this name has given it up: message {each.half_id}"
                found[each] = Verdict(State.CANNOT, said), ()
            else:
                ours = [one for one in lost if one.step.decided_at in moments[each]]
                found[each] = _verdict(each.half_id, ours)
        return found

    def _moments(self) -> dict[Replay, set[datetime]]:
        """When the group gave up the half, of each whose message is there."""
        there = [each for each in self._repairs if each.half_id in self._messages]
        if not there:
            return {}
        addresses = {half_id: message.address_id for half_id, message in self._messages.items()}
        last = max(message.posted_at for message in self._messages.values())
        found = traces.deliveries(self._connection, addresses, last, self._now)
        given_up: dict[tuple[int, str], set[datetime]] = {}
        for step in found.steps:
            if step.decision == "dead-letter":
                _, group = found.names.get(step.group_id, ("", ""))
                given_up.setdefault((step.half_id, group), set()).add(step.decided_at)
        return {each: given_up.get((each.half_id, each.group), set()) for each in there}

    def _lost(self, moments: Sequence[datetime]) -> list[_Lost]:
        """Of all that was given up at these moments, in order, what has no letter and was not replayed since."""
        if not moments:
            return []
        connection, since = self._connection, moments[0] - SLACK
        given_up = "o.decision = 'dead-letter' and o.decided_at = any(cast(:at as timestamptz[]))"
        ended = traces.steps(connection, given_up, since, moments[-1] + SLACK, at=list(moments))
        ended.sort(key=lambda step: step.decided_at)
        replayed = traces.steps(
            connection,
            "o.decision = 'release' and starts_with(o.reason, :reason) and u.half_id = any(cast(:halves as int8[]))",
            since,
            self._now + SLACK,
            reason=REASON,
            halves=[step.half_id for step in ended],
        )
        last: dict[tuple[int, int], datetime] = {}
        for step in replayed:
            delivery = step.half_id, step.group_id
            last[delivery] = max(step.decided_at, last.get(delivery, step.decided_at))
        names = traces.group_names(connection, sorted({step.group_id for step in ended}))
        box_of, mark_of = self._repairs[0].box_of, self._repairs[0].mark_of
        boxes = {group_id: box_of(*name) for group_id, name in names.items()}
        letters: dict[tuple[datetime, str], list[bytes]] = {}
        for letter in history.written_at(connection, moments, sorted(set(boxes.values()))):
            letters.setdefault((letter.posted_at, letter.address), []).append(letter.front)
        self._messages |= history.messages(connection, sorted({step.half_id for step in ended}))
        lost = []
        for step in ended:
            fronts = letters.get((step.decided_at, boxes[step.group_id]), ())
            is_there = any(mark_of(step.half_id) in front for front in fronts)
            again = last.get((step.half_id, step.group_id))
            if not is_there and (again is None or again <= step.decided_at):
                address, group = names[step.group_id]
                goal = self._goal(address, group)
                if goal is not None and (goal.group != step.group_id or step.half_id not in self._messages):
                    goal = None
                lost.append(_Lost(step, named(step.half_id, address, group), goal))
        return lost


def _verdict(half_id: int, lost: Sequence[_Lost]) -> tuple[Verdict, Sequence[_Lost]]:
    if not lost:
        return Verdict(State.DONE, f"its letter is there, or it was replayed: message {half_id}"), ()
    can = [each for each in lost if each.goal is not None]
    if not can:
        names = ", ".join(each.name for each in lost)
        return Verdict(State.CANNOT, f"the message, or its group, is not there any more: {names}"), ()
    return Verdict(State.CAN, f"replay {', '.join(each.name for each in can)}"), can
