"""Faults of every kind, planted by SQL in the store that :mod:`tests.benchmarks.reconciliation` fills (R36)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import psycopg

from store.ids import id_at
from store.tables import SCHEMA
from tests.fix_store_rows import NOW

#: An id as ops of deliveries have them, in SQL.
NEW_OP_ID: Final = """encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid"""
#: No instance, and no group, has this number.
_NOT_THERE: Final = 999_999
#: So many times the halves of one fault are taken of those that wait, and of those that are retired.
_SLICES: Final = 5
#: The time from a half's commit to what is planted as older than it.
_TOO_EARLY: Final = timedelta(minutes=30)
_LATE: Final = timedelta(hours=2)

_MESSAGE: Final = "'\\x005375a0027b7d'"
_HALF: Final = f"insert into {SCHEMA}.half (id, txn_id, address_id, message, posted_at)"
_ENTRY: Final = f"insert into {SCHEMA}.entry (group_id, id, half_id)"
_DECISION: Final = f"insert into {SCHEMA}.op (id, decision, txn_id, posted, instance_id, decided_at)"
_OP: Final = f"insert into {SCHEMA}.op (id, decision, half_ids, group_ids, instance_id, decided_at)"


def fewest(count: int) -> int:
    """The halves that a store must have, a tenth of them waiting, for ``count`` faults of each kind."""
    return 2 * _SLICES * count * 10


def _beside(digit: str) -> str:
    """The id of an op beside the one of a transaction: a variant that no other has."""
    return f"overlay(txn_id::text placing '{digit}' from 20)::uuid"


def _slice(table: str, number: int, count: int) -> str:
    return f"(select * from {table} where (place - 1) / {count} = {number}) {table}_{number}"


@contextmanager
def _unguarded(connection: psycopg.Connection, *, twice: bool) -> Iterator[None]:
    """The store refuses deletions: its triggers do not see them. ``twice``: and a transaction two decisions: its key of
    ops is an index afterwards."""
    connection.execute("set session_replication_role = replica")
    if twice:
        connection.execute(f"alter table {SCHEMA}.op drop constraint op_pkey".encode())
    yield
    if twice:
        connection.execute(f"create index on {SCHEMA}.op (id)".encode())


def plant(url: str, count: int, *, twice: bool) -> dict[str, int]:
    """Break ``count`` deliveries or transactions in each way; how many findings of each kind that must give. ``twice``:
    some are decided twice, so the store has no primary key of ops any more.

    A half that is gone is missed by its commit and by the op that retired it; and where expected and accounted
    deliveries differ, the address and hour do not balance.
    """
    with psycopg.connect(url) as connection, _unguarded(connection, twice=twice):
        for name, also in (("waiting", "id in (select half_id from"), ("retired", "id < (select min(half_id) from")):
            # of the two halves of a transaction one, so that each fault has a transaction of its own
            connection.execute(
                f"create temporary table {name} as select id, txn_id, address_id, posted_at,"
                f" (row_number() over (order by id))::int as place from {SCHEMA}.half"
                f" where id % 2 = 1 and txn_id is not null"
                f" and {also} {SCHEMA}.entry) order by id limit {_SLICES * count}".encode()
            )
        waiting, retired = (
            [_slice(name, number, count) for number in range(_SLICES)] for name in ("waiting", "retired")
        )
        hours = connection.execute(
            "select count(*) from (select distinct address_id, (id >> 22) / 3600000"
            f" from (select * from {waiting[0]} union all select * from {retired[1]}) touched) hours".encode()
        ).fetchone()
        assert hours is not None
        for statement in (*_of_deliveries(waiting, retired), *_of_transactions(retired, twice=twice)):
            done = connection.execute(statement.encode())
            assert done.rowcount == count, (done.rowcount, statement)
    return {
        "dead-letter-mismatch": count,
        **({"double-decision": count} if twice else {}),
        "double-delivery": count,
        "lost-delivery": count,
        "order": count,
        "orphan-entry": count,
        "orphan-op": 2 * count,
        "overdue": count,
        "phantom-delivery": count,
        "stuck-delivery": count,
        "unbalanced": count + hours[0],
    }


def _of_deliveries(waiting: list[str], retired: list[str]) -> Iterator[str]:
    lost, buried, early, stuck, _ = waiting
    gone, twice, _, _, other = retired
    for rows in (lost, buried, early):
        yield f"delete from {SCHEMA}.entry where half_id in (select id from {rows})"
    yield f"delete from {SCHEMA}.half where id in (select id from {gone})"
    yield f"update {SCHEMA}.entry set lease = {_NOT_THERE} where half_id in (select id from {stuck})"
    covers = "array[id], array[address_id], 1"
    yield f"{_OP} select {_beside('a')}, 'accept', {covers}, posted_at from {twice}"
    # each letter that is missing is of a moment of its own
    moment = f"'{NOW - _LATE}'::timestamptz + place * interval '1 ms'"
    yield f"{_OP} select {_beside('b')}, 'dead-letter', {covers}, {moment} from {buried}"
    yield f"{_OP} select {_beside('c')}, 'accept', {covers}, posted_at - interval '{_TOO_EARLY}' from {early}"
    yield f"{_ENTRY} select {_NOT_THERE}, id, id from {other}"


def _of_transactions(retired: list[str], *, twice: bool) -> Iterator[str]:
    _, _, decided, surplus, other = retired
    if twice:
        yield (
            f"{_DECISION} select id, decision, txn_id, posted, instance_id, decided_at from {SCHEMA}.op"
            f" where posted is not null and id in (select txn_id from {decided})"
        )
    # a half more than its transaction posted; its id is no other's
    new = f"{id_at(NOW - _LATE)} + (place::bigint << 22) + {1 << 20}"
    yield f"{_HALF} select {new}, txn_id, address_id, {_MESSAGE}, posted_at from {surplus}"
    yield f"{_ENTRY} select address_id, {new}, {new} from {surplus}"
    # rolled back, and to be delivered
    new += " + 1"
    yield f"{_DECISION} select {_beside('d')}, 'rollback', {_beside('d')}, 1, 1, posted_at from {other}"
    yield f"{_HALF} select {new}, {_beside('d')}, address_id, {_MESSAGE}, posted_at from {other}"
    yield f"{_ENTRY} select address_id, {new}, {new} from {other}"
    yield (
        f"insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired,"
        f" producer_group, checks, next_check_at) select {_beside('e')}, 1, 'bench', posted_at, posted_at, 1, 0,"
        f" 'shop', 1, posted_at from {other}"
    )
