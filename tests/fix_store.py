"""Rows of the store, for tests of what administration and recovery do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, func, insert, select, text, update

from store.connections import ConnectionId
from store.ids import SLOTS, HalfIds, UuidV7
from store.tables import address, consumer_group, entry, half, heartbeat, instance, op, pending, txn
from store.tables import connection as client_connection
from store.views import pending_half


@dataclass(frozen=True)
class Rows:
    """Each method commits what it writes and gives its id."""

    connection: Connection
    half_ids: HalfIds
    txn_ids: UuidV7

    def _one(self, statement: Any) -> Any:
        value = self.connection.scalar(statement)
        self.connection.commit()
        return value

    def instance(self, *, host: str = "elsewhere", has_beaten: bool = True, **values: object) -> int:
        # From above: an instance that registers takes the lowest that is free.
        lowest = select(func.coalesce(func.min(instance.c.slot), SLOTS) - 1).where(instance.c.slot > SLOTS // 2)
        slot = lowest.scalar_subquery()
        row = {"slot": slot, "host": host, "pid": 1, "process_start": 1, "version": "1", **values}
        number = int(self._one(insert(instance).values(row).returning(instance.c.id)))
        beat = insert(heartbeat).values(instance_id=number, commit_waits_seconds=0.0 if has_beaten else None)
        self._one(beat.returning(heartbeat.c.instance_id))
        return number

    def listed(self, instance_id: int, number: int = 1) -> ConnectionId:
        """A connection that the instance has listed."""
        counts = dict.fromkeys(("sessions", "links", "unsettled", "posted", "delivered"), 0)
        rates = dict.fromkeys(("posted_per_second", "delivered_per_second"), 0.0)
        values = {"host": "10.0.0.9", "container_id": "c", "link_list": [], **counts, **rates}
        row = insert(client_connection).values(instance_id=instance_id, number=number, **values)
        self._one(row.returning(client_connection.c.number))
        return ConnectionId(instance=instance_id, number=number)

    def queue(
        self,
        name: str,
        *,
        group: str = "",
        volatile: int | None = None,
        own: Mapping[str, object] | None = None,
        **values: object,
    ) -> int:
        """The id of its group. ``own``: policies of the group."""
        address_id = self._one(select(address.c.id).where(address.c.name == name))
        if address_id is None:
            address_id = self._one(insert(address).values(name=name, **values).returning(address.c.id))
        row = {"address_id": address_id, "name": group, "instance_id": volatile, **(own or {})}
        return int(self._one(insert(consumer_group).values(row).returning(consumer_group.c.id)))

    def entry(self, group: int, *, txn_id: UUID | None = None, **values: object) -> int:
        """A half at the group's address and its entry; both have the id."""
        half_id = self.half_ids.next()
        address_id = self._one(select(consumer_group.c.address_id).where(consumer_group.c.id == group))
        row = {"id": half_id, "txn_id": txn_id, "address_id": address_id, "message": b"x"}
        self.connection.execute(insert(half).values(row))
        self.connection.execute(insert(entry).values(group_id=group, id=half_id, half_id=half_id, **values))
        self.connection.commit()
        return half_id

    def txn(self, instance_id: int, *, owner: str = "client", posted: int = 2, retired: int = 1) -> UUID:
        txn_id = UUID(bytes=self.txn_ids.next())
        times = {"declared_at": func.now(), "timeout_at": func.now()}
        row = {"id": txn_id, "instance_id": instance_id, "owner": owner, "posted": posted, "retired": retired}
        self.connection.execute(insert(txn).values(**row, **times))
        self.connection.commit()
        return txn_id

    def checkable(self, instance_id: int, *addresses: int, txn_id: UUID | None = None, **values: object) -> UUID:
        """A checkable transaction with a half at each of the addresses: the first in its row, as where each post waits
        for the one before; with ``values``, of its rows ``pending``, none.
        """
        txn_id = txn_id or UUID(bytes=self.txn_ids.next())
        row = {"id": txn_id, "instance_id": instance_id, "owner": "client", "posted": 0, "retired": 0}
        checks = {"producer_group": "shop", "check_immunity_ms": 6000, "check_interval_ms": 30_000, "most_checks": 15}
        times = {"declared_at": func.now(), "timeout_at": func.now(), "next_check_at": func.now(), "connection": 1}
        self.connection.execute(insert(txn).values(**row, **checks, **times))
        for number, address_id in enumerate(addresses):
            half_id = self.half_ids.next()
            posted = {"id": half_id, "txn_id": txn_id, "address_id": address_id, "message": b"x"}
            self.connection.execute(insert(half).values(posted))
            if number or values:
                waits = {"txn_id": txn_id, "half_id": half_id, "address_id": address_id}
                self.connection.execute(insert(pending).values(**waits, **values))
            else:
                in_row = {"half_ids": [half_id], "address_id": address_id}
                self.connection.execute(update(txn).where(txn.c.id == txn_id).values(in_row))
        self.connection.commit()
        return txn_id

    def address_of(self, group: int) -> int:
        return int(self._one(select(consumer_group.c.address_id).where(consumer_group.c.id == group)))

    def pending(self, txn_id: UUID) -> list[int]:
        """The halves that wait for the decision."""
        found = self.connection.scalars(
            select(pending_half.c.half_id).where(pending_half.c.txn_id == txn_id).order_by("half_id")
        )
        halves = list(found)
        self.connection.rollback()
        return halves

    def decision(
        self, decision: str, *, txn_id: UUID | None = None, posted: int = 0, half_ids: Sequence[int] | None = None
    ) -> UUID:
        txn_id = txn_id or UUID(bytes=self.txn_ids.next())
        row = {"id": txn_id, "decision": decision, "txn_id": txn_id, "posted": posted, "half_ids": half_ids}
        self.connection.execute(insert(op).values(row))
        self.connection.commit()
        return txn_id

    def entries(self, group: int) -> list[tuple[int, int, str | None]]:
        """(lease, attempts, failed) of the group's entries in order."""
        rows = self.connection.execute(
            select(entry.c.lease, entry.c.attempts, entry.c.failed)
            .where(entry.c.group_id == group)
            .order_by(entry.c.id)
        ).all()
        self.connection.rollback()
        return [(row.lease, row.attempts, row.failed) for row in rows]

    def ops(self) -> list[Any]:
        rows = self.connection.execute(select(op).order_by(op.c.id)).all()
        self.connection.rollback()
        return list(rows)

    def now(self) -> datetime:
        value: datetime = self._one(select(func.now()))
        return value


@pytest.fixture
def rows(database: Connection) -> Rows:
    return Rows(database, HalfIds(0), UuidV7())


def until_it_waits(connection: Connection, name: str) -> None:
    """Until the session of this application name waits for a lock; a minute at most."""
    waits = text("select count(*) from pg_stat_activity where application_name = :name and wait_event_type = 'Lock'")
    limit = datetime.now(UTC) + timedelta(seconds=60)
    while not connection.scalar(waits, {"name": name}):
        connection.rollback()
        assert datetime.now(UTC) < limit
    connection.rollback()
