"""Query the figures of the metrics (H19): counts of what waits now, and decisions from a position on.

What each question costs follows what waits, or what was decided since the last time; never what is kept.
"""

from __future__ import annotations

import copy
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, func, select, text

from store import migrations, runs, watched
from store.counts import BY_STATE, Statistics
from store.database import BY_INDEX, IN_ORDER, Patience, connected
from store.errors import SchemaMismatch, StoreError, boundary
from store.ids import EPOCH_MS
from store.partitions import days_ahead
from store.reasons import DISCHARGED, OF_NO_INSTANCE
from store.recovery import BEATING, READ_ONLY
from store.runs import Stored
from store.tables import SCHEMA, WRITTEN, heartbeat, instance, op
from store.views import STATE, THROUGH
from store.watched import WatchState

#: The most entries of one group that are counted; the others are estimated.
MOST_COUNTED = 100_000
#: Groups and addresses that have a figure of their own: the largest.
MOST_NAMED = 100
#: Upper ends of the ranges of the times from declare to decision, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
#: SQL transactions whose decisions one query reads.
_STEP = 10_000

#: The reason of a decision that no instance made, and no application (X3): an operator's.
BY_HAND = "by-hand"
#: Decisions and reasons that are counted separately.
MOST_REASONS = 50
#: The other reasons, and those that are not words of ours.
OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class State:
    """Whether the service can work with the store."""

    #: it has the schema of this version
    schema: bool
    #: a standby, or what is set to read only: no instance can say that it is alive
    only_reads: bool = False
    instances_alive: int = 0
    #: silent, and given up by no other instance
    instances_silent: int = 0
    #: days after today that have their partitions; -1: not even today
    days_ahead: int = -1


@dataclass(frozen=True, kw_only=True)
class GroupFigures:
    """The counts of a consumer group's entries; ``address`` None: of all groups that are not among the largest."""

    address: str | None
    group: str | None
    ready: int
    inflight: int
    scheduled: int
    failed: int
    #: how many of the groups have more than :data:`MOST_COUNTED`: their ``ready`` is partly estimated
    estimated: int


class PausedFigures(NamedTuple):
    """A consumer group that an operator has paused, and for how long."""

    address: str
    group: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AddressFigures:
    """A count by address; ``address`` None: of all that are not among the largest."""

    address: str | None
    count: int
    oldest_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """Transactions without a decision, and their halves."""

    plain: int
    checkable: int
    oldest_seconds: float
    #: sent for those that are undecided now
    checks: int
    #: checkable ones whose check is due: no checker with credit is there, or all are busy
    waiting: int
    #: halves of checkable ones
    halves: tuple[AddressFigures, ...]
    #: deliveries that checkable ones have retired
    retired: int


@dataclass
class Decided:
    """Decisions of transactions that were read."""

    #: by decision and reason
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    #: by decision: how many are in each of the ranges that :data:`BUCKETS` end, and above the last
    times: dict[str, list[int]] = field(default_factory=dict)
    #: by decision: the sum of the times, in seconds
    seconds: dict[str, float] = field(default_factory=dict)


def state(connection: Connection) -> State:
    """Query whether the service can work with the store. Reads the living instances and the partitions."""
    try:
        migrations.check(connection)
    except SchemaMismatch:
        return State(schema=False)
    with boundary():
        found = connection.execute(
            select(func.count().filter(BEATING).label("alive"), func.count().label("all"), READ_ONLY)
            .select_from(instance.join(heartbeat))
            .where(instance.c.ended_at.is_(None))
        ).one()
        connection.rollback()
    return State(
        schema=True,
        only_reads=found.only_reads,
        instances_alive=found.alive,
        instances_silent=found.all - found.alive,
        days_ahead=days_ahead(connection),
    )


def entries(connection: Connection, *, named: int = MOST_NAMED, most: int = MOST_COUNTED) -> tuple[GroupFigures, ...]:
    """Entries by group, the ``named`` largest first, then the rest as one. Costs the entries that wait, up to ``most``
    of each group.
    """
    with boundary():
        connection.execute(IN_ORDER)
        rows = connection.execute(
            text(
                f"""with counted as materialized (
                      select g.id, a.name as address, g.name as consumer_group, c.*, c.counted = :most as more
                        from {SCHEMA}.consumer_group g join {SCHEMA}.address a on a.id = g.address_id
                        {THROUGH}
                       cross join lateral (
                         select count(*) as counted, {BY_STATE}
                           from (select {STATE} as state from {SCHEMA}.entry e
                                  where e.group_id = g.id order by e.id limit :most) e) c),
                    placed as (
                      select *, least(row_number() over (order by counted desc, address, consumer_group), :named + 1)
                                as place from counted)
                    select place, min(address) as address, min(consumer_group) as consumer_group,
                           sum(ready) as ready, sum(inflight) as inflight, sum(scheduled) as scheduled,
                           sum(failed) as failed, array_agg(id) filter (where more) as more
                      from placed group by place order by place"""
            ),
            {"most": most, "named": named},
        ).all()
        statistics = Statistics(connection)
        found = tuple(_figures(statistics, row, named, most) for row in rows)
        connection.rollback()
    return found


def paused(connection: Connection, *, named: int = MOST_NAMED) -> tuple[PausedFigures, ...]:
    """Return the groups that are paused, the longest paused first, ``named`` at most. Reads all groups."""
    with boundary():
        rows = connection.execute(
            text(
                f"""select a.name as address, g.name as consumer_group,
                           extract(epoch from now() - g.paused_at)::float8 as seconds
                      from {SCHEMA}.consumer_group g join {SCHEMA}.address a on a.id = g.address_id
                     where g.paused_at is not null order by g.paused_at, g.id limit :named"""
            ),
            {"named": named},
        ).all()
        connection.rollback()
    return tuple(PausedFigures(row.address, row.consumer_group, max(0.0, row.seconds)) for row in rows)


def _figures(statistics: Statistics, row: Row[Any], named: int, most: int) -> GroupFigures:
    more = row.more or ()
    rest = sum(max(0, round(statistics.entries(group)) - most) for group in more)
    own = row.place <= named
    return GroupFigures(
        address=row.address if own else None,
        group=row.consumer_group if own else None,
        ready=int(row.ready) + rest,
        inflight=int(row.inflight),
        scheduled=int(row.scheduled),
        failed=int(row.failed),
        estimated=len(more),
    )


def dead_letters(connection: Connection, *, named: int = MOST_NAMED) -> tuple[AddressFigures, ...]:
    """Count the entries of the addresses of dead letters, reading up to :data:`MOST_COUNTED` of each group."""
    counted = f"""select a.name as address, sum(c.counted) as counted, 0::float8 as oldest
                    from {SCHEMA}.address a join {SCHEMA}.consumer_group g on g.address_id = a.id
                   cross join lateral (select count(*) as counted from (
                     select from {SCHEMA}.entry e where e.group_id = g.id order by e.id limit {MOST_COUNTED}) e) c
                   where a.origin = 'dead-letter' group by a.id having sum(c.counted) > 0"""
    return _largest(connection, counted, named)


def undecided(connection: Connection, *, named: int = MOST_NAMED) -> Undecided:
    """Count the undecided transactions. Reads these, their halves, and their retirements."""
    with boundary():
        row = connection.execute(
            text(
                f"""select count(*) filter (where producer_group is null) as plain,
                           count(*) filter (where producer_group is not null) as checkable,
                           coalesce(extract(epoch from now() - min(declared_at)), 0) as oldest,
                           coalesce(sum(checks) filter (where producer_group is not null), 0) as checks,
                           count(*) filter (where producer_group is not null and next_check_at <= now()) as waiting,
                           (select count(*) from {SCHEMA}.pending_retirement where not rolled_back) as retired
                      from {SCHEMA}.txn"""
            )
        ).one()
    counted = f"""select a.name as address, p.counted, {_AGE} as oldest
                    from (select h.address_id, sum(h.counted)::int8 as counted, min(h.first) as first
                            from (select address_id, count(*) as counted, min(half_id) as first from {SCHEMA}.pending
                                   group by address_id
                                  union all
                                  select address_id, sum(cardinality(half_ids)), min(half_ids[1]) from {SCHEMA}.txn
                                   where address_id is not null group by address_id) h
                           group by h.address_id) p
                    join {SCHEMA}.address a on a.id = p.address_id"""
    return Undecided(
        plain=row.plain,
        checkable=row.checkable,
        oldest_seconds=max(0.0, float(row.oldest)),
        checks=int(row.checks),
        waiting=row.waiting,
        halves=_largest(connection, counted, named),
        retired=row.retired,
    )


_AGE = f"greatest(0, extract(epoch from clock_timestamp()) - ((p.first >> 22) + {EPOCH_MS}) / 1000.0)::float8"


def _largest(connection: Connection, counted: str, named: int) -> tuple[AddressFigures, ...]:
    with boundary():
        rows = connection.execute(
            text(
                f"""with counted as materialized ({counted}),
                    placed as (select *, least(row_number() over (order by counted desc, address), :named + 1) as place
                                 from counted)
                    select place, min(address) as address, sum(counted) as number, max(oldest) as oldest
                      from placed group by place order by place"""
            ),
            {"named": named},
        ).all()
        connection.rollback()
    return tuple(
        AddressFigures(
            address=row.address if row.place <= named else None, count=int(row.number), oldest_seconds=float(row.oldest)
        )
        for row in rows
    )


def position(connection: Connection) -> int:
    """Return the lowest SQL transaction that may still be running: all below it have ended."""
    with boundary():
        found = connection.scalar(text("select pg_snapshot_xmin(pg_current_snapshot())::text::int8"))
        connection.rollback()
    assert found is not None
    return int(found)


def add_decided(connection: Connection, decided: Decided, since: int, until: int) -> int:
    """Add the decisions that were written by the SQL transactions from ``since`` on, below ``until``, but no more
    than a step: the answer is where the next begins. Costs these decisions.

    Both are positions: what was under way is read later, and each decision once.
    """
    until = min(until, since + _STEP)
    with boundary():
        connection.execute(BY_INDEX)
        rows = connection.execute(
            _DECIDED, {"since": since, "until": until, "bounds": [-each for each in BUCKETS[::-1]]}
        )
        for row in rows:
            told = (row.decision, row.reason)
            if told not in decided.counts and len(decided.counts) >= MOST_REASONS:
                told = (row.decision, OTHER)
            decided.counts[told] = decided.counts.get(told, 0) + row.number
            times = decided.times.setdefault(row.decision, [0] * (len(BUCKETS) + 1))
            times[len(BUCKETS) - row.above] += row.number
            decided.seconds[row.decision] = decided.seconds.get(row.decision, 0.0) + float(row.seconds)
        connection.rollback()
    return until


# Reasons of operators are texts of their own: they are told apart only once they are few.
_DECIDED = text(
    f"""select decision,
               case when by_hand and reason = any('{{{",".join(OF_NO_INSTANCE)}}}') then reason
                    when by_hand then '{BY_HAND}' when coalesce(reason, '') = '' then '{DISCHARGED}'
                    when reason ~ '^[a-z][a-z-]{{0,39}}(: |$)' then split_part(reason, ':', 1)
                    else '{OTHER}' end as reason,
               above, sum(number)::int8 as number, sum(seconds) as seconds
          from (select decision, instance_id is null as by_hand, reason,
                       width_bucket(-seconds, cast(:bounds as float8[])) as above, count(*) as number,
                       sum(seconds) as seconds
                  from (select decision, instance_id, reason,
                               greatest(0, extract(epoch from decided_at)::float8
                                 - ('x' || encode(substr(uuid_send(id), 1, 6), 'hex'))::bit(48)::int8 / 1000.0::float8)
                                 as seconds
                          from {op.fullname}
                         where posted is not null and {WRITTEN} >= :since and {WRITTEN} < :until) timed
                 group by 1, 2, 3, 4) told
         group by 1, 2, 3"""
)


# Counts of values by range, as Prometheus shows them (H19).

#: upper ends of the ranges of batches' sizes, in rows, and of the times of their commits, in seconds
BATCH_ROWS = (1, 10, 100, 1000)
COMMIT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts values by range. ``ends``: the upper end of each range; values above the last have their own."""

    __slots__ = ("_ends", "counts", "total")

    def __init__(self, ends: Sequence[float]) -> None:
        self._ends = ends
        self.counts = [0] * (len(ends) + 1)
        #: the sum of all values
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._ends, value)] += 1
        self.total += value


# Reads the figures for the metrics: each part separately, so that a failure of one does not hide the others.

Found = TypeVar("Found")

_PATIENCE = Patience(connect_seconds=2, statement_seconds=5.0, lock_seconds=1.0)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures that were read at one time; None: a figure could not be read."""

    state: State | None = None
    entries: tuple[GroupFigures, ...] | None = None
    paused: tuple[PausedFigures, ...] | None = None
    dead_letters: tuple[AddressFigures, ...] | None = None
    undecided: Undecided | None = None
    #: the last run of a reconciliation that is stored; None also: there is none
    last_run: Stored | None = None
    #: how far coordinator watch is; None also: it has never run
    watched: WatchState | None = None
    #: since the first look
    decided: Decided
    #: parts that could not be read although the store answered
    failed: tuple[str, ...] = ()
    #: how long it took
    seconds: float = 0.0

    @property
    def all_undecided(self) -> int | None:
        """The number of undecided transactions, plain and checkable."""
        return None if self.undecided is None else self.undecided.plain + self.undecided.checkable

    @property
    def all_letters(self) -> int | None:
        """The number of dead letters, of all addresses."""
        return None if self.dead_letters is None else sum(each.count for each in self.dead_letters)


class FigureReader:
    """Reads the figures. Call ``read()`` from time to time; decisions are counted from the first call on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._decided = Decided()
        #: the decisions below are counted
        self._position: int | None = None
        self._failed: list[str] = []

    def read(self) -> Figures:
        """Read all figures. It never raises: a figure that could not be read is None, and named in ``failed``."""
        begun = time.monotonic()
        self._failed = []
        found = Figures(decided=self._decided)
        try:
            with connected(self._url, application_name="coordinator metrics", patience=_PATIENCE) as connection:
                found = self._read(connection)
        except StoreError:
            pass
        return Figures(
            state=found.state,
            entries=found.entries,
            paused=found.paused,
            dead_letters=found.dead_letters,
            undecided=found.undecided,
            last_run=found.last_run,
            watched=found.watched,
            decided=copy.deepcopy(self._decided),
            failed=tuple(self._failed),
            seconds=time.monotonic() - begun,
        )

    def _read(self, connection: Connection) -> Figures:
        current = state(connection)
        if not current.schema:
            return Figures(state=current, decided=self._decided)
        self._part("decisions", connection, self._count)
        return Figures(
            state=current,
            entries=self._part("entries", connection, entries),
            paused=self._part("paused", connection, paused),
            dead_letters=self._part("dead-letters", connection, dead_letters),
            undecided=self._part("undecided", connection, undecided),
            last_run=self._part("last-run", connection, runs.last),
            watched=self._part("watched", connection, watched.state),
            decided=self._decided,
        )

    def _part(self, name: str, connection: Connection, ask: Callable[[Connection], Found]) -> Found | None:
        try:
            return ask(connection)
        except StoreError:
            self._failed.append(name)
            connection.rollback()
            return None

    def _count(self, connection: Connection) -> None:
        now = position(connection)
        # A server that was restored from a dump begins its count anew.
        if self._position is None or now < self._position:
            self._position = now
        while self._position < now:
            self._position = add_decided(connection, self._decided, self._position, now)
