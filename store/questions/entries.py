"""Queries of entries: hold a group, read and lease its entries, and read its messages piece by piece.

``group`` and ``instance`` are ids of rows; entries are read in order, above an id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query, nothing
from store.channels import SHARE
from store.commit.terms import CONDITION, STEPS, Rank
from store.errors import StoreError
from store.libpq import int2, int4, int8
from store.questions.columns import AVAILABLE, DELIVERABLE, ENTRY, MESSAGES, PICKED, SIZE
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from store.asking import Queries, Row

#: An entry: id, half, message or its beginning, attempts, microseconds since 2000 when it expires (0: never),
#: annotations, whether it was delivered to a link, priority, size of a large message (else 0), failures.
EntryRow = tuple[int, int, bytes, int, int, bytes, bool, int, int, int]
#: An entry with one more column, which the query explains.
LoadedRow = tuple[int, int, bytes, int, int, bytes, bool, int, int, int, int]

#: The line of queries of a group that is held whole: entries that are read anew count as read, despite earlier queries.
_LINE = "reads"


class Loaded(NamedTuple):
    """Loaded entries: ``rows`` in order. ``found``: how many there were, of any size; also the last column of a row."""

    rows: Sequence[LoadedRow]
    found: int


class Taken(NamedTuple):
    """The columns of an entry that may have changed before it was leased."""

    attempts: int
    annotations: bytes | None
    acquired: bool
    failures: int


def _loaded(rows: list[Row]) -> Loaded:
    return Loaded(rows, rows[0][-1] if rows else 0)


def _same(rows: list[Row]) -> Sequence[EntryRow]:
    return rows


def _taken(rows: list[Row]) -> dict[int, Taken]:
    return {entry_id: Taken(*rest) for entry_id, *rest in rows}


def _octets(rows: list[Row]) -> bytes | None:
    return rows[0][0] or None if rows else None


class Holder(NamedTuple):
    """The instance that holds a consumer group whole; 0: none does. ``place``: where clients that ask another instance
    for its messages are sent; None: they are served there.
    """

    instance: int
    place: str | None = None


def _holder(rows: list[Row]) -> Holder:
    return Holder(*rows[0][:2])


def _ids(rows: list[Row]) -> list[int]:
    return [row[0] for row in rows]


_ORDER = {Rank.URGENT: "priority desc, id", Rank.NORMAL: "id", Rank.PATIENT: "priority desc, id"}
#: after the entry of id $2 and priority $5
_BEHIND = {
    "id": "id > $2::int8 and priority <= $5::int2",
    "priority desc, id": "priority <= $5::int2 and (priority < $5::int2 or id > $2::int8)",
}


# lock order: 8, then 5, skipping those that are locked
def _picked(rank: Rank, step: str, above: str) -> str:
    return f"""
          select id, half_id, priority from {SCHEMA}.entry
           where group_id = $1::int4 and {CONDITION[rank]} and {step} and id > {above} and {DELIVERABLE}
             and exists (select from free)
           order by {_ORDER[rank]} limit $3::int4 for update skip locked"""


def _lease(rank: Rank) -> str:
    # Step by step, each above its id: one query of the whole rank would read all index entries of consumed messages.
    order, (first, single) = _ORDER[rank], STEPS[rank]
    steps = []
    if first is not None:
        steps.append(f"(select * from ({_picked(rank, first, '($2::int8[])[1]')}) e)")
    if single:
        above = "$2::int8[]" if first is None else "($2::int8[])[2:]"
        by_one = _picked(rank, "priority = s.priority", "s.above")
        steps.append(
            f"(select e.* from unnest(array{list(single)}::int2[], {above}) s(priority, above) "
            f"cross join lateral ({by_one}) e)"
        )
    picked = " union all ".join(steps)
    return f"""with free as (
          select 1 from {SCHEMA}.consumer_group where id = $1::int4 and holder in (0, $5::int4) for share),
        picked as ({picked} limit $3::int4),
        sized as materialized (
          select $1::int4 as group_id, id, message, sum({SIZE}) over (order by {order}) - {SIZE} as before
            from picked {MESSAGES}),
        leased as (
          update {SCHEMA}.entry e set lease = $5::int4 from sized s
           where e.group_id = any(array[s.group_id]) and e.id = s.id and s.before < $4::int8
          returning e.id, e.half_id, e.attempts, e.expires_at, e.annotations, s.message, e.acquired, e.priority,
                    e.failures)
        select {ENTRY}, (select count(*) from picked) from leased order by {order}"""


#: group, ids above which to read (one for each step of the rank), most entries, most bytes, lease. The first entry is
#: leased whatever its size; no entry is if another instance holds the group whole.
LEASE = {rank: Query(f"lease_{rank.name.lower()}".encode(), _lease(rank), _loaded, again=False) for rank in Rank}

#: group, instance, where clients reach it: the instance has consumers of the group, and holds it whole if no other
#: living one has any, and none holds it. Returns the holder, and where clients reach that one if it is another place:
#: then it keeps the group, else it gets a notice if it is another.
#:
#: That an instance has consumers is a row of group_read, through 0. Who writes that row also writes the row of the
#: group: an instance that would hold the group by what it has read before finds another version of it, and does not.
HOLD = Query(  # lock order: 2, then 8
    b"hold",
    f"""with me as materialized (
          select 1 from {SCHEMA}.instance where id = $2::int4 and ended_at is null for key share),
        before as (
          delete from {SCHEMA}.group_read r using {SCHEMA}.consumer_group g
           where r.group_id = $1::int4 and r.instance_id = $2::int4 and r.read_through > 0
             and g.id = $1::int4 and g.holder = 0),
        entered as (
          insert into {SCHEMA}.group_read (group_id, instance_id, read_through) values ($1::int4, $2::int4, 0)
          on conflict do nothing returning 1),
        other as materialized (
          select 1 from {SCHEMA}.instance i
           where i.ended_at is null and i.id <> $2::int4
             and (select r.read_through from {SCHEMA}.group_read r
                   where r.group_id = $1::int4 and r.instance_id = i.id and r.read_through = 0 limit 1) = 0
           limit 1),
        there as materialized (
          select g.ctid as version, g.holder,
                 exists (select from me) and not exists (select from other) as free
            from {SCHEMA}.consumer_group g where g.id = $1::int4),
        held as (
          update {SCHEMA}.consumer_group g
             set holder = case when g.holder = 0 and (select free from there)
                                and g.ctid = (select version from there) then $2::int4 else g.holder end
           where g.id = $1::int4
             and (exists (select from entered) or g.holder = $2::int4 or g.holder = 0 and (select free from there))
          returning g.holder),
        found as materialized (
          select coalesce((select holder from held), (select holder from there), 0) as holder),
        elsewhere as materialized (
          select i.place from found join {SCHEMA}.instance i on i.id = found.holder
           where i.id <> $2::int4 and i.place <> $3::text),
        told as materialized (
          select pg_notify('{SHARE}', ($1::int4)::text) from found
           where holder not in (0, $2::int4) and not exists (select from elsewhere))
        select holder, (select place from elsewhere), (select count(*) from told) from found""",
    _holder,
)

#: group, instance: deletes how far the holder has read, as it has returned all entries
UNREAD = Query(
    b"unread",
    f"delete from {SCHEMA}.group_read where group_id = $1::int4 and instance_id = $2::int4 and read_through > 0",
    nothing,
    must=True,
    line=_LINE,
)

#: instance, groups: the instance has consumers of these groups no longer
LEAVE = Query(
    b"leave",
    f"""delete from {SCHEMA}.group_read r using unnest($2::int4[]) u(g)
         where r.group_id = any(array[u.g]) and r.instance_id = $1::int4 and r.read_through = 0""",
    nothing,
)

#: Like LEASE of normal priority, for the holder of the group: one row records how far it has read, instead of a lease
#: on each entry. The row is inserted, not updated: while an old snapshot is held, each load would read all versions
#: of an updated row. Entries that were read before may be returned again.
READ = Query(
    b"read",
    f"""with picked as (
          select {PICKED} from {SCHEMA}.entry
           where group_id = $1::int4 and id > $2::int8 and lease = 0 and {CONDITION[Rank.NORMAL]} and {AVAILABLE}
           order by id limit $3::int4),
        sized as materialized (
          select p.*, message, sum({SIZE}) over (order by p.id) - {SIZE} as before
            from picked {MESSAGES}),
        held as materialized (
          select 1 from {SCHEMA}.consumer_group where id = $1::int4 and holder = $5::int4 for share),
        moved as (
          insert into {SCHEMA}.group_read (group_id, instance_id, read_through)
          select $1::int4, $5::int4, max(id) from sized where before < $4::int8 and exists (select from held)
          having max(id) is not null on conflict do nothing)
        select {ENTRY}, (select count(*) from picked)
          from sized where before < $4::int8 and exists (select from held) order by id""",
    _loaded,
    line=_LINE,
)


def _browse(rank: Rank) -> str:
    order = _ORDER[rank]
    return f"""with picked as (
          select {PICKED} from {SCHEMA}.entry
           where group_id = $1::int4 and {_BEHIND[order]} and {CONDITION[rank]} and {AVAILABLE}
             and (expires_at is null or expires_at > now())
           order by {order} limit $3::int4),
        sized as materialized (
          select p.*, sum({SIZE}) over (order by {order}) - {SIZE} as before
            from picked {MESSAGES})
        select {ENTRY} from sized {MESSAGES} where before < $4::int8 order by {order}"""


#: group, id and priority after which to read, most entries, most bytes: reads entries, and leases nothing
BROWSE = {rank: Query(f"browse_{rank.name.lower()}".encode(), _browse(rank), _same, aside=True) for rank in Rank}

#: half, offset, octets: reads a piece of a large message
PIECE = Query(
    b"piece",
    f"select substring(message from $2::int4 + 1 for $3::int4) from (select $1::int8 as half_id) {MESSAGES}",
    _octets,
    aside=True,
)

#: group, ids, lease: leases those without a lease, for a consumer that chose them in an answer of BROWSE
TAKE = Query(
    b"take",
    f"""with free as (
          select 1 from {SCHEMA}.consumer_group where id = $1::int4 and holder in (0, $3::int4) for share),
        picked as (
          select group_id, id from {SCHEMA}.entry
           where group_id = $1::int4 and id = any($2::int8[]) and {DELIVERABLE} and exists (select from free)
           order by id for update skip locked)
        update {SCHEMA}.entry e set lease = $3::int4 from picked p
         where e.group_id = any(array[p.group_id]) and e.id = p.id
        returning e.id, e.attempts, e.annotations, e.acquired, e.failures""",
    _taken,
    again=False,
)

#: group, lease: selects the ids of the entries that are leased to the instance
HELD = Query(
    b"held",
    f"select id from {SCHEMA}.entry where group_id = $1::int4 and lease = $2::int4 and failed is null",
    _ids,
    must=True,
)


def hold(
    asked: Queries, group: int, instance: int, here: str | None, answered: Callable[[Holder | StoreError], None]
) -> None:
    """Note that the instance has consumers of the group, and hold it whole if no other one has any.

    Another one that does is asked to share it, unless it has a place for clients that is not ``here``.
    """
    asked.ask(HOLD, [int4(group), int4(instance), None if here is None else here.encode()], answered)


def leave(asked: Queries, instance: int, groups: Sequence[int], answered: Callable[[StoreError | None], None]) -> None:
    """Note that the instance has no consumers of these groups any more."""
    asked.ask(LEAVE, [int4(instance), arrays.int4(groups)], answered)


def unread(asked: Queries, group: int, instance: int) -> None:
    """Note that the instance has returned all entries of a group that it holds whole."""
    asked.ask(UNREAD, [int4(group), int4(instance)], lambda _: None)


def leased(asked: Queries, group: int, instance: int, found: Callable[[list[int]], None]) -> None:
    """Query the ids of entries that are leased to the instance; empty if the store refuses for good."""
    parameters = [int4(group), int4(instance)]
    asked.ask(HELD, parameters, lambda answer: found([] if isinstance(answer, StoreError) else answer))


def read(
    asked: Queries,
    group: int,
    above: int,
    most: int,
    octets: int,
    instance: int,
    found: Callable[[Loaded | StoreError], None],
) -> None:
    """Read the next entries of a group held whole: at most ``most``, and so many ``octets`` of messages."""
    asked.ask(READ, [int4(group), int8(above), int4(most), int8(octets), int4(instance)], found)


def lease(
    asked: Queries,
    rank: Rank,
    group: int,
    above: Sequence[int],
    most: int,
    octets: int,
    instance: int,
    found: Callable[[Loaded | StoreError], None],
) -> None:
    """Lease the next entries of a group one by one, above an id of each step of the rank, within the same bounds."""
    asked.ask(LEASE[rank], [int4(group), arrays.int8(above), int4(most), int8(octets), int4(instance)], found)


def browse(
    asked: Queries,
    rank: Rank,
    group: int,
    behind: tuple[int, int],
    most: int,
    octets: int,
    found: Callable[[Sequence[EntryRow] | StoreError], None],
) -> None:
    """Read available entries after one of this priority and id, held by an instance or not; leases nothing."""
    priority, entry_id = behind
    asked.ask(BROWSE[rank], [int4(group), int8(entry_id), int4(most), int8(octets), int2(priority)], found)


def take(
    asked: Queries,
    group: int,
    ids: Sequence[int],
    instance: int,
    taken: Callable[[dict[int, Taken] | StoreError], None],
) -> None:
    """Lease those of the entries that are still free; ``taken`` receives them by id."""
    asked.ask(TAKE, [int4(group), arrays.int8(ids), int4(instance)], taken)


def piece(asked: Queries, half_id: int, at: int, size: int, found: Callable[[bytes | None], None]) -> None:
    """Read octets of a stored message from an offset on; None if the store has none, or cannot answer."""
    parameters = [int8(half_id), int4(at), int4(size)]
    asked.ask(PIECE, parameters, lambda answer: found(None if isinstance(answer, StoreError) else answer))
