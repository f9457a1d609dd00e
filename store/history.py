"""Query the history of a transaction or a message (H15): its decision, and what it posted and retired.

A transaction's messages are found by its id, between its declare and its decision, in an index that says of some pages
together which transactions they are of: a post writes nothing to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, select, text

from store.archive.reading import FRONT_OCTETS
from store.errors import LACKS_PERMISSION, StoreUnavailable, boundary
from store.ids import ADMINISTRATION, TxnIds, declared_at, id_at
from store.tables import SCHEMA, op, store_identity, txn, user_account
from store.traces import SLACK, Step, archived_steps, steps

if TYPE_CHECKING:
    from store.archive.reading import Archived

#: Octets of a message that are read at first.
HEAD_OCTETS: Final = 4096
#: Messages that are read at one time.
_PAGE: Final = 100
_HIGHEST_ID: Final = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Decided:
    """The op of a transaction.

    ``retired``: the deliveries that it accepted, as (half, group); ``archived``: it was read from the archive.
    """

    decision: str
    reason: str | None
    posted: int
    retired: tuple[tuple[int, int], ...]
    instance_id: int | None
    decided_at: datetime
    archived: bool = False


@dataclass(frozen=True, kw_only=True)
class Message:
    """A half.

    ``address``: its name, or ``#`` and the id if that is not known; ``head``: the first of its ``octets`` octets;
    ``archived``: it was read from the archive.
    """

    half_id: int
    txn_id: UUID | None
    address_id: int
    address: str
    posted_at: datetime
    octets: int
    head: bytes
    archived: bool = False


def begin(connection: Connection) -> datetime:
    """Begin an SQL transaction that reads the store as of this moment, which is returned."""
    with boundary():
        connection.rollback()
        connection.execute(text("set transaction isolation level repeatable read, read only"))
        now: datetime = connection.execute(select(func.now())).scalar_one()
    return now


def genuine(connection: Connection, txn_id: UUID) -> bool | None:
    """Whether this store has generated ``txn_id``, for a client without a login or for one of its users.

    None: the database role may not read the secret, as a read-only role; later queries then read another snapshot.
    """
    try:
        with boundary():
            secret = connection.execute(select(store_identity.c.secret)).scalar_one()
            users = connection.scalars(select(user_account.c.id)).all()
    except StoreUnavailable as error:
        if error.sqlstate != LACKS_PERMISSION:
            raise
        connection.rollback()
        return None
    ids = TxnIds(0, bytes(secret))
    return any(ids.genuine(txn_id.bytes, user) for user in (None, *users))


def decision(connection: Connection, txn_id: UUID, archive: Archived | None = None) -> Decided | None:
    """Return the decision about ``txn_id``; None: it has none, or its decision was dropped."""
    found = decisions(connection, [txn_id]).get(txn_id)
    return found if found is not None or archive is None else _archived_decision(archive, txn_id)


def decisions(connection: Connection, txn_ids: Sequence[UUID]) -> dict[UUID, Decided]:
    """Return the decisions about these transactions, as far as they are kept."""
    with boundary():
        rows = connection.execute(
            select(op).where(op.c.id.in_(txn_ids), op.c.decision.in_(("commit", "rollback")))
        ).all()
    return {
        row.id: Decided(
            decision=row.decision,
            reason=row.reason,
            posted=row.posted,
            retired=tuple(zip(row.half_ids or (), row.group_ids or (), strict=False)),
            instance_id=row.instance_id,
            decided_at=row.decided_at,
        )
        for row in rows
    }


def _archived_decision(archive: Archived, txn_id: UUID) -> Decided | None:
    found = archive.decision(txn_id)
    if found is None:
        return None
    row, retired = found
    return Decided(
        **{name: row[name] for name in ("decision", "reason", "posted", "instance_id", "decided_at")},
        retired=tuple((each["half_id"], each["group_id"]) for each in retired),
        archived=True,
    )


def undecided(connection: Connection, txn_id: UUID) -> dict[str, Any] | None:
    """Return the row of an undecided transaction (table ``txn``)."""
    with boundary():
        found = connection.execute(select(txn).where(txn.c.id == txn_id)).one_or_none()
    return None if found is None else dict(found._mapping)


_MESSAGE = f"""select h.id as half_id, h.txn_id, h.address_id,
           coalesce(a.name, r.name, '#' || h.address_id) as address, h.posted_at,
           octet_length(h.message) as octets, substr(h.message, 1, {HEAD_OCTETS}) as head
      from {SCHEMA}.half h left join {SCHEMA}.address a on a.id = h.address_id
      left join {SCHEMA}.removed_address r on r.id = h.address_id"""


def _messages(connection: Connection, condition: str, **values: object) -> list[Message]:
    with boundary():
        rows = connection.execute(text(f"{_MESSAGE} where {condition}"), values).all()
    return [Message(**{**row._mapping, "head": bytes(row.head)}) for row in rows]


def _archived(rows: Iterable[Mapping[str, Any]], octets: int = HEAD_OCTETS) -> Iterator[Message]:
    """Yield archived messages. ``rows``: of :meth:`store.archive.reading.Archived.halves`; ``octets``: of a head."""
    for row in rows:
        yield Message(
            half_id=row["id"],
            txn_id=None if row["txn_id"] is None else UUID(row["txn_id"]),
            address_id=row["address_id"],
            address=row["address"] or f"#{row['address_id']}",
            posted_at=row["posted_at"],
            octets=row["octets"],
            head=row["front"][:octets],
            archived=True,
        )


def _all(live: Iterable[Message], archived: Iterable[Message]) -> list[Message]:
    """Merge messages by id: one that had to stay when its day was dropped is in the store and in the archive."""
    found = {each.half_id: each for each in (*archived, *live)}
    return [found[half_id] for half_id in sorted(found)]


def message(connection: Connection, half_id: int, archive: Archived | None = None) -> Message | None:
    """Return the message with this id, from the store or the archive."""
    found = _messages(connection, "h.id = :id", id=half_id)
    if not found and archive is not None:
        found = list(_archived(archive.halves(half_id, half_id + 1)))
    return found[0] if found else None


def messages(connection: Connection, half_ids: Sequence[int]) -> dict[int, Message]:
    """Return the messages of ``half_ids`` that the store has, by id."""
    found = _messages(connection, "h.id = any(cast(:ids as int8[]))", ids=list(half_ids))
    return {each.half_id: each for each in found}


def posted(
    connection: Connection, txn_id: UUID, decided: Decided | None, most: int, archive: Archived
) -> list[Message]:
    """Return the first ``most`` messages of the transaction in the store and, if these are not all, in the archive."""
    if decided is None:
        pending = f"select p.half_id from {SCHEMA}.pending_half p where p.txn_id = :txn"
        waiting = f"h.id in ({pending}) order by h.id limit :most"
        return _messages(connection, waiting, txn=txn_id, most=most)
    low, high = max(0, id_at(declared_at(txn_id.bytes) - SLACK)), id_at(decided.decided_at + SLACK)
    inside = "h.id >= :low and h.id < :high and h.txn_id = :txn order by h.id limit :most"
    live = _messages(connection, inside, txn=txn_id, most=most, low=low, high=high)
    if len(live) >= min(decided.posted, most):
        return live
    return _all(live, islice(_archived(archive.halves(low, high, txn_id=txn_id)), most))[:most]


def retired_in(connection: Connection, txn_id: UUID, at: datetime, archive: Archived) -> list[Step]:
    """Return the outcomes of deliveries that a transaction decided ``at``, except those that its commit accepted."""
    own = "o.txn_id = :txn and o.posted is null"
    low, high = at - SLACK, at + SLACK
    return archived_steps(archive.retired_in(txn_id, low, high)) + steps(connection, own, low, high, txn=txn_id)


def holds(connection: Connection, txn_id: UUID, most: int) -> list[tuple[int, int, str]]:
    """Return the first ``most`` deliveries that an undecided transaction has retired.

    Each is half, group, and the outcome if it commits.
    """
    with boundary():
        rows = connection.execute(
            text(
                f"select half_id, group_id, decision from {SCHEMA}.pending_retirement "
                "where txn_id = :txn order by group_id, entry_id limit :most"
            ),
            {"txn": txn_id, "most": most},
        ).all()
    return [(row.half_id, row.group_id, row.decision) for row in rows]


def copies(
    connection: Connection, mark: bytes, at: datetime, address: str | None, archive: Archived | None = None
) -> list[Message]:
    """Return messages written about ``at`` whose annotations contain ``mark``.

    ``address``: where they were written; None: those that a command has replayed.
    """
    where = "coalesce(a.name, r.name) = :address" if address else f"h.id >> 12 & 1023 = {ADMINISTRATION}"
    marked = f"position(cast(:mark as bytea) in substr(h.message, 1, {FRONT_OCTETS})) > 0"
    low, high = max(0, id_at(at - SLACK)), id_at(at + SLACK)
    live = _messages(
        connection,
        f"h.id >= :low and h.id < :high and {where} and {marked} order by h.id",
        low=low,
        high=high,
        mark=mark,
        **({"address": address} if address else {}),
    )
    if archive is None:
        return live
    rows = (row for row in archive.halves(low, high, address=address) if mark in row["front"])
    return _all(live, _archived(row for row in rows if address or _by_administration(row["id"])))


class Written(NamedTuple):
    """When and where a half was written; ``front``: its first octets, which contain its annotations."""

    posted_at: datetime
    address: str
    front: bytes


def written_at(connection: Connection, moments: Sequence[datetime], addresses: Sequence[str]) -> list[Written]:
    """Return the messages written at one of these moments to one of these addresses, by one query of the time span."""
    with boundary():
        rows = connection.execute(
            text(
                f"""select h.posted_at, coalesce(a.name, r.name) as address,
                           substr(h.message, 1, {FRONT_OCTETS}) as front
                      from {SCHEMA}.half h left join {SCHEMA}.address a on a.id = h.address_id
                      left join {SCHEMA}.removed_address r on r.id = h.address_id
                     where h.id >= :low and h.id < :high and h.posted_at = any(cast(:moments as timestamptz[]))
                       and coalesce(a.name, r.name) = any(cast(:addresses as text[]))"""
            ),
            {
                "low": max(0, id_at(min(moments) - SLACK)),
                "high": id_at(max(moments) + SLACK),
                "moments": list(moments),
                "addresses": list(addresses),
            },
        ).all()
    return [Written(row.posted_at, row.address, bytes(row.front)) for row in rows]


def _by_administration(half_id: int) -> bool:
    return half_id >> 12 & 1023 == ADMINISTRATION


def set_aside(
    connection: Connection, mark: bytes, at: datetime, address: str, most: int, archive: Archived
) -> list[Message]:
    """Return the first ``most`` messages, with ``mark`` in their annotations, that an instance wrote to ``address``.

    ``at``: about when they were written.
    """
    low, high = max(0, id_at(at - SLACK)), id_at(at + SLACK)
    live = _messages(
        connection,
        f"""h.id >= :low and h.id < :high and coalesce(a.name, r.name) = :address
            and h.id >> 12 & 1023 <> {ADMINISTRATION}
            and position(cast(:mark as bytea) in substr(h.message, 1, {FRONT_OCTETS})) > 0
          order by h.id limit :most""",
        **{"low": low, "high": high, "mark": mark, "address": address, "most": most},
    )
    rows = (
        row
        for row in archive.halves(low, high, address=address)
        if mark in row["front"] and not _by_administration(row["id"])
    )
    return _all(live, islice(_archived(rows), most))[:most]


def having(
    connection: Connection, octets: Sequence[bytes], since: datetime, until: datetime, archive: Archived
) -> Iterator[Message]:
    """Yield the messages posted in that time whose beginnings contain one of ``octets``, by id.

    All messages of that time are read, in the store and in the archive.
    """
    low, high = (min(max(0, id_at(at)), _HIGHEST_ID) for at in (since, until))
    rows = (row for row in archive.halves(low, high) if any(each in row["front"] for each in octets))
    by_id = attrgetter("half_id")
    both = merge(_live_having(connection, octets, low, high), _archived(rows, FRONT_OCTETS), key=by_id)
    for _, same in groupby(both, by_id):  # a message that had to stay when its day was dropped is in both
        yield next(same)


def _live_having(connection: Connection, octets: Sequence[bytes], low: int, high: int) -> Iterator[Message]:
    marked = " or ".join(
        f"position(cast(:octets_{number} as bytea) in substr(h.message, 1, {FRONT_OCTETS})) > 0"
        for number in range(len(octets))
    )
    values = {f"octets_{number}": each for number, each in enumerate(octets)}
    inside = f"h.id >= :low and h.id < :high and ({marked}) order by h.id limit {_PAGE}"
    while found := _messages(connection, inside, low=low, high=high, **values):
        yield from found
        low = found[-1].half_id + 1
