"""``spark.readStream.format("halfop-changes")``: halves and ops as they come, each of them once (R33).

**Decision.** A sequence of ids would lose what commits late. Each row has the SQL transaction that wrote it
(``written_xid``), and all below ``pg_snapshot_xmin`` have ended: so a batch is a range of these numbers, below which
nothing can come any more, and a batch that is read again has the same rows. The numbers are those of one server: its
system identifier and the database's name are in every offset, and another store is refused.

A row says, too, what the store has of its half and that half's transaction at the moment of reading, so that nothing
has to be remembered from batch to batch. Options: ``credentials`` as of :mod:`spark.source`, and ``rows``, the most of
a batch; one SQL transaction is never split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from spark.ledger import TIME_SHIFT
from spark.source import Session, database_url
from store.ids import EPOCH_MS
from store.tables import SCHEMA

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

FORMAT: Final = "halfop-changes"
#: The least range of SQL transactions that is counted at once, and how much wider the next is where that has few rows.
_LEAST: Final = 1024
_WIDER: Final = 4
_WRITTEN: Final = "(written_xid::text)::bigint"

#: ``what``: ``half``; ``op``; ``delivery``, one that an op covers; ``range``, which says what was read, even if it is
#: nothing. ``state`` is of the half: committed, rolled-back, open, or null if it is nowhere; ``listed``: of an open
#: one, whether its transaction is known as undecided. ``judged``: nothing of it can have been dropped (H16).
CHANGE: Final = StructType(
    [
        StructField("what", StringType()),
        StructField("decision", StringType()),
        StructField("op_id", StringType()),
        StructField("txn_id", StringType()),
        StructField("half_id", LongType()),
        StructField("group_id", IntegerType()),
        StructField("address_id", IntegerType()),
        StructField("state", StringType()),
        StructField("listed", BooleanType()),
        StructField("judged", BooleanType()),
        StructField("decided_at", TimestampType()),
        StructField("sent_at", TimestampType()),
        StructField("since", LongType()),
        StructField("until", LongType()),
    ]
)

#: What retention has dropped: halves below ``half``, and transactions below ``txn``, are not judged.
_KEPT: Final = f"""kept as materialized (
  select coalesce((extract(epoch from day::timestamp) * 1000)::bigint - {EPOCH_MS} << {TIME_SHIFT}, 0) as half,
         coalesce(rpad(lpad(to_hex((extract(epoch from day::timestamp) * 1000)::bigint), 12, '0'), 32, '0'),
                  repeat('0', 32))::uuid as txn
    from (select max(kept_from) as day from {SCHEMA}.retention) r)"""
_HALF: Final = f"""
select 'half', null::text, null::text, h.txn_id::text, h.id, null::int4, h.address_id,
       case when h.txn_id is null or o.decision = 'commit' then 'committed' when o.id is null then 'open'
            else 'rolled-back' end,
       o.id is null and exists (select from {SCHEMA}.txn t where t.id = h.txn_id),
       h.id >= k.half and (h.txn_id is null or h.txn_id >= k.txn),
       null::timestamptz, null::timestamptz, null::int8, null::int8
  from {SCHEMA}.half h cross join kept k left join {SCHEMA}.op o on o.id = h.txn_id
 where (h.written_xid::text)::bigint >= {{since}} and (h.written_xid::text)::bigint < {{until}}"""
_OP: Final = f"""
select 'op', o.decision, o.id::text, null::text, null::int8, null::int4, null::int4, null::text, null::bool, null::bool,
       o.decided_at, null::timestamptz, null::int8, null::int8
  from {SCHEMA}.op o
 where (o.written_xid::text)::bigint >= {{since}} and (o.written_xid::text)::bigint < {{until}}
union all
select 'delivery', o.decision, o.id::text, h.txn_id::text, d.half_id, d.group_id, h.address_id,
       case when h.id is null then null when h.txn_id is null or c.decision = 'commit' then 'committed'
            when c.id is null then 'open' else 'rolled-back' end,
       c.id is null and exists (select from {SCHEMA}.txn t where t.id = h.txn_id),
       d.half_id >= k.half and (h.txn_id is null or h.txn_id >= k.txn),
       o.decided_at, case when h.txn_id is null then h.posted_at else c.decided_at end, null::int8, null::int8
  from {SCHEMA}.op o cross join kept k cross join lateral unnest(o.half_ids, o.group_ids) d(half_id, group_id)
  left join {SCHEMA}.half h on h.id = d.half_id left join {SCHEMA}.op c on c.id = h.txn_id
 where (o.written_xid::text)::bigint >= {{since}} and (o.written_xid::text)::bigint < {{until}}"""
_READ: Final = {"half": _HALF, "op": _OP}

#: Indexes, whatever the planner thinks of tables that are small today.
_BY_INDEX: Final = tuple(
    f"set {{}} {name} = off" for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
)

# The first SQL transaction in the range that wrote a row, the last up to which there are no more rows than wanted, and
# how many there are in all.
_COUNT: Final = f"""
with found as (
  select {_WRITTEN} as xid, count(*) as rows from {SCHEMA}.half
   where {_WRITTEN} >= %(since)s and {_WRITTEN} < %(until)s group by 1
  union all
  select {_WRITTEN}, sum(1 + coalesce(cardinality(half_ids), 0)) from {SCHEMA}.op
   where {_WRITTEN} >= %(since)s and {_WRITTEN} < %(until)s group by 1),
counted as (select xid, sum(rows) as rows from found group by xid),
running as (select xid, sum(rows) over (order by xid) as total from counted)
select min(xid), max(xid) filter (where total <= %(most)s), coalesce(max(total), 0)::int8 from running"""

_STORE: Final = """
select s.system_identifier::text, current_database(), pg_snapshot_xmin(pg_current_snapshot())::text::bigint
  from pg_control_system() s"""


def read_sql(table: str, since: int, until: int) -> str:
    """Return the query of a task: the rows of one table that a range of SQL transactions has written."""
    where = {"since": int(since), "until": int(until)}
    columns = ", ".join(CHANGE.names)
    mark = ["'range'", *["null"] * (len(CHANGE) - 3), str(where["since"]), str(where["until"])]
    return (
        f"with {_KEPT} select * from (select {', '.join(mark)} union all {_READ[table].format(**where)}) c({columns})"
    )


class OtherStore(Exception):
    """The offsets are of another store, or of this one before it was restored; the message tells which."""


class Changes(DataSource):
    """The data source ``halfop-changes``; the module's docstring lists its options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return CHANGE

    def streamReader(self, schema: StructType) -> ChangesReader:
        return ChangesReader(self.options.get("credentials"), int(self.options["rows"]))


class Slice(InputPartition):
    """A partition: the rows of one table that the SQL transactions from ``since`` on, below ``until``, have written."""

    def __init__(self, table: str, since: int, until: int) -> None:
        super().__init__((table, since, until))
        self.table = table
        self.since = since
        self.until = until


class ChangesReader(DataSourceStreamReader):
    """Its offsets are ``system``, ``database`` and ``xid``: what the SQL transactions below it wrote is read."""

    def __init__(self, credentials: str | None, most: int) -> None:
        self._credentials = credentials
        self._most = most
        self._connection: psycopg.Connection | None = None
        self._width = _LEAST

    def initialOffset(self) -> dict[str, Any]:
        system, database, _ = self._store()
        return {"system": system, "database": database, "xid": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset up to which the next batch reads.

        :raises OtherStore: ``start`` is not of this store.
        """
        system, database, ended = self._store()
        check_offset(start, system=system, database=database, ended=ended)
        return {**start, "xid": self._until(start["xid"], ended)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        since, until = start["xid"], end["xid"]
        return [Slice(table, since, until) for table in _READ] if since < until else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        with Session(self._credentials) as session:
            # before the snapshot is taken: from here on retention empties no day
            session.do(f"lock table {SCHEMA}.half, {SCHEMA}.op in access share mode")
            for setting in _BY_INDEX:
                session.do(setting.format("local"))
            with session.stream(read_sql(partition.table, partition.since, partition.until)) as reader:
                yield from reader

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _until(self, since: int, ended: int) -> int:
        """Up to where there are at most as many rows as a batch may have; ``since`` if there is none."""
        while True:
            until = min(since + self._width, ended)
            first, fits, total = self._one(_COUNT, {"since": since, "until": until, "most": self._most})
            if total < self._most and until < ended:
                self._width *= _WIDER
                continue
            if not total:
                return since
            if total > self._most:
                until = (first if fits is None else fits) + 1
                self._width = max(until - since, _LEAST)
            return until

    def _store(self) -> tuple[Any, ...]:
        return self._one(_STORE, {})

    def _one(self, sql: str, values: Mapping[str, object]) -> tuple[Any, ...]:
        if self._connection is None:
            # imported where it is needed: the tasks import this module, too
            import psycopg

            self._connection = psycopg.connect(
                database_url(self._credentials),
                application_name="coordinator watch of outcomes",
                autocommit=True,
                keepalives_idle=30,
            )
            for setting in _BY_INDEX:
                self._connection.execute(setting.format("session").encode())
        found = self._connection.execute(sql.encode(), values).fetchone()
        assert found is not None
        return found


def check_offset(offset: Mapping[str, Any], *, system: str, database: str, ended: int) -> None:
    """Check an offset against the store.

    :raises OtherStore: the offset is not of this database, or is ahead of it.
    """
    if offset["system"] != system or offset["database"] != database:
        raise OtherStore(
            f"it is of the database {offset['database']} of server {offset['system']},"
            f" and this is {database} of server {system}"
        )
    if offset["xid"] > ended:
        raise OtherStore(
            f"it has counted up to SQL transaction {offset['xid']}, and this server is at {ended}: it was restored"
        )
