"""Find the deliveries of messages: their ops, and the entries where they wait, in every consumer group.

No index on the path of a message serves this. An id contains its time, and the ops about a message are near it in time
as a rule; so ops are searched around a moment, in growing rings, and the search ends as soon as nothing can be missing.
The ids of ops are generated when they are written, except for commits: the id of a transaction is from its declare, and
it may have retired messages that were posted later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import Connection, text

from store.errors import boundary
from store.ids import LONGEST_UNDECIDED, id_at, moment_of
from store.partitions import op_id_at
from store.tables import HELD, SCHEMA
from store.views import STATE, THROUGH

if TYPE_CHECKING:
    from store.archive.reading import Archived

#: The most that the clocks of instances and of the database may differ.
SLACK: Final = timedelta(minutes=1)
#: The width of the first ring, and how much wider the next one is.
_FIRST: Final = timedelta(seconds=1)
_WIDER: Final = 8
#: Before a ring that is wider than this, entries are searched whose ids are not those of their halves.
_NEAR: Final = timedelta(minutes=1)
#: Decisions that end a delivery.
ENDS: Final = ("commit", "accept", "expire", "dead-letter", "purge")
#: Entries with the ids of their halves, looked up one by one, even if PostgreSQL plans for an empty table.
_BY_KEY: Final = f"""select e.* from unnest(cast(:halves as int8[])) u(id)
  cross join lateral (select * from {SCHEMA}.entry e where e.group_id = g.id and e.id = u.id offset 0) e"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A delivery that an op covers.

    ``txn_id``: the transaction in which it was decided; ``archived``: it was read from the archive.
    """

    half_id: int
    group_id: int
    decision: str
    reason: str | None
    txn_id: UUID | None
    instance_id: int | None
    decided_at: datetime
    archived: bool = False


@dataclass(frozen=True, kw_only=True)
class Place:
    """An entry, where a message waits now.

    ``state`` as in the view ``entries``; ``held_by``: the undecided transaction that has retired it.
    """

    half_id: int
    group_id: int
    state: str
    attempts: int
    failures: int
    available_at: datetime | None
    expires_at: datetime | None
    failed: str | None
    instance_id: int | None
    held_by: UUID | None


@dataclass(frozen=True, kw_only=True)
class Group:
    """A consumer group that got the messages of its address. ``moved``: by a seek, so that an end may be taken back."""

    id: int
    address_id: int
    moved: bool


@dataclass(frozen=True, kw_only=True)
class Deliveries:
    """The deliveries of some messages: ``steps`` in order of time, and the ``places`` where they wait.

    ``names``: address and name of all their groups.
    """

    steps: tuple[Step, ...]
    places: tuple[Place, ...]
    names: dict[int, tuple[str, str]]


def deliveries(
    connection: Connection,
    addresses: Mapping[int, int | None],
    committed_at: datetime,
    now: datetime,
    archive: Archived | None = None,
) -> Deliveries:
    """Find the deliveries of messages that were committed at ``committed_at``, in all groups of their addresses.

    ``addresses``: by half; None: the message is not kept any more.
    """
    return _Search(connection, addresses, committed_at, now, archive).run()


def group_names(
    connection: Connection, group_ids: Sequence[int], archive: Archived | None = None
) -> dict[int, tuple[str, str]]:
    """Return the address and the name of each group, also of removed ones, as far as they are known."""
    with boundary():
        rows = connection.execute(
            text(
                f"""select u.id, coalesce(a.name, r.name, '') as address, coalesce(g.name, x.name, '') as name
                      from unnest(cast(:ids as int4[])) u(id)
                      left join {SCHEMA}.consumer_group g on g.id = u.id
                      left join {SCHEMA}.removed_group x on x.id = u.id
                      left join {SCHEMA}.address a on a.id = coalesce(g.address_id, x.address_id)
                      left join {SCHEMA}.removed_address r on r.id = coalesce(g.address_id, x.address_id)"""
            ),
            {"ids": list(group_ids)},
        ).all()
    known = {} if archive is None else archive.names
    return {row.id: (row.address, row.name) if row.address else known.get(row.id, ("", "")) for row in rows}


def archived_steps(rows: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Convert ``rows`` of :class:`store.archive.reading.Archived`."""
    return [
        Step(
            half_id=row["half_id"],
            group_id=row["group_id"],
            decision=row["decision"],
            reason=row["reason"],
            txn_id=None if row["txn_id"] is None else UUID(row["txn_id"]),
            instance_id=row["instance_id"],
            decided_at=row["decided_at"],
            archived=True,
        )
        for row in rows
    ]


def steps(connection: Connection, condition: str, since: datetime, until: datetime, **values: object) -> list[Step]:
    with boundary():
        rows = connection.execute(
            text(
                f"""select u.half_id, u.group_id, o.decision, o.reason, o.instance_id, o.decided_at,
                           case when o.posted is null then o.txn_id else o.id end as txn_id
                      from {SCHEMA}.op o cross join lateral unnest(o.half_ids, o.group_ids) u(half_id, group_id)
                     where o.id >= :low and o.id < :high and {condition}"""
            ),
            {"low": op_id_at(since), "high": op_id_at(until), **values},
        ).all()
    return [Step(**row._mapping) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A step of the search: times not searched before, on both sides of the middle. ``until``: the end of the ring."""

    parts: tuple[tuple[datetime, datetime], ...]
    width: timedelta
    until: datetime


def rings(first: datetime, last: datetime, since: datetime, until: datetime) -> Iterator[Ring]:
    """Yield growing rings from the middle, ``first`` to ``last``, to the bounds ``since`` and ``until``."""
    low = high = None
    width = _FIRST
    while low != since or high != until:
        before, after = max(since, first - width), min(until, last + width)
        parts = [(before, after)] if low is None or high is None else [(before, low), (high, after)]
        low, high = before, after
        yield Ring(parts=tuple(part for part in parts if part[0] < part[1]), width=width, until=after)
        width *= _WIDER


class _Search:
    """Searches the deliveries of messages until nothing can be missing."""

    def __init__(
        self,
        connection: Connection,
        addresses: Mapping[int, int | None],
        committed_at: datetime,
        now: datetime,
        archive: Archived | None = None,
    ) -> None:
        self._connection = connection
        self._archive = archive
        self._addresses = addresses
        self._halves = sorted(addresses)
        self._committed_at = committed_at
        self._now = now
        self._groups = self._all_groups()
        self._first_entry = max(self._halves[0], id_at(committed_at - SLACK))
        #: until when groups that are removed now may have had the messages; None: until the end
        self._gone = self._gone_until()
        self._steps: list[Step] = []
        self._places: dict[tuple[int, int], Place] = {}
        self._all_searched = False

    def run(self) -> Deliveries:
        self._search(_BY_KEY)  # most entries have the ids of their halves
        first, last = moment_of(self._halves[0]), moment_of(self._halves[-1])
        first, last = min(first, self._committed_at), max(last, self._committed_at)
        first = max(first, self._committed_at - SLACK)  # no delivery is decided about before its commit
        since = first - LONGEST_UNDECIDED - SLACK
        for ring in rings(first, last, since, max(last, self._now) + SLACK):
            if ring.width > _NEAR:
                self._search_all()
            for low, high in ring.parts:
                covers = "o.half_ids && cast(:halves as int8[]) and u.half_id = any(cast(:halves as int8[]))"
                if self._archive is not None:
                    self._steps += archived_steps(self._archive.deliveries(self._halves, low, high))
                self._steps += steps(self._connection, covers, low, high, halves=self._halves)
            if self._complete(ring.until):
                break
        self._steps.sort(key=lambda step: (step.decided_at, step.half_id, step.group_id))
        seen = {step.group_id for step in self._steps} | {group for _, group in self._places} | self._groups.keys()
        return Deliveries(
            steps=tuple(self._steps),
            places=tuple(self._places[key] for key in sorted(self._places)),
            names=group_names(self._connection, sorted(seen), self._archive),
        )

    def _all_groups(self) -> dict[int, Group]:
        """Return the groups that exist now, and did when the messages were committed."""
        with boundary():
            rows = self._connection.execute(
                text(
                    f"""select g.id, g.address_id, s.group_id is not null as moved
                          from {SCHEMA}.consumer_group g left join {SCHEMA}.seek s on s.group_id = g.id
                         where g.address_id = any(cast(:addresses as int4[])) and g.created_at <= :committed"""
                ),
                {"addresses": self._known(), "committed": self._committed_at + SLACK},
            ).all()
        return {row.id: Group(**row._mapping) for row in rows}

    def _gone_until(self) -> datetime | None:
        if None in self._addresses.values() or not self._groups:
            return None
        with boundary():
            gone: datetime | None = self._connection.scalar(
                text(
                    f"select max(removed_at) from {SCHEMA}.removed_group "
                    "where address_id = any(cast(:addresses as int4[]))"
                ),
                {"addresses": self._known()},
            )
        return gone or self._committed_at - SLACK

    def _known(self) -> list[int]:
        return sorted({each for each in self._addresses.values() if each is not None})

    def _search_all(self) -> None:
        """Search entries whose ids are not those of their halves: all entries of the groups that got theirs with the
        commit, or later.
        """
        if not self._all_searched:
            self._all_searched = True
            if self._open():
                self._search(f"select * from {SCHEMA}.entry e where e.group_id = g.id and e.id >= :first")

    def _search(self, entries: str) -> None:
        with boundary():
            rows = self._connection.execute(
                text(
                    f"""select e.half_id, e.group_id, {STATE} as state, e.attempts, e.failures, e.available_at,
                               e.expires_at, e.failed, case when e.lease > 0 then e.lease end as instance_id,
                               t.txn_id as held_by
                          from {SCHEMA}.consumer_group g {THROUGH} cross join lateral ({entries}) e
                          left join lateral (select p.txn_id from {SCHEMA}.pending_retirement p
                            where p.group_id = e.group_id and p.entry_id = e.id limit 1) t on e.lease = {HELD}
                         where g.id = any(cast(:groups as int4[])) and e.half_id = any(cast(:halves as int8[]))"""
                ),
                {"groups": list(self._groups), "halves": self._halves, "first": self._first_entry},
            ).all()
        self._places |= {(row.half_id, row.group_id): Place(**row._mapping) for row in rows}

    def _open(self) -> set[tuple[int, int]]:
        """Return the deliveries for which neither an end nor an entry was found."""
        ended = {(step.half_id, step.group_id) for step in self._steps if step.decision in ENDS}
        expected = {
            (half_id, group.id)
            for half_id, address_id in self._addresses.items()
            for group in self._groups.values()
            if group.address_id == address_id
        }
        return expected - ended - self._places.keys()

    def _complete(self, until: datetime) -> bool:
        """Whether ops after ``until`` cannot cover these deliveries any more."""
        if self._gone is None or until < self._gone + SLACK or self._open():
            return False
        if any(group.moved for group in self._groups.values()):
            return False
        if any(place.attempts or place.failed for place in self._places.values()):
            return False
        return all(step.decided_at + SLACK <= until for step in self._steps)
