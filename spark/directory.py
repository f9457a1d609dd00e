"""Read the addresses, consumer groups and open transactions of a store into the driver: their names, and which groups
receive what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from spark.snapshot import read_error
from store.tables import SCHEMA

#: The most time until every coordinator that knows an address has learnt of a new group of it.
GROUP_SETTLING: Final = timedelta(seconds=10)
#: For how long the store may still have entries of a group that was removed.
SWEPT_AFTER: Final = timedelta(hours=1)
#: For how long an instance that ended may still hold entries.
GIVEN_UP_AFTER: Final = timedelta(minutes=2)
#: The separator of address and consumer group in a name as clients give it.
GROUP_SEPARATOR: Final = "::"
#: The beginning of the names of addresses of dead letters (rule D4).
DEAD_LETTERS: Final = "%DLQ%"

#: The tables, and the columns that are read of each.
COLUMNS: Final = {
    "address": "id, name, created_at",
    "consumer_group": "id, address_id, name, created_at, holder",
    "group_read": "group_id, instance_id, read_through",
    "removed_address": "id, name",
    "removed_group": "id, address_id, name, removed_at",
    "instance": "id, ended_at",
    "txn": "id::text as id, timeout_at, producer_group, checks, next_check_at",
}


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction that is listed as undecided; ``producer_group`` is None if only its client can decide it."""

    id: str
    timeout_at: datetime
    producer_group: str | None
    checks: int
    next_check_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A group that receives the messages posted to its address: all, or those posted from a moment on."""

    address_id: int
    group_id: int
    receives_from: datetime | None


@dataclass(frozen=True, kw_only=True)
class NamedGroup:
    """A consumer group, ``gone`` if it was removed.

    ``name``: as the source of a client names it, ``orders`` or ``prices::billing``; several groups may have had it.
    """

    group_id: int
    address_id: int
    name: str
    gone: bool


@dataclass(frozen=True, kw_only=True)
class Directory:
    """Holds the names of existing and removed addresses and groups, the receivers, and the open transactions."""

    addresses: dict[int, str] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    #: groups of addresses whose name is known
    named_groups: tuple[NamedGroup, ...] = ()
    receivers: dict[int, Receiver] = field(default_factory=dict)
    #: groups whose entries may be in the store: the existing ones, and those just removed
    swept_later: frozenset[int] = frozenset()
    open_transactions: dict[str, OpenTransaction] = field(default_factory=dict)
    #: instances that may hold entries: those that run, and those that have just ended
    instances: frozenset[int] = frozenset()
    #: addresses of dead letters
    letters: frozenset[int] = frozenset()
    #: by group that a live instance holds: the id up to which it has read, and so holds all entries
    held: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Mapping[str, Iterable[Mapping[str, Any]]], seen_at: datetime) -> Directory:
        """Build the directory from the rows of each table of ``COLUMNS``, as they are at ``seen_at``.

        A group made with its address receives everything. One added later receives messages posted once every
        coordinator knows it (``GROUP_SETTLING``).
        """
        made = {row["id"]: row["created_at"] for row in rows["address"]}
        groups = list(rows["consumer_group"])
        removed = list(rows["removed_group"])
        holders = {row["id"]: row["holder"] for row in groups}
        instances = frozenset(
            row["id"]
            for row in rows["instance"]
            if row["ended_at"] is None or row["ended_at"] > seen_at - GIVEN_UP_AFTER
        )
        held: dict[int, int] = {}
        for row in rows["group_read"]:
            if row["instance_id"] in instances and holders.get(row["group_id"]) == row["instance_id"]:
                held[row["group_id"]] = max(row["read_through"], held.get(row["group_id"], 0))
        addresses = {row["id"]: row["name"] for table in ("removed_address", "address") for row in rows[table]}
        return cls(
            addresses=addresses,
            letters=frozenset(number for number, name in addresses.items() if name.startswith(DEAD_LETTERS)),
            instances=instances,
            held=held,
            groups={row["id"]: row["name"] for row in (*removed, *groups)},
            named_groups=tuple(
                NamedGroup(
                    group_id=row["id"],
                    address_id=row["address_id"],
                    name=GROUP_SEPARATOR.join(filter(None, (addresses[row["address_id"]], row["name"]))),
                    gone=gone,
                )
                for gone, rows_of in ((True, removed), (False, groups))
                for row in rows_of
                if row["address_id"] in addresses
            ),
            receivers={
                row["id"]: Receiver(
                    address_id=row["address_id"],
                    group_id=row["id"],
                    receives_from=None
                    if row["created_at"] <= made[row["address_id"]]
                    else row["created_at"] + GROUP_SETTLING,
                )
                for row in groups
                if row["address_id"] in made
            },
            swept_later=frozenset(
                [row["id"] for row in groups]
                + [row["id"] for row in removed if row["removed_at"] > seen_at - SWEPT_AFTER]
            ),
            open_transactions={
                row["id"]: OpenTransaction(**{name: row[name] for name in OpenTransaction.__dataclass_fields__})
                for row in rows["txn"]
            },
        )


def read_directory(connection: psycopg.Connection, seen_at: datetime) -> tuple[Directory, dict[str, int]]:
    """Read the directory in the snapshot of ``connection``, and how many rows each of its tables has.

    :raises spark.snapshot.StoreUnreadable: the database does not answer.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    with read_error():
        for table, columns in COLUMNS.items():
            cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
            rows[table] = cursor.execute(f"select {columns} from {SCHEMA}.{table}".encode()).fetchall()
    return Directory.of(rows, seen_at), {table: len(found) for table, found in rows.items()}
