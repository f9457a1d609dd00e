"""Undecided checkable transactions, written into a store as a service that was killed leaves them; and the checks of an
instance without its wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, select, update

from coordinator.check_back import Checks
from store.embedded.running import running_url
from store.ids import SLOTS, HalfIds, UuidV7
from store.questions.checks import Due
from store.tables import txn
from tests.fix_service import Service
from tests.fix_store import Rows
from tests.fix_store_driver import ME, Asking, Truth

#: of Rows.checkable
GROUP = "shop"
#: the address of Truth
QUEUE = 1

#: no instance has this slot
_half_ids = HalfIds(SLOTS - 1)
_txn_ids = UuidV7()

#: Plants a transaction of a producer group, with messages for an address; its txn-id.
Plant = Callable[..., bytes]

_ADDRESS = """
    with made as (insert into coordinator.address (name) values (%(name)s) on conflict do nothing returning id)
    insert into coordinator.consumer_group (address_id, name) select id, '' from made"""
_TXN = """
    insert into coordinator.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired, producer_group,
                                 checks, next_check_at, check_immunity_ms, check_interval_ms, most_checks)
    values (%(txn)s, 0, 'test', now() - interval '1 minute', now(), %(posted)s, 0, %(group)s,
            %(checks)s, now() + %(due)s * interval '1 second', 0, %(interval)s, %(most)s)"""
_HALF = """
    with half as (insert into coordinator.half (id, txn_id, address_id, message)
                  select %(half)s, %(txn)s, id, %(message)s from coordinator.address where name = %(name)s
                  returning id, txn_id, address_id)
    insert into coordinator.pending (txn_id, half_id, address_id) select txn_id, id, address_id from half"""


def plant(
    connection: psycopg.Connection[Any],
    group: str,
    address: str,
    messages: Sequence[bytes],
    *,
    checks: int = 0,
    due: float = 0.0,
    interval_ms: int = 3_600_000,
    most: int = 15,
) -> bytes:
    """``due``: seconds from now. ``checks``: sent before. The connection has to commit it."""
    txn = UUID(bytes=_txn_ids.next())
    values: dict[str, Any] = {"txn": txn, "group": group, "name": address, "posted": len(messages)}
    values |= {"checks": checks, "due": due, "interval": interval_ms, "most": most}
    connection.execute(_ADDRESS.encode(), values)
    connection.execute(_TXN.encode(), values)
    _half_ids.advance()
    for message in messages:
        connection.execute(_HALF.encode(), {**values, "half": _half_ids.next(), "message": message})
    return txn.bytes


@pytest.fixture
def planted(service: Service) -> Plant:
    """In the store of the module's service."""

    def plant_here(group: str, address: str, *messages: bytes, **terms: Any) -> bytes:
        with psycopg.connect(running_url(service.data_dir)) as connection:
            return plant(connection, group, address, messages, **terms)

    return plant_here


def due(rows: Rows, *, seconds: float = -60, instance: int = ME, halves: int = 1, **values: object) -> UUID:
    """A transaction that is to be checked so many seconds from now; its connection is gone unless one is given."""
    connection = rows.connection
    txn_id = rows.checkable(instance, *[QUEUE] * halves)
    at = rows.now() + timedelta(seconds=seconds)
    connection.execute(
        update(txn).where(txn.c.id == txn_id).values({"next_check_at": at, "connection": None, **values})
    )
    connection.commit()
    return txn_id


def rows_of(connection: Connection) -> list[Any]:
    found = list(connection.execute(select(txn)))
    connection.rollback()
    return found


def counts(connection: Connection) -> dict[UUID, int]:
    return {row.id: row.checks for row in rows_of(connection)}


class Link:
    """A checker that notes what it is sent."""

    def __init__(self, number: int = 1, credit: int = 10) -> None:
        self.group = GROUP
        self.number = number
        self.credit = credit
        self.coming = 0
        self.most_octets = 0
        self.sent: list[Due] = []
        self.looks = 0
        #: called before a check is noted
        self.sending: Callable[[], object] = lambda: None

    @property
    def room(self) -> int:
        return self.credit - self.coming

    def send(self, due: Due, octets: bytes) -> None:
        assert self.room > 0
        self.sending()
        self.credit -= 1
        self.sent.append(due)

    def none_due(self) -> None:
        self.looks += 1


class Checking:
    """The checks of an instance, with links instead of the wire."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.loop = asking.loop
        self.commit = SimpleNamespace(rows=0)
        instance: Any = SimpleNamespace(
            loop=asking.loop, queries=asking.queries, instance_id=ME, commit=self.commit, traces=None
        )
        decisions: Any = None
        self.checks = Checks(instance, decisions)

    def asks(self) -> bool:
        """Whether its questions can be asked, and none is under way."""
        return self.asking.queries.connection.idle

    def attach(self, *links: Link) -> None:
        for link in links:
            self.checks.attached(link)
        for link in links:
            self.checks.ready(link)


@pytest.fixture
def checking(asking: Asking, truth: Truth) -> Checking:
    return Checking(asking)
