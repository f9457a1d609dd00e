"""What the store holds, read past the service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg

from store import channels
from store.tables import SCHEMA
from tests.model.state import GROUPS, QUEUE_KINDS, QUEUES
from tests.wire.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, Message, Properties, data, section
from tests.wire.types import Long, Symbol

MALFORMED = b"\x00\x53\x77"


#: Longer than any history takes.
LATER = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-delay"): Long(24 * 3_600_000)})


def octets(number: int, *, malformed: bool, to: str | None, producer_group: str | None, later: bool = False) -> bytes:
    """The message of a post; ``to``: the address it names, on the anonymous relay."""
    if malformed:
        return MALFORMED
    properties = LATER if later else b""
    properties += b"" if to is None else Properties(to=to).encoded()
    if producer_group is not None:
        properties += section(APPLICATION_PROPERTIES, {"producer-group": producer_group})
    return properties + data(b"%d" % number)


def number_of(message: bytes) -> int:
    return int(Message(message).body)


def address(history: str, queue: int) -> str:
    """Its name begins with its kind, if that is not ``normal``: the patterns of the drivers go by it."""
    return f"{history}-{queue}" if QUEUE_KINDS[queue] == "normal" else f"{QUEUE_KINDS[queue]}-{history}-{queue}"


def producer_group(history: str, group: int) -> str:
    """From ``GROUPS`` on: of the transactions that an address of kind transaction makes checkable (H1)."""
    if group >= GROUPS:
        return address(history, group - GROUPS)
    return f"{history}-producers-{group}"


@dataclass
class Stored:
    """``queues``: (message, attempts, marked) in order; ``dead``: with a letter; ``failed``: waiting for one."""

    ops: dict[int, str] = field(default_factory=dict)
    queues: list[list[tuple[int, int, bool]]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    dead: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    #: their time has not come
    later: set[int] = field(default_factory=set)
    #: messages that undecided transactions have posted, and retired
    halves: dict[int, set[int]] = field(default_factory=dict)
    held: dict[int, set[int]] = field(default_factory=dict)

    @property
    def found(self) -> dict[int, tuple[str, int, bool]]:
        """Place, attempts and mark by message."""
        places = dict.fromkeys(self.dead | self.failed, ("dead", 0, False))
        places.update(dict.fromkeys(self.later, ("later", 0, False)))
        for queue in self.queues:
            places.update({number: ("queue", attempts, marked) for number, attempts, marked in queue})
        return places


#: What another process has decided waits for the schedule a moment, too.
_LATER = "coalesce(e.available_at > now() + interval '1 hour', false)"


def come_due(connection: psycopg.Connection[Any], history: str, queue: int, numbers: list[int]) -> None:
    """The time of these messages comes, of one after the other."""
    with connection.transaction():
        rows = connection.execute(
            f"""select e.group_id, e.id, h.message from {SCHEMA}.address a
                  join {SCHEMA}.consumer_group g on g.address_id = a.id
                  join {SCHEMA}.entry e on e.group_id = g.id join {SCHEMA}.half h on h.id = e.half_id
                 where a.name = %s and {_LATER}""".encode(),
            [address(history, queue)],
        ).fetchall()
        there = {number_of(message): (group_id, entry_id) for group_id, entry_id, message in rows}
        assert there.keys() == set(numbers), f"queue {queue}: {sorted(there)} are to come later, not {sorted(numbers)}"
        for place, number in enumerate(numbers):
            connection.execute(
                f"""update {SCHEMA}.entry set available_at = now() - %s * interval '1 ms'
                     where group_id = %s and id = %s""".encode(),
                [len(numbers) - place, *there[number]],
            )
    connection.execute(b"select pg_notify(%s, '')", [channels.DUE])


def on_their_way(connection: psycopg.Connection[Any], history: str) -> bool:
    """Messages whose time has come have no places in their queues yet."""
    names = [address(history, queue) for queue in range(QUEUES)]
    found = connection.execute(
        f"""select from {SCHEMA}.address a join {SCHEMA}.consumer_group g on g.address_id = a.id
              join {SCHEMA}.entry e on e.group_id = g.id
             where a.name = any(%s) and e.available_at <= now()""".encode(),
        [names],
    )
    return found.fetchone() is not None


def stored(connection: psycopg.Connection[Any], history: str, txn_ids: dict[int, bytes]) -> Stored:
    """Of one history: its addresses are its own."""
    result = Stored()
    names = {address(history, queue): queue for queue in range(QUEUES)}
    dead = {f"%DLQ%{name}" for name in names}
    rows = connection.execute(
        f"""select a.name, e.attempts, e.failed, e.annotations is not null, h.message, {_LATER}
              from {SCHEMA}.address a
              join {SCHEMA}.consumer_group g on g.address_id = a.id and g.name = ''
              join {SCHEMA}.entry e on e.group_id = g.id join {SCHEMA}.half h on h.id = e.half_id
             where a.name = any(%s) order by e.id""".encode(),
        [[*names, *dead]],
    ).fetchall()
    for name, attempts, failed, marked, message, later in rows:
        number = number_of(message)
        if name in dead:
            result.dead.add(number)
        elif failed is not None:
            result.failed.add(number)
        elif later:
            result.later.add(number)
        else:
            result.queues[names[name]].append((number, attempts, marked))
    by_id = {UUID(bytes=txn_id): number for number, txn_id in txn_ids.items()}
    decided = connection.execute(
        f"select id, decision from {SCHEMA}.op where id = any(%s)".encode(), [list(by_id)]
    ).fetchall()
    result.ops = {by_id[txn_id]: decision for txn_id, decision in decided}
    for table, found in (("pending", result.halves), ("pending_retirement", result.held)):
        undecided = connection.execute(
            f"""select p.txn_id, h.message from {SCHEMA}.{table} p join {SCHEMA}.half h on h.id = p.half_id
                 where p.txn_id = any(%s)""".encode(),
            [list(by_id)],
        ).fetchall()
        for txn_id, message in undecided:
            found.setdefault(by_id[txn_id], set()).add(number_of(message))
    return result


def decide(connection: psycopg.Connection[Any], txn_id: bytes, *, commit: bool, checkable: bool) -> None:
    """The op, as an operator writes it."""
    if checkable:
        decision = "commit" if commit else "rollback"
        row = connection.execute(
            f"select {SCHEMA}.decide(%s, %s, 'operator')".encode(), [UUID(bytes=txn_id), decision]
        ).fetchone()
        assert row == (True,)
        return
    connection.execute(
        f"""insert into {SCHEMA}.op (id, decision, txn_id, reason, posted)
            values (%s, 'rollback', %s, 'operator', 0)""".encode(),
        [UUID(bytes=txn_id), UUID(bytes=txn_id)],
    )


def counted(connection: psycopg.Connection[Any], counts: dict[bytes, int]) -> dict[bytes, int]:
    """Of undecided transactions, whose checks should be so many: those with another number, and theirs."""
    rows = connection.execute(
        f"select uuid_send(id), checks from {SCHEMA}.txn where uuid_send(id) = any(%s)".encode(), [list(counts)]
    )
    return {txn_id: checks for txn_id, checks in rows if checks != counts[txn_id]}


def make_due(connection: psycopg.Connection[Any], producer_group: str) -> None:
    """Time passes until the next check of each undecided transaction."""
    connection.execute(
        f"""update {SCHEMA}.txn set next_check_at = now()
             where producer_group = %s and next_check_at is not null""".encode(),
        [producer_group],
    )
