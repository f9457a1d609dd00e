"""Books of the store that :mod:`tests.benchmarks.reconciliation` fills, with faults of every kind planted (R36)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from store.ids import id_at
from store.tables import SCHEMA
from tests.fix_store_rows import NOW

#: The group whose consumer keeps a book; each message of the store is at one of the queues.
CONSUMER: Final = 3
#: Rows that are written at once.
BOOK_PIECE: Final = 100_000
_PLANTED_AT: Final = NOW - timedelta(hours=2)
_AMOUNT: Final = Decimal("1.00")
_OTHER: Final = Decimal("2.00")
#: {"amount":1.00}
_BODY: Final = "'\\x005375a00f7b22616d6f756e74223a312e30307d'::bytea"
#: The message-id of a message of :func:`message_of`.
_MESSAGE_ID: Final = "convert_from(substring(message from 9 for 12), 'UTF8')"
_SCHEMA: Final = pa.schema(
    {"message_id": pa.string(), "at": pa.timestamp("us", tz="UTC"), "amount": pa.decimal128(10, 2)}
)

#: ``message_id, at, amount``
_Row = tuple[str | None, datetime | None, Decimal]


def message_of(message_id: str) -> str:
    """SQL: a message with the amount of the books; ``message_id`` is SQL, of twelve characters."""
    return f"'\\x005373c00f01a10c'::bytea || convert_to({message_id}, 'UTF8') || {_BODY}"


def plant_in_books(url: str, folder: Path, count: int, queues: int) -> tuple[list[Path], Counter[str]]:
    """Descriptions of a producer's book, of ``queues`` queues, and of a consumer's; and how many findings of each kind
    they must give. Each way to differ is planted ``count`` times; the store is healthy but for the messages that this
    adds.
    """
    _plant_messages(url, count)
    addresses = ", ".join(f'"queue-{number}"' for number in range(1, queues + 1))
    with psycopg.connect(url) as connection:
        producer = _described(folder, "orders", f'addresses = [{addresses}]\ncommitted_when = "true"\n{_EQUAL}')
        write_rows(folder / "orders.parquet", _SCHEMA, _produced(connection, count))
        consumer = _described(folder, "billing", f'group = "queue-{CONSUMER}"\n{_EQUAL}')
        write_rows(folder / "billing.parquet", _SCHEMA, _consumed(connection, count))
    kinds = (
        *("lost-message", "phantom-message", "undecided-but-known", "repeated-key", "unclear-row", "unparsable-key"),
        *("consumed-not-processed", "processed-not-consumed", "processed-twice"),
    )
    # a row and a message without a key; a value that a row of each book has
    return [producer, consumer], Counter(
        {**dict.fromkeys(kinds, count), "null-key": 2 * count, "different-content": 2 * count}
    )


_EQUAL: Final = '[[equal]]\ncolumn = "amount"\nmessage = "body:$.amount"\n'


def _described(folder: Path, name: str, more: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\nformat = "parquet"\nkey = "message_id"\nmessage_key = "message-id"\ntime = "at"\n'
        f'options.path = "{name}.parquet"\n{more}',
        encoding="utf-8",
    )
    return path


def _plant_messages(url: str, count: int) -> None:
    """Undecided ones, whose time has not come; and committed ones that say no key, or are broken."""
    half = f"{id_at(_PLANTED_AT)} + (n::bigint << 22) + {1 << 21}"
    txn = (
        f"(lpad(to_hex({int(_PLANTED_AT.timestamp() * 1000)} + n), 12, '0')"
        " || '7b008' || lpad(to_hex(n), 15, '0'))::uuid"
    )
    known = message_of("'open-' || lpad(n::text, 7, '0')")
    insert = f"insert into {SCHEMA}.half (id, txn_id, address_id, message, posted_at) select"
    at = f"'{_PLANTED_AT}'::timestamptz + n * interval '1 ms'"
    every = f"from generate_series(1, {count}) n"
    with psycopg.connect(url) as connection:
        for statement in (
            f"insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired,"
            f" producer_group, checks, next_check_at) select {txn}, 1, 'bench', {at}, {at} + interval '1 day', 1, 0,"
            f" 'shop', 1, {at} + interval '1 day' {every}",
            f"{insert} {half}, {txn}, 1, {known}, {at} {every}",
            f"{insert} {half} + 1, null, 1, {_BODY}, {at} {every}",
            f"{insert} {half} + 2, null, 1, '\\x005373c0ff', {at} {every}",
            *(
                f"insert into {SCHEMA}.entry (group_id, id, half_id)"
                f" select 1, {half} + {place}, {half} + {place} {every}"
                for place in (1, 2)
            ),
        ):
            connection.execute(statement.encode())


def _produced(connection: psycopg.Connection, count: int) -> Iterator[_Row]:
    of = f"select {_MESSAGE_ID}, posted_at from {SCHEMA}.half where octet_length(message) = 40"
    # phantom-message, different-content and repeated-key
    yield from _spoilt(connection, f"{of} and substring(message from 9 for 5) <> 'open-' order by id", count)
    for number in range(1, count + 1):
        yield f"lost-{number}", _PLANTED_AT, _AMOUNT
        yield f"open-{number:07}", _PLANTED_AT, _AMOUNT
        yield None, _PLANTED_AT, _AMOUNT
        yield f"unclear-{number}", None, _AMOUNT


def _consumed(connection: psycopg.Connection, count: int) -> Iterator[_Row]:
    of = f"select {_MESSAGE_ID}, posted_at from {SCHEMA}.half where address_id = {CONSUMER} and id"
    waiting = f"(select half_id from {SCHEMA}.entry where group_id = {CONSUMER})"
    # consumed-not-processed, different-content and processed-twice
    yield from _spoilt(connection, f"{of} not in {waiting} order by id", count)
    for key, at in connection.execute(f"{of} in {waiting} order by id limit {count}".encode()):
        yield key, at, _AMOUNT  # processed-not-consumed


def _spoilt(connection: psycopg.Connection, query: str, count: int) -> Iterator[_Row]:
    """A row for each of the keys and times of ``query``; but the first ``count`` have none, the next another amount,
    and the next two rows."""
    with connection.cursor("keys") as cursor:
        cursor.itersize = BOOK_PIECE
        cursor.execute(query.encode())
        for place, (key, at) in enumerate(cursor):
            planted = place // count
            if planted == 0:
                continue
            yield key, at, _OTHER if planted == 1 else _AMOUNT
            if planted == 2:
                yield key, at, _AMOUNT


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[tuple[object, ...]]) -> None:
    """A Parquet file of ``rows``, with the columns of ``schema`` in its order, of which a piece is in memory."""
    more = iter(rows)
    with pq.ParquetWriter(path, schema) as file:
        while piece := list(islice(more, BOOK_PIECE)):
            columns = zip(*piece, strict=True)
            file.write_table(pa.table(dict(zip(schema.names, columns, strict=True)), schema))
