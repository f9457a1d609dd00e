"""Large messages: an SQL transaction of several statements writes each piece by piece, and PostgreSQL joins it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from store.commit.parts import NO_UUID
from store.spool import Octets
from store.tables import SCHEMA

#: the table in which a large message is put together
_PIECES = "pg_temp.coordinator_piece"
# not compressed, as in the half; PostgreSQL 15 cannot say it with the column
MAKE_PIECES = f"""do $$ begin
  if to_regclass('{_PIECES}') is null then
    create temporary table coordinator_piece (number int4, octets bytea) on commit delete rows;
    alter table {_PIECES} alter column octets set storage external;
  end if;
end $$"""
CLEAR_PIECES = f"truncate {_PIECES}"
ADD_PIECE = f"insert into {_PIECES} values ($1::int4, $2::bytea)"
JOIN_PIECES = (
    f"insert into {SCHEMA}.half (id, txn_id, address_id, message) "
    f"select $1::int8, nullif($2::uuid, {NO_UUID}), $3::int4, string_agg(octets, '' order by number) from {_PIECES}"
)
#: a prefix, then the message of another half from some octet on
COPY_HALF = (
    f"insert into {SCHEMA}.half (id, txn_id, address_id, message) "
    f"select $1::int8, nullif($2::uuid, {NO_UUID}), $3::int4, $4::bytea || substring(message from $6::int4 + 1) "
    f"from {SCHEMA}.half where id = $5::int8"
)


class Step(NamedTuple):
    """One statement."""

    name: bytes
    sql: str
    parameters: Sequence[bytes | None] = ()


class LargeHalf(NamedTuple):
    id: int
    txn_id: bytes
    address_id: int
    message: Octets


class CopiedHalf(NamedTuple):
    """``prefix``, then the message of the half ``source`` from octet ``start`` on."""

    id: int
    txn_id: bytes
    address_id: int
    prefix: bytes
    source: int
    start: int
