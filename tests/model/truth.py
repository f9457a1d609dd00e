"""What the store holds, read past the service."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import delete, update

from coordinator.address.addresses import UNANSWERED as ASIDE
from store import channels, retention
from store.database import connected
from store.ids import id_at
from store.tables import SCHEMA
from store.tables import address as address_table
from store.tables import retention as retention_table
from tests.model.state import ADDRESSES, GROUPS, LATER_HOURS, POLICIES, QUEUE_KINDS, Letter
from tests.model.state import Stored as State
from tests.model.steps import Post
from tests.wire.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, Message, Properties, data, section
from tests.wire.types import Long, Symbol

MALFORMED = b"\x00\x53\x77"


#: Longer than any history takes.
LATER = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-delay"): Long(LATER_HOURS * 3_600_000)})
MARK = "x-opt-mark"
#: by which this day is old, and none of its decisions
OLD = retention.Policy(messages=timedelta(days=-1), decisions=timedelta(days=400))


def octets(history: str, step: Post) -> bytes:
    """The message of a post; it names its address on the anonymous relay alone."""
    if step.malformed:
        return MALFORMED
    to = None if step.queue is None else address(history, step.queue)
    group_id = None if step.key is None else f"message group {step.key}"
    sections = LATER if step.later else b""
    if to is not None or group_id is not None:
        sections += Properties(to=to, group_id=group_id).encoded()
    if step.group is not None:
        sections += section(APPLICATION_PROPERTIES, {"producer-group": producer_group(history, step.group)})
    return sections + data(b"%d" % step.message)


def marked(message: bytes, annotations: bytes | None) -> bool:
    """``annotations``: of outcomes; a letter has them in its message, and keeps them."""
    return MARK.encode() in message + (annotations or b"")


def number_of(message: bytes) -> int:
    return int(Message(message).body)


def address(history: str, number: int) -> str:
    """Its name begins with its kind, if that is not ``normal``: the patterns of the drivers go by it."""
    return f"{history}-{number}" if QUEUE_KINDS[number] == "normal" else f"{QUEUE_KINDS[number]}-{history}-{number}"


def group(history: str, queue: int) -> str:
    """The name of the consumer group of a queue."""
    return f"{history}-group-{queue}" if POLICIES[queue].own else ""


def source(history: str, queue: int) -> str:
    """As its consumers name it."""
    of = address(history, POLICIES[queue].address)
    return f"{of}::{group(history, queue)}" if POLICIES[queue].own else of


def box(history: str, queue: int) -> str:
    """The address of its dead letters."""
    return f"%DLQ%{group(history, queue) or address(history, POLICIES[queue].address)}"


def patterns() -> list[dict[str, str | int]]:
    """Of the settings: what an address that is made on use has."""
    found: list[dict[str, str | int]] = []
    for kind in ("delay", "transaction", "fifo", "normal"):
        policy = POLICIES[QUEUE_KINDS.index(kind)]
        match = "*" if kind == "normal" else f"{kind}-*"
        found.append({"match": match, "kind": kind, "max_attempts": policy.most_attempts, "retry": policy.retry})
    return found


def make_groups(connection: psycopg.Connection[Any], history: str) -> None:
    """The addresses that have more than a pattern says, as administration makes them."""
    for number, policy in enumerate(POLICIES):
        if policy.own:
            of = POLICIES[policy.address]
            connection.execute(
                f"""with made as (
                      insert into {SCHEMA}.address (name, max_attempts, retry) values (%s, %s, %s) returning id)
                    insert into {SCHEMA}.consumer_group (address_id, name, max_attempts, retry)
                    select id, '', null::int2, null from made union all select id, %s, %s, %s from made""".encode(),
                [
                    address(history, policy.address),
                    of.most_attempts,
                    of.retry,
                    group(history, number),
                    policy.most_attempts,
                    policy.retry,
                ],
            )


def make_guard(connection: psycopg.Connection[Any]) -> None:
    """A message that waits for ever, so that of the day on which histories are something always stays."""
    connection.execute(
        f"""with made as (insert into {SCHEMA}.address (name) values ('guard') on conflict do nothing returning id),
                 grouped as (insert into {SCHEMA}.consumer_group (address_id) select id from made returning id),
                 written as (
                   insert into {SCHEMA}.half (id, address_id, message) select %s, id, '' from made returning id)
            insert into {SCHEMA}.entry (group_id, id, half_id) select g.id, w.id, w.id from grouped g, written w
            """.encode(),
        [id_at(datetime.now(UTC))],
    )


def drop_old(url: str, history: str, *, kept: bool) -> None:
    """The day is old now, and retention drops what may go; ``kept``: the addresses of the history keep theirs for
    longer. Afterwards nothing says so: the next messages are of the same day.
    """
    names = address_table.c.name.in_([address(history, each) for each in range(ADDRESSES)])
    with connected(url) as connection:
        longer = update(address_table).where(names)
        connection.execute(longer.values(retention_hours=72 if kept else None))
        connection.commit()
        done = retention.drop_old(connection, OLD)
        assert (done.waiting, done.whole) == ((), ()), done
        connection.execute(delete(retention_table))
        connection.execute(longer.values(retention_hours=None))
        connection.commit()


def producer_group(history: str, group: int) -> str:
    """From ``GROUPS`` on: of the transactions that an address of kind transaction makes checkable (H1)."""
    if group >= GROUPS:
        return address(history, group - GROUPS)
    return f"{history}-producers-{group}"


@dataclass
class Stored:
    """``queues``: messages in order; by queue and message: ``dead``: with a letter; ``failed``: waiting for one."""

    ops: dict[int, str] = field(default_factory=dict)
    queues: list[list[tuple[int, State]]] = field(default_factory=lambda: [[] for _ in POLICIES])
    dead: dict[tuple[int, int], Letter] = field(default_factory=dict)
    failed: set[tuple[int, int]] = field(default_factory=set)
    #: their time has not come
    later: dict[tuple[int, int], State] = field(default_factory=dict)
    #: messages that undecided transactions have posted; and, with their queues, retired
    halves: dict[int, set[int]] = field(default_factory=dict)
    held: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    #: copies of what no checker has answered, by transaction: its group, its checks, address and number of each
    parked: dict[int, tuple[int, int, list[tuple[int, int]]]] = field(default_factory=dict)

    @property
    def found(self) -> dict[tuple[int, int], State]:
        """By queue and message."""
        places = dict.fromkeys(self.dead.keys() | self.failed, State("dead"))
        places.update(self.later)
        for queue, messages in enumerate(self.queues):
            places.update({(queue, number): state for number, state in messages})
        return places


#: What another process has decided waits for the schedule a moment, too.
_LATER = "coalesce(e.available_at > now() + interval '1 hour', false)"
_HOURS = f"case when {_LATER} then ceil(extract(epoch from e.available_at - now()) / 3600)::int else 0 end"


def come_due(connection: psycopg.Connection[Any], history: str, queue: int, waits: dict[int, int]) -> None:
    """The time of these messages comes, of one after the other. ``waits``: the hours that each was to wait."""
    with connection.transaction():
        rows = connection.execute(
            f"""select e.group_id, e.id, h.message, {_HOURS} from {SCHEMA}.address a
                  join {SCHEMA}.consumer_group g on g.address_id = a.id
                  join {SCHEMA}.entry e on e.group_id = g.id join {SCHEMA}.half h on h.id = e.half_id
                 where a.name = %s and g.name = %s and {_LATER}""".encode(),
            [address(history, POLICIES[queue].address), group(history, queue)],
        ).fetchall()
        there = {number_of(message): (group_id, entry_id) for group_id, entry_id, message, _ in rows}
        hours = {number_of(message): wait for _, _, message, wait in rows}
        assert hours == waits, f"queue {queue}: {hours} are to come later, not {waits}"
        for place, number in enumerate(waits):  # so close that no look goes in between
            connection.execute(
                f"""update {SCHEMA}.entry set available_at = now() - %s * interval '1 us'
                     where group_id = %s and id = %s""".encode(),
                [len(waits) - place, *there[number]],
            )
            connection.execute(  # listeners wait for the same
                f"""update {SCHEMA}.entry e set available_at = now() - %s * interval '1 us'
                      from {SCHEMA}.entry same, {SCHEMA}.consumer_group g
                     where same.group_id = %s and same.id = %s and e.half_id = same.half_id
                       and g.id = e.group_id and g.instance_id is not null and {_LATER}""".encode(),
                [len(waits) - place, *there[number]],
            )
    connection.execute(b"select pg_notify(%s, '')", [channels.DUE])


def on_their_way(connection: psycopg.Connection[Any], history: str) -> bool:
    """Messages whose time has come have no places in their queues yet."""
    names = [address(history, number) for number in range(ADDRESSES)]
    found = connection.execute(
        f"""select from {SCHEMA}.address a join {SCHEMA}.consumer_group g on g.address_id = a.id
              join {SCHEMA}.entry e on e.group_id = g.id
             where a.name = any(%s) and e.available_at <= now()""".encode(),
        [names],
    )
    return found.fetchone() is not None


def tags(connection: psycopg.Connection[Any], history: str, queue: int) -> dict[int, bytes]:
    """The delivery tag of each message of the queue that is in the store: the store's id and the entry's (D8)."""
    rows = connection.execute(
        f"""select h.message, s.id || ':' || e.id from {SCHEMA}.store_identity s, {SCHEMA}.address a
              join {SCHEMA}.consumer_group g on g.address_id = a.id
              join {SCHEMA}.entry e on e.group_id = g.id join {SCHEMA}.half h on h.id = e.half_id
             where a.name = %s and g.name = %s""".encode(),
        [address(history, POLICIES[queue].address), group(history, queue)],
    ).fetchall()
    return {number_of(message): tag.encode() for message, tag in rows}


def stored(connection: psycopg.Connection[Any], history: str, txn_ids: dict[int, bytes]) -> Stored:
    """Of one history: its addresses are its own."""
    result = Stored()
    places = {(address(history, each.address), group(history, queue)): queue for queue, each in enumerate(POLICIES)}
    boxes = {(box(history, queue), ""): queue for queue in places.values()}
    rows = connection.execute(
        f"""select a.name, g.name, e.attempts, e.failures, e.failed, e.annotations, h.message,
                   {_HOURS}
              from {SCHEMA}.address a
              join {SCHEMA}.consumer_group g on g.address_id = a.id
              join {SCHEMA}.entry e on e.group_id = g.id join {SCHEMA}.half h on h.id = e.half_id
             where a.name = any(%s) order by e.id""".encode(),
        [[name for name, _ in (*places, *boxes)]],
    ).fetchall()
    for name, of, attempts, failures, failed, added, message, hours in rows:
        if (name, of) not in places.keys() | boxes.keys():
            continue  # of a listener: what it hears shows what there was
        number = number_of(message)
        place = "later" if hours else "queue"
        state = State(place, attempts, attempts, marked(message, added), hours, failures, attempts)
        if (name, of) in boxes:
            result.dead[boxes[name, of], number] = letter(history, message, txn_ids)
        elif failed is not None:
            result.failed.add((places[name, of], number))
        elif hours:
            result.later[places[name, of], number] = state
        else:
            result.queues[places[name, of]].append((number, state))
    by_id = {UUID(bytes=txn_id): number for number, txn_id in txn_ids.items()}
    decided = connection.execute(
        f"select id, decision from {SCHEMA}.op where id = any(%s)".encode(), [list(by_id)]
    ).fetchall()
    result.ops = {by_id[txn_id]: decision for txn_id, decision in decided}
    undecided = connection.execute(
        f"""select p.txn_id, a.name, null, h.message from {SCHEMA}.pending_half p
              join {SCHEMA}.address a on a.id = p.address_id
              join {SCHEMA}.half h on h.id = p.half_id where p.txn_id = any(%(ids)s)
            union all
            select p.txn_id, a.name, g.name, h.message from {SCHEMA}.pending_retirement p
              join {SCHEMA}.consumer_group g on g.id = p.group_id join {SCHEMA}.address a on a.id = g.address_id
              join {SCHEMA}.half h on h.id = p.half_id where p.txn_id = any(%(ids)s)""".encode(),
        {"ids": list(by_id)},
    ).fetchall()
    for txn_id, name, of, message in undecided:
        if of is None:
            result.halves.setdefault(by_id[txn_id], set()).add(number_of(message))
        else:
            result.held.setdefault(by_id[txn_id], set()).add((places[name, of], number_of(message)))
    result.parked = _parked(connection, history, by_id)
    return result


def _parked(
    connection: psycopg.Connection[Any], history: str, by_id: dict[UUID, int]
) -> dict[int, tuple[int, int, list[tuple[int, int]]]]:
    """As :attr:`Stored.parked`."""
    names = [address(history, number) for number in range(ADDRESSES)]
    groups = {producer_group(history, each): each for each in range(GROUPS + ADDRESSES)}
    rows = connection.execute(
        f"""select h.message from {SCHEMA}.address a
              join {SCHEMA}.consumer_group g on g.address_id = a.id
              join {SCHEMA}.entry e on e.group_id = g.id join {SCHEMA}.half h on h.id = e.half_id
             where a.name = %s""".encode(),
        [ASIDE],
    )
    found: dict[int, tuple[int, int, list[tuple[int, int]]]] = {}
    for (message,) in rows:
        told = Message(message).annotations
        number = by_id.get(UUID(bytes=bytes(told["x-opt-txn-id"])))
        if number is not None:
            story = (groups[told["x-opt-producer-group"]], told["x-opt-check-count"])
            halves = found.setdefault(number, (*story, []))
            assert halves[:2] == story, (halves, told)
            halves[2].append((names.index(told["x-opt-original-address"]), number_of(message)))
            halves[2].sort()
    return found


def letter(history: str, message: bytes, txn_ids: dict[int, bytes]) -> Letter:
    """What a dead letter tells; transactions by their numbers."""
    told = Message(message).annotations
    names = [address(history, number) for number in range(ADDRESSES)]
    numbers = {txn_id: number for number, txn_id in txn_ids.items()}
    txn_id = told.get("x-opt-txn-id")
    return Letter(
        names.index(told["x-opt-original-address"]),
        told["x-opt-delivery-count"],
        told["x-opt-last-error"],
        None if txn_id is None else numbers[bytes(txn_id)],
    )


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
             where producer_group = %s and next_check_at is not null and checks < most_checks""".encode(),
        [producer_group],
    )


def exhaust(connection: psycopg.Connection[Any], history: str, txn_ids: list[bytes]) -> None:
    """An interval passes after their last checks, and after those of no others."""
    rows = connection.execute(
        f"""update {SCHEMA}.txn set next_check_at = now() where checks >= most_checks and producer_group = any(%s)
            returning uuid_send(id)""".encode(),
        [[producer_group(history, each) for each in range(GROUPS + ADDRESSES)]],
    )
    found = {txn_id for (txn_id,) in rows}
    assert found == set(txn_ids), f"had all checks: {found}, not {txn_ids}"


def undecided(connection: psycopg.Connection[Any], txn_ids: list[bytes]) -> list[bytes]:
    rows = connection.execute(
        f"select uuid_send(id) from {SCHEMA}.txn where uuid_send(id) = any(%s)".encode(), [txn_ids]
    )
    return [txn_id for (txn_id,) in rows]


def halves_of(connection: psycopg.Connection[Any], history: str, queue: int) -> dict[int, list[int]]:
    """The ids of each message at the address of a queue: the one that was posted, and those that were replayed."""
    rows = connection.execute(
        f"""select h.id, h.message from {SCHEMA}.half h join {SCHEMA}.address a on a.id = h.address_id
             where a.name = %s order by h.id""".encode(),
        [address(history, POLICIES[queue].address)],
    )
    found: dict[int, list[int]] = {}
    for half_id, message in rows:
        if message != MALFORMED:
            found.setdefault(number_of(message), []).append(half_id)
    return found


def outcomes(connection: psycopg.Connection[Any], txn_ids: list[bytes]) -> dict[bytes, str]:
    """As the view tells them afterwards (H15)."""
    rows = connection.execute(
        f"select uuid_send(txn_id), outcome from {SCHEMA}.outcome where txn_id = any(%s)".encode(),
        [[UUID(bytes=txn_id) for txn_id in txn_ids]],
    )
    return dict(rows.fetchall())
