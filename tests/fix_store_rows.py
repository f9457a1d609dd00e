"""Rows of a store as the service would have left them, made in memory: healthy, and then broken on purpose.

:class:`StoreRows` keeps the rows of each table as dictionaries; ``frames`` gives them to Spark, ``write`` puts them
into a database with COPY. What it makes follows the batch: a plain transaction that rolls back leaves an op and no
halves, a dead letter is a half of its own, and so on.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from store import tables
from store.database import connected
from store.ids import declared_at, id_at, moment_of
from store.partitions import make_days

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The end of all that is made; the run's own clock must not be far after it.
NOW = datetime.now(UTC).replace(microsecond=0)

Row = dict[str, Any]


def _variable(code: int, content: bytes) -> bytes:
    """A string, symbol or binary value: the one-octet form where it fits."""
    if len(content) < 256:
        return bytes((code, len(content))) + content
    return bytes((code + 0x10,)) + len(content).to_bytes(4, "big") + content


def encode_message(
    *, message_id: str | None = None, properties: dict[str, str | int] | None = None, body: object = None
) -> bytes:
    """An AMQP message with a header, and JSON in one data section."""
    encoded = b"\x00\x53\x70\xc0\x02\x01\x41"
    if message_id is not None:
        fields = _variable(0xA1, message_id.encode())
        encoded += b"\x00\x53\x73\xd0" + (len(fields) + 4).to_bytes(4, "big") + (1).to_bytes(4, "big") + fields
    if properties is not None:
        pairs = b""
        for name, value in properties.items():
            pairs += _variable(0xA1, name.encode())
            pairs += (
                b"\x81" + value.to_bytes(8, "big", signed=True)
                if isinstance(value, int)
                else _variable(0xA1, value.encode())
            )
        encoded += (
            b"\x00\x53\x74\xd1" + (len(pairs) + 4).to_bytes(4, "big") + (2 * len(properties)).to_bytes(4, "big") + pairs
        )
    return encoded + b"\x00\x53\x75" + _variable(0xA0, json.dumps(body).encode())


class StoreRows:
    """Builds the rows of a store; all moments are aware, ids as :mod:`store.ids` makes them."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.rows: dict[str, list[Row]] = {
            name: []
            for name in (
                *("instance", "address", "consumer_group", "group_read", "removed_address", "removed_group"),
                *("half", "op", "entry", "txn"),
            )
        }
        self._numbers: dict[str, int] = {}
        self._ops: dict[str, Row] = {}
        self.rows["instance"].append(
            {
                "id": 1,
                "slot": 0,
                "host": "test",
                "pid": 1,
                "process_start": 1,
                "version": "0",
                "started_at": NOW - timedelta(days=30),
                "ended_at": None,
            }
        )

    def _next(self, what: str) -> int:
        self._numbers[what] = self._numbers.get(what, 0) + 1
        return self._numbers[what]

    def address(self, name: str, *, routing: str = "queue", created_at: datetime = NOW - timedelta(days=30)) -> int:
        """An address; a queue with its default group, whose id is the address's."""
        number = self._next("address")
        self.rows["address"].append(
            {
                "id": number,
                "name": name,
                "routing": routing,
                "kind": "normal",
                "on_expiry": "drop",
                "max_attempts": 16,
                "origin": "use",
                "instance_id": None,
                "created_at": created_at,
                "retry": "immediate",
            }
        )
        if routing == "queue":
            self.group(number, "", created_at=created_at)
        return number

    def group(
        self, address: int, name: str, *, created_at: datetime = NOW - timedelta(days=30), instance: int | None = None
    ) -> int:
        number = self._next("consumer_group")
        self.rows["consumer_group"].append(
            {
                "id": number,
                "address_id": address,
                "name": name,
                "instance_id": instance,
                "created_at": created_at,
                "holder": 0,
            }
        )
        return number

    def groups_of(self, address: int, at: datetime) -> list[int]:
        return [
            row["id"] for row in self.rows["consumer_group"] if row["address_id"] == address and row["created_at"] <= at
        ]

    def uuid_v7(self, at: datetime) -> str:
        milliseconds = int(at.timestamp() * 1000)
        value = milliseconds << 80 | 7 << 76 | 2 << 62 | self.random.getrandbits(62)
        return str(uuid.UUID(int=value))

    def half(
        self,
        address: int,
        at: datetime,
        txn_id: str | None = None,
        message: bytes = b"\x00\x53\x75\xa0\x02{}",
        *,
        slot: int = 1,
    ) -> int:
        number = id_at(at) + (slot << 12) + self._next("half") % 4096
        self.rows["half"].append(
            {"id": number, "txn_id": txn_id, "address_id": address, "message": message, "posted_at": at}
        )
        return number

    def op(
        self,
        decision: str,
        at: datetime,
        *,
        op_id: str | None = None,
        txn_id: str | None = None,
        reason: str | None = None,
        posted: int | None = None,
        covers: Sequence[tuple[int | None, int | None]] | None = None,
    ) -> Row:
        row: Row = {
            "id": op_id or self.uuid_v7(at),
            "decision": decision,
            "txn_id": txn_id,
            "reason": reason,
            "posted": posted,
            "half_ids": [half for half, _ in covers] if covers else None,
            "group_ids": [group for _, group in covers] if covers else None,
            "instance_id": 1,
            "decided_at": at,
        }
        self.rows["op"].append(row)
        return row

    def decide(
        self,
        txn_id: str,
        decision: str,
        at: datetime,
        posted: int,
        covers: Sequence[tuple[int | None, int | None]] | None = None,
        reason: str | None = None,
    ) -> Row:
        return self.op(decision, at, op_id=txn_id, txn_id=txn_id, posted=posted, covers=covers, reason=reason)

    def entry(self, group: int, half: int, **values: Any) -> Row:
        row: Row = {
            "group_id": group,
            "id": half,
            "half_id": half,
            "lease": 0,
            "attempts": values.get("failures", 0),
            "failures": 0,
            "priority": 4,
            "acquired": False,
            "available_at": None,
            "expires_at": None,
            "failed": None,
            "annotations": None,
        }
        row.update(values)
        self.rows["entry"].append(row)
        return row

    def undecided(
        self,
        txn_id: str,
        declared_at: datetime,
        *,
        producer_group: str | None = "shop",
        timeout_at: datetime | None = None,
        checks: int = 0,
        next_check_at: datetime | None = None,
        posted: int = 1,
    ) -> Row:
        row: Row = {
            "id": txn_id,
            "instance_id": 1,
            "owner": "container@127.0.0.1:40000",
            "declared_at": declared_at,
            "timeout_at": timeout_at or declared_at + timedelta(seconds=120),
            "posted": posted,
            "retired": 0,
            "producer_group": producer_group,
            "checks": checks,
            "next_check_at": next_check_at,
        }
        self.rows["txn"].append(row)
        return row

    def committed(
        self, addresses: list[int], declared_at: datetime, *, seconds: float = 0.05, messages: list[bytes] | None = None
    ) -> tuple[str, list[int]]:
        """A transaction with one half an address, decided after ``seconds``; no entries: see :meth:`deliver`."""
        txn_id = self.uuid_v7(declared_at)
        decided_at = declared_at + timedelta(seconds=seconds)
        halves = [
            self.half(address, decided_at, txn_id, *([messages[place]] if messages else []))
            for place, address in enumerate(addresses)
        ]
        self.decide(txn_id, "commit", decided_at, len(halves))
        return txn_id, halves

    def deliver(self, half: int, group: int, at: datetime) -> None:
        """Let the group come to one of the ends, or of the waiting places, of a delivery."""
        chance = self.random.random()
        covers = [(half, group)]
        if chance < 0.45:
            # A consumer declares before there is anything to take.
            txn_id = self.uuid_v7(at - timedelta(minutes=self.random.choice((0, 0, 0, 30))))
            self.decide(txn_id, "commit", at + timedelta(seconds=1), 0, covers)
        elif chance < 0.75:
            if chance < 0.50:
                self.op("modify", at + timedelta(seconds=1), covers=covers)
            if chance < 0.52:
                self.op("release", at + timedelta(seconds=2), covers=covers)
            self.op("accept", at + timedelta(seconds=3), covers=covers)
        elif chance < 0.78:
            self.op("expire", at + timedelta(seconds=60), covers=covers)
        elif chance < 0.82:
            letters = self._dead_letters(group)
            self.op("reject", at + timedelta(seconds=1), covers=covers, reason="app:bad-order")
            self.op("dead-letter", at + timedelta(seconds=1), covers=covers, reason="app:bad-order")
            letter = self.half(letters, at + timedelta(seconds=1))
            self.entry(self.groups_of(letters, NOW)[0], letter)
        elif chance < 0.83:
            self.op("purge", at + timedelta(seconds=5), covers=covers)
        elif chance < 0.92:
            # a group that has had later ones has had it, too; after an hour it must have, and the run may end late
            self.entry(group, half, acquired=at < NOW - timedelta(minutes=5))
        elif chance < 0.96:
            self.entry(group, half, lease=1, failures=self.random.choice((0, 0, 1, 3)))
        elif chance < 0.98:
            self.entry(group, half, available_at=NOW + timedelta(hours=1), failures=1)
        else:
            self.op("reject", at + timedelta(seconds=1), covers=covers, reason="app:bad-order")
            self.entry(group, half, failed="app:bad-order", failures=1)

    def _dead_letters(self, group: int) -> int:
        found = next(row for row in self.rows["consumer_group"] if row["id"] == group)
        address = next(row for row in self.rows["address"] if row["id"] == found["address_id"])
        name = f"%DLQ%{found['name'] or address['name']}"
        for row in self.rows["address"]:
            if row["name"] == name:
                return int(row["id"])
        return self.address(name)

    def healthy(self, count: int, *, begin: datetime = NOW - timedelta(hours=6), end: datetime = NOW) -> StoreRows:
        """``count`` transactions and posts, spread over the time from ``begin`` to ``end``."""
        orders, invoices = self.address("orders"), self.address("invoices")
        prices = self.address("prices", routing="topic")
        self.group(prices, "billing")
        self.group(prices, "late", created_at=begin + (end - begin) / 2)
        self.group(prices, "volatile", created_at=begin + (end - begin) / 3, instance=1)
        # An address that went with its owner: its halves stay.
        gone = self._next("address")
        for place in range(count):
            at = begin + (end - begin) * (place + self.random.random()) / count
            chance = self.random.random()
            where = self.random.choices((orders, invoices, prices, gone), (6, 3, 2, 1), k=self.random.randint(1, 3))
            if chance < 0.10:
                txn_id = self.uuid_v7(at)
                self.decide(txn_id, "rollback", at + timedelta(seconds=0.1), len(where), reason="client")
            elif chance < 0.16:
                txn_id = self.uuid_v7(at)
                for address in where:
                    self.half(address, at, txn_id)
                self.decide(txn_id, "rollback", at + timedelta(seconds=30), len(where), reason="checker")
            elif chance < 0.18 and place > count * 0.9:
                txn_id = self.uuid_v7(at)
                self.half(orders, at, txn_id)
                self.undecided(txn_id, at, next_check_at=NOW + timedelta(hours=1))
            elif chance < 0.25:
                half = self.half(orders, at)
                self._deliver_all(half, orders, at)
            else:
                seconds = self.random.expovariate(5)
                if at + timedelta(seconds=seconds) >= NOW:
                    seconds = 0.0
                _, halves = self.committed(where, at, seconds=seconds)
                for half, address in zip(halves, where, strict=True):
                    self._deliver_all(half, address, at + timedelta(seconds=seconds))
        return self

    def _deliver_all(self, half: int, address: int, at: datetime) -> None:
        for group in self.groups_of(address, at):
            self.deliver(half, group, at)

    def with_keys(self) -> StoreRows:
        """Without the halves and ops whose id is there before: the store's primary keys refuse them."""
        for name in ("half", "op"):
            self.rows[name] = list({row["id"]: row for row in reversed(self.rows[name])}.values())[::-1]
        return self

    def write(self, url: str) -> None:
        """Put all rows into the migrated database at ``url``."""
        days = {moment_of(row["id"]).date() for row in self.rows["half"]}
        days |= {declared_at(uuid.UUID(row["id"]).bytes).date() for row in self.rows["op"]}
        with connected(url) as made:
            for day in days:
                make_days(made, [day])
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            for name, rows in self.rows.items():
                if not rows:
                    continue
                columns = list(rows[0])
                statement = sql.SQL("copy {}.{} ({}) from stdin").format(
                    sql.Identifier(tables.SCHEMA),
                    sql.Identifier(name),
                    sql.SQL(", ").join(map(sql.Identifier, columns)),
                )
                with cursor.copy(statement) as copy:
                    for row in rows:
                        copy.write_row([row[column] for column in columns])

    def frames(self, spark: SparkSession) -> dict[str, DataFrame]:
        """The same rows as Spark would read them."""
        from spark.archived import numbers_of
        from spark.schemas import TABLES

        result: dict[str, DataFrame] = {}
        for name, rows in self.rows.items():
            table = TABLES[name]
            frame = spark.createDataFrame(
                [
                    tuple(row.get(column, 0 if column == "written_xid" else None) for column in table.schema.names)
                    for row in rows
                ],
                table.schema,
            )
            result[name] = frame.withColumns(numbers_of(table, table.words))
        return result
