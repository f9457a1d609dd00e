"""What can be repaired of what a reconciliation has found (R34): by the store's own decisions, and by entries that it
makes; no row that is there is edited.

Each repair looks first whether it can still be done. One that was done before, by an earlier run or by another way, is
found done; one that came too late is told, not forced. Those of one kind are done in pieces, an SQL transaction each;
what cannot be done with others, as one waits for a lock or is refused, is done alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self
from uuid import UUID

from sqlalchemy import Connection, insert, select, text

from store import audit, history
from store.audit import Action
from store.commit.terms import Terms
from store.errors import Contended, StoreError, StoreUnavailable, boundary
from store.ids import UuidV7
from store.tables import op, store_identity

#: How the reason of a repair's op begins; the run follows.
REASON: Final = "reconciliation"
#: Repairs in one SQL transaction: what others wait for is over in a moment.
MOST_TOGETHER: Final = 100
#: What is done together waits so long for a lock; what waits longer is done alone.
SHORT_WAIT: Final = text("set local lock_timeout = '200ms'")

#: On which terms a message is delivered again, and whether its address is of kind ``fifo``.
TermsOf = Callable[[Connection, history.Message, bool], Terms]


class State(StrEnum):
    CAN = "can"
    DONE = "done"
    CANNOT = "cannot"


class Verdict(NamedTuple):
    """What can be done, was done, or why it cannot be done; ``said`` begins a sentence."""

    state: State
    said: str


class Repair(ABC):
    """One repair, a value. Looks change nothing; to apply needs partitions for today."""

    @abstractmethod
    def look(self, connection: Connection) -> Verdict: ...

    @abstractmethod
    def apply(self, connection: Connection, reason: str) -> Verdict:
        """:raises Contended: others are in its way; it did nothing."""

    @classmethod
    def look_together(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        return {each: each.look(connection) for each in repairs}

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        """In one SQL transaction; those that are missing are to be done alone.

        :raises StoreError: none was done.
        """
        return {}


def repaired(connection: Connection, repairs: Sequence[Repair], reason: str | None) -> Iterator[tuple[Repair, Verdict]]:
    """Look at repairs, at most :data:`MOST_TOGETHER`, and, with a ``reason`` for their ops, do what can be done. Each
    comes with its verdict, and what is done is durable then, whatever comes after it.
    """
    kinds: dict[type[Repair], dict[Repair, None]] = {}
    for each in repairs:
        kinds.setdefault(type(each), {})[each] = None
    for kind, ours in kinds.items():
        verdicts = dict(kind.look_together(connection, list(ours)))
        can = {each: looked for each, looked in verdicts.items() if looked.state is State.CAN and reason is not None}
        done = {} if reason is None else _together(connection, kind, list(can), reason)
        verdicts |= done
        for each in ours:
            if each in can and reason is not None and each not in done:
                verdicts[each] = _alone(connection, each, can[each], reason)
            yield each, verdicts[each]


def _together(
    connection: Connection, kind: type[Repair], repairs: Sequence[Repair], reason: str
) -> Mapping[Repair, Verdict]:
    if len(repairs) < 2:
        return {}
    try:
        with boundary():
            return kind.apply_together(connection, repairs, reason)
    except StoreUnavailable:
        raise
    except StoreError:  # one of them cannot be done: each alone says why
        return {}
    finally:
        connection.rollback()


def _alone(connection: Connection, repair: Repair, looked: Verdict, reason: str) -> Verdict:
    try:
        return repair.apply(connection, reason)
    except Contended as error:  # it holds up no other
        connection.rollback()
        return Verdict(State.CANNOT, f"not {looked.said}: {error}; run it again")


def store_id(connection: Connection) -> str:
    """The store's id, as reports name it."""
    with boundary():
        found: str = connection.execute(select(store_identity.c.id)).scalar_one()
        connection.rollback()
    return found


def note(connection: Connection, subject: str, how: str, reason: str) -> None:
    """Tell the audit of a repair. The SQL transaction is the caller's."""
    note_each(connection, [subject], how, reason)


def note_each(connection: Connection, subjects: Sequence[str], how: str, reason: str) -> None:
    """The same of some, at least one."""
    audit.note_each(connection, Action.REPAIR, [(each, {"repair": how, "reason": reason}) for each in subjects])


def named(half_id: int, address: str, group: str) -> str:
    """A delivery, as it is said."""
    return f"message {half_id} to {address}{f'::{group}' if group else ''}"


def tell(connection: Connection, decision: str, reason: str, covers: Sequence[tuple[int, int]]) -> None:
    """Add the op of a repair that decides no transaction; ``covers``: halves and groups. The SQL transaction is the
    caller's."""
    tell_each(connection, decision, reason, [covers])


def tell_each(connection: Connection, decision: str, reason: str, repairs: Sequence[Sequence[tuple[int, int]]]) -> None:
    """The same of some, at least one."""
    ids, rows = UuidV7(), []
    for covers in repairs:
        half_ids, group_ids = map(list, zip(*covers, strict=True))
        row = {"id": UUID(bytes=ids.next()), "decision": decision, "reason": reason}
        rows.append({**row, "half_ids": half_ids, "group_ids": group_ids})
    connection.execute(insert(op), rows)
