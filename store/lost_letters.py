"""Dead letters that are lost: an op says that a delivery was given up, and its letter is not in the store (R17, R34).

The message itself is there, as the half that the op names: it is replayed from there to the group that failed it, by
the way of ``coordinator dead-letters replay``. A letter has the moment of its op, and an annotation with the half that
it was: so it is known which of the letters of one moment is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from store import dead_letters, history, traces
from store.errors import AddressGone, boundary
from store.ids import UuidV7
from store.repairs import REASON, Repair, State, TermsOf, Verdict, named, note, tell
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
        verdict, _ = self._look(connection)
        connection.rollback()
        return verdict

    def _look(self, connection: Connection) -> tuple[Verdict, Sequence[_Lost]]:
        """Also those that can be replayed. The SQL transaction is the caller's."""
        message = history.message(connection, self.half_id)
        if message is None:
            return Verdict(State.CANNOT, f"message {self.half_id} is not there any more"), ()
        with boundary():
            now = connection.execute(select(func.now())).scalar_one()
        found = traces.deliveries(connection, {self.half_id: message.address_id}, message.posted_at, now)
        moments = {
            step.decided_at
            for step in found.steps
            if step.decision == "dead-letter" and found.names.get(step.group_id, ("", ""))[1] == self.group
        }
        if not moments:
            return Verdict(State.CANNOT, f"no group of this name has given it up: message {self.half_id}"), ()
        lost = [each for moment in sorted(moments) for each in self._lost(connection, moment, now)]
        if not lost:
            return Verdict(State.DONE, f"its letter is there, or it was replayed: message {self.half_id}"), ()
        can = [each for each in lost if each.goal is not None]
        if not can:
            names = ", ".join(each.name for each in lost)
            return Verdict(State.CANNOT, f"the message, or its group, is not there any more: {names}"), ()
        return Verdict(State.CAN, f"replay {', '.join(each.name for each in can)}"), can

    def _lost(self, connection: Connection, moment: datetime, now: datetime) -> list[_Lost]:
        buried = "o.decision = 'dead-letter' and o.decided_at = :at"
        ended = traces.steps(connection, buried, moment - SLACK, moment + SLACK, at=moment)
        replayed = traces.steps(
            connection,
            "o.decision = 'release' and starts_with(o.reason, :reason) and u.half_id = any(cast(:halves as int8[]))",
            moment - SLACK,
            now + SLACK,
            reason=REASON,
            halves=[step.half_id for step in ended],
        )
        done = {(step.half_id, step.group_id) for step in replayed if step.decided_at > moment}
        names = traces.group_names(connection, [step.group_id for step in ended])
        lost = []
        for step in ended:
            address, group = names[step.group_id]
            letters = history.copies(connection, self.mark_of(step.half_id), moment, self.box_of(address, group))
            if (step.half_id, step.group_id) in done or any(letter.posted_at == moment for letter in letters):
                continue
            goal = dead_letters.goal(connection, address, group)
            there = goal is not None and goal.group == step.group_id
            if not there or history.message(connection, step.half_id) is None:
                goal = None
            lost.append(_Lost(step, named(step.half_id, address, group), goal))
        return lost

    def apply(self, connection: Connection, reason: str) -> Verdict:
        with boundary(), dead_letters.alone(connection) as half_ids:
            verdict, can = self._look(connection)
            if not can:
                connection.rollback()
                return verdict
            messages = []
            for each in can:
                message = history.message(connection, each.step.half_id)
                assert message is not None
                assert each.goal is not None
                messages.append((message.half_id, each.goal, self.terms_of(connection, message, each.goal.fifo)))
            try:
                dead_letters.post_anew(connection, messages, half_ids, UuidV7())
            except AddressGone as error:
                connection.rollback()
                return Verdict(State.CANNOT, str(error))
            tell(connection, "release", reason, [(each.step.half_id, each.step.group_id) for each in can])
            for each in can:
                note(connection, each.name, "replay", reason)
            connection.commit()
        return Verdict(State.DONE, f"replayed: {', '.join(each.name for each in can)}")
