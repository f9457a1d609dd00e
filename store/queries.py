"""The questions the running service asks besides the batch, each one named :class:`store.asking.Query`."""

from __future__ import annotations

from collections.abc import Callable

from store import leaves
from store.asking import LINK_CHANNEL, SOLE_CHANNEL, Query
from store.priorities import CONDITION, Rank
from store.spool import HEAD, LARGE
from store.tables import SCHEMA

#: The reason of the op ``purge`` of what was for a group, or an address, that was removed.
REMOVED = "removed"

_ADDRESS = f"""a.id, a.routing, a.kind, a.on_expiry, a.max_attempts, a.origin,
               (select g.id from {SCHEMA}.consumer_group g where g.address_id = a.id and g.name = ''),
               (select count(*) from {SCHEMA}.consumer_group g where g.address_id = a.id and g.name <> '')
          from {SCHEMA}.address a"""

#: name, seconds: the address, where it is there. One that was made on use has a note of its use that is not older than
#: that afterwards; removing it meanwhile (:func:`store.removal.remove_unused`) and this wait for each other.
ADDRESS = Query(
    b"address",
    f"""with there as materialized (
          select id, origin, created_at from {SCHEMA}.address where name = $1::text for key share),
        noted as (
          insert into {SCHEMA}.address_use (address_id)
          select id from there t where t.origin = 'use' and t.created_at < now() - make_interval(secs => $2::int4)
             and not exists (select from {SCHEMA}.address_use u
                              where u.address_id = t.id and u.used_at >= now() - make_interval(secs => $2::int4))
          on conflict (address_id) do update set used_at = now())
        select {_ADDRESS} where a.id = (select id from there)""",
)

#: ids: these addresses are in use
USED = Query(
    b"used",
    f"""insert into {SCHEMA}.address_use (address_id)
        select id from {SCHEMA}.address where id = any($1::int4[]) and origin = 'use' order by id for key share
        on conflict (address_id) do update set used_at = now()""",
)

#: names: of each that is there, the name and what ADDRESS says
ADDRESSES = Query(b"addresses", f"select a.name, {_ADDRESS} where a.name = any($1::text[])")

#: name, routing, kind, on_expiry, max_attempts, origin, instance (0: none), retention_hours (0: as the settings say).
#: Two instances may make it at once: one row wins.
MAKE_ADDRESS = Query(
    b"make_address",
    f"""with made as (
          insert into {SCHEMA}.address
            (name, routing, kind, on_expiry, max_attempts, origin, instance_id, retention_hours)
          values ($1::text, $2::text, $3::text, $4::text, $5::int2, $6::text, nullif($7::int4, 0), nullif($8::int4, 0))
          on conflict (name) do nothing returning id, name, routing),
        grouped as (
          insert into {SCHEMA}.consumer_group (address_id, name) select id, '' from made where routing = 'queue')
        select pg_notify('coordinator_address', name) from made""",
)

#: name of a dynamic address: it goes with its groups, whose ids are the answer. Their entries go afterwards: only what
#: begins now sees those of posts that came in just before.
REMOVE_ADDRESS = Query(
    b"remove_address",
    f"""with gone as (delete from {SCHEMA}.address where name = $1::text and origin = 'dynamic' returning id, name),
        told as (select pg_notify('coordinator_address', name) from gone)
        select g.id, (select count(*) from told) from gone join {SCHEMA}.consumer_group g on g.address_id = gone.id""",
)

#: address id, name, instance: a group, found or made; of an instance (not 0) where it ends with its link. Nothing where
#: another instance makes it at the same time: ask again.
MAKE_GROUP = Query(
    b"make_group",
    f"""with made as (
          insert into {SCHEMA}.consumer_group (address_id, name, instance_id)
          values ($1::int4, $2::text, nullif($3::int4, 0)) on conflict (address_id, name) do nothing
          returning id, address_id),
        told as (
          select pg_notify('coordinator_address', a.name) from made join {SCHEMA}.address a on a.id = made.address_id)
        select id, (select count(*) from told) from made
        union all
        select id, 0 from {SCHEMA}.consumer_group where address_id = $1::int4 and name = $2::text""",
)

#: name: the group of a lasting subscription, and its address
FIND_SUBSCRIPTION = Query(
    b"find_subscription",
    f"""select a.name from {SCHEMA}.consumer_group g join {SCHEMA}.address a on a.id = g.address_id
         where g.name = $1::text and a.routing = 'topic' and g.instance_id is null order by g.id limit 1""",
)

#: name: whether an address or a group is called so, and may have dead letters
HAS_CONSUMERS = Query(
    b"has_consumers",
    f"""select exists (select from {SCHEMA}.address where name = $1::text)
            or exists (select from {SCHEMA}.consumer_group where name = $1::text)""",
)

REMOVE_GROUP = Query(
    b"remove_group",
    f"delete from {SCHEMA}.consumer_group where id = $1::int4 and name <> ''",
)

#: op id, group, instance: of a group that is removed, a thousand of the entries that it leaves behind; how many there
#: were
DROP_ENTRIES = Query(
    b"drop_entries",
    f"""with removed as (
          select $2::int4 as id where not exists (select from {SCHEMA}.consumer_group where id = $2::int4)),
        claims as (delete from {SCHEMA}.message_group c using removed r where c.group_id = r.id),
        picked as (
          select e.group_id, e.id from removed r join {SCHEMA}.entry e on e.group_id = r.id
           order by e.id limit 1000 for update of e skip locked),
        dropped as (
          delete from {SCHEMA}.entry e using picked p where e.group_id = p.group_id and e.id = p.id
          returning e.half_id, e.group_id),
        decided as (
          insert into {SCHEMA}.op (id, decision, reason, half_ids, group_ids, instance_id)
          select $1::uuid, 'purge', '{REMOVED}', array_agg(half_id), array_agg(group_id), $3::int4 from dropped
          having count(*) > 0)
        select count(*) from dropped""",
    again=False,
)

#: microseconds since 1970, null for never
_EXPIRES = "(extract(epoch from expires_at) * 1000000)::int8"

_AVAILABLE = "failed is null and available_at is null"
_DELIVERABLE = f"lease = 0 and {_AVAILABLE} and (expires_at is null or expires_at > now())"

#: Of a large message comes its beginning, and how long it is.
_IS_LARGE = f"octet_length(message) > {LARGE}"
_SIZE = f"case when {_IS_LARGE} then {HEAD} else octet_length(message) end"
_HEAD = f"case when {_IS_LARGE} then substring(message from 1 for {HEAD}) else message end"
_WHOLE = f"case when {_IS_LARGE} then octet_length(message) else 0 end"

#: What an entry is read as: the columns of its row, and its message.
_ENTRY = f"id, half_id, attempts, {_EXPIRES}, annotations, {_HEAD}, {_WHOLE}, acquired, priority"
_MESSAGES = f"p cross join lateral ({leaves.OF_ANY_DAY}) h"
_PICKED = "id, half_id, attempts, expires_at, annotations, acquired, priority"


_ORDER = {Rank.URGENT: "priority desc, id", Rank.NORMAL: "id", Rank.PATIENT: "priority desc, id"}
#: behind the entry of id $2 and priority $5
_BEHIND = {
    "id": "id > $2::int8 and priority <= $5::int2",
    "priority desc, id": "priority <= $5::int2 and (priority < $5::int2 or id > $2::int8)",
}


def _by_rank(name: str, sql: Callable[[str, str], str], *, again: bool = True) -> dict[Rank, Query]:
    """One query for each rank; ``sql`` makes it of the condition that chooses the rank's entries, and their order."""
    return {
        rank: Query(f"{name}_{rank.name.lower()}".encode(), sql(CONDITION[rank], _ORDER[rank]), again) for rank in Rank
    }


#: group, id above which to look, most entries, most bytes, lease. The first entry is taken whatever its size; none is
#: taken of a group that another instance holds whole.
LEASE = _by_rank(
    "lease",
    lambda chosen, order: (
        f"""with free as (
          select 1 from {SCHEMA}.consumer_group where id = $1::int4 and holder in (0, $5::int4) for share),
        picked as (
          select id, half_id, priority from {SCHEMA}.entry
           where group_id = $1::int4 and id > $2::int8 and {chosen} and {_DELIVERABLE} and exists (select from free)
           order by {order} limit $3::int4 for update skip locked),
        sized as materialized (
          select id, message, sum({_SIZE}) over (order by {order}) - {_SIZE} as before
            from picked {_MESSAGES}),
        leased as (
          update {SCHEMA}.entry e set lease = $5::int4 from sized s
           where e.group_id = $1::int4 and e.id = s.id and s.before < $4::int8
          returning e.id, e.half_id, e.attempts, e.expires_at, e.annotations, s.message, e.acquired, e.priority)
        select {_ENTRY}, (select count(*) from picked) from leased order by {order}"""
    ),
    again=False,
)

#: group, instance: the group is the instance's own, whole, where no other lives
HOLD = Query(
    b"hold",
    f"""with before as (
          delete from {SCHEMA}.group_read r using {SCHEMA}.consumer_group g
           where r.group_id = $1::int4 and r.instance_id = $2::int4 and g.id = $1::int4 and g.holder = 0)
        update {SCHEMA}.consumer_group set holder = $2::int4
         where id = $1::int4 and holder in (0, $2::int4)
           and not exists (select from {SCHEMA}.instance where ended_at is null and id <> $2::int4)
        returning id""",
)

#: group, instance: of what its holder has read it has nothing left
UNREAD = Query(b"unread", f"delete from {SCHEMA}.group_read where group_id = $1::int4 and instance_id = $2::int4")

#: as LEASE of those of normal priority, by the holder of the group: one row says how far it has read, instead of a
#: lease on each. Rows are added, and none where nothing moves: of a row that each load changes an old snapshot keeps
#: all versions, and each load would walk through them. Entries it has read before may come again.
READ = Query(
    b"read",
    f"""with picked as (
          select {_PICKED} from {SCHEMA}.entry
           where group_id = $1::int4 and id > $2::int8 and lease = 0 and {CONDITION[Rank.NORMAL]} and {_AVAILABLE}
           order by id limit $3::int4),
        sized as materialized (
          select p.*, message, sum({_SIZE}) over (order by p.id) - {_SIZE} as before
            from picked {_MESSAGES}),
        held as materialized (
          select 1 from {SCHEMA}.consumer_group where id = $1::int4 and holder = $5::int4 for share),
        moved as (
          insert into {SCHEMA}.group_read (group_id, instance_id, read_through)
          select $1::int4, $5::int4, max(id) from sized where before < $4::int8 and exists (select from held)
          having max(id) is not null on conflict do nothing)
        select {_ENTRY}, (select count(*) from picked)
          from sized where before < $4::int8 and exists (select from held) order by id""",
)

#: group, id and priority behind which to look, most entries, most bytes: as LEASE, but nothing is taken
BROWSE = _by_rank(
    "browse",
    lambda chosen, order: (
        f"""with picked as (
          select {_PICKED} from {SCHEMA}.entry
           where group_id = $1::int4 and {_BEHIND[order]} and {chosen} and {_AVAILABLE}
             and (expires_at is null or expires_at > now())
           order by {order} limit $3::int4),
        sized as materialized (
          select p.*, sum({_SIZE}) over (order by {order}) - {_SIZE} as before
            from picked {_MESSAGES})
        select {_ENTRY} from sized {_MESSAGES} where before < $4::int8 order by {order}"""
    ),
)

#: half, offset, octets: a piece of a large message
PIECE = Query(
    b"piece",
    f"select substring(message from $2::int4 + 1 for $3::int4) from (select $1::int8 as half_id) {_MESSAGES}",
)

#: group, ids, lease: those of them that are free, for a consumer that chose them (BROWSE showed them)
TAKE = Query(
    b"take",
    f"""with free as (
          select 1 from {SCHEMA}.consumer_group where id = $1::int4 and holder in (0, $3::int4) for share),
        picked as (
          select id from {SCHEMA}.entry
           where group_id = $1::int4 and id = any($2::int8[]) and {_DELIVERABLE} and exists (select from free)
           order by id for update skip locked)
        update {SCHEMA}.entry e set lease = $3::int4 from picked p
         where e.group_id = $1::int4 and e.id = p.id returning e.id, e.attempts, e.annotations, e.acquired""",
    again=False,
)

#: lease: entries on their way to the dead letters, of any group, with what their letter must say; of a large message
#: its beginning. Those whose half is missing stay where they are, and keep no other from its turn.
LEASE_FAILED = Query(
    b"lease_failed",
    f"""with picked as (
          select e.group_id, e.id, e.half_id from {SCHEMA}.entry e join {SCHEMA}.half h on h.id = e.half_id
           where e.failed is not null and e.lease = 0
           limit 100 for update of e skip locked),
        sized as materialized (
          select p.group_id, p.id, sum({_SIZE}) over (order by p.id) - {_SIZE} as before
            from picked p join {SCHEMA}.half h on h.id = p.half_id),
        leased as (
          update {SCHEMA}.entry e set lease = $1::int4 from sized s
           where e.group_id = s.group_id and e.id = s.id and s.before < 4194304
          returning e.group_id, e.id, e.half_id, e.attempts, e.failed, e.annotations)
        select l.group_id, l.id, l.half_id, l.attempts, l.failed, l.annotations, {_HEAD}, uuid_send(h.txn_id),
               coalesce(a.name, ''), coalesce(g.name, ''), {_WHOLE}
          from leased l join {SCHEMA}.half h on h.id = l.half_id
          left join {SCHEMA}.consumer_group g on g.id = l.group_id left join {SCHEMA}.address a on a.id = g.address_id
         order by l.group_id, l.id""",
    again=False,
)

_IN_GROUP = f"group_id = $1::int4 and message_group = k and {_DELIVERABLE}"
#: A value, not "exists", of which a join would be made, over all entries of the consumer group.
_FIRST = f"(select id from {SCHEMA}.entry where {_IN_GROUP} order by id limit 1)"
_CLAIMED = f"(select c.key from {SCHEMA}.message_group c where c.group_id = $1::int4 and c.key = k)"

#: group, key behind which to look, most keys to look at, most to claim, instance: message groups of a fifo address
#: with entries to deliver and no claim, claimed. (0, the key to go on behind, whether there is any); then
#: (1, key, false) for each that is ours now. A group of a single message (its key is above 0) needs no claim.
SCAN_GROUPS = Query(
    b"scan_groups",
    f"""with recursive keys(k, n) as (
          (select message_group, 1 from {SCHEMA}.entry where group_id = $1::int4 and message_group > $2::int8
            order by message_group limit 1)
          union all
          select (select e.message_group from {SCHEMA}.entry e where e.group_id = $1::int4 and e.message_group > keys.k
                   order by e.message_group limit 1), n + 1
            from keys where k is not null and n < $3::int4),
        unclaimed as materialized (
          select k from keys where k is not null and {_CLAIMED} is null),
        free as materialized (
          select k from unclaimed where {_FIRST} is not null order by k limit $4::int4),
        claimed as (
          insert into {SCHEMA}.message_group (group_id, key, instance_id)
          select $1::int4, k, $5::int4 from free where k < 0 on conflict do nothing returning key)
        select 0, coalesce(case when (select count(*) from free) < $4::int4 then (select max(k) from keys)
                                else (select max(k) from free) end, 0),
               (select count(k) from keys) = $3::int4 or (select count(*) from free) = $4::int4
        union all select 1, key, false from claimed union all select 1, k, false from free where k > 0""",
    again=False,
)

#: group, keys, instance: claims those of the message groups that have entries to deliver and no claim; their keys
CLAIM_GROUPS = Query(
    b"claim_groups",
    f"""with wanted as materialized (
          select k from unnest($2::int8[]) u(k) where {_FIRST} is not null)
        insert into {SCHEMA}.message_group (group_id, key, instance_id)
        select $1::int4, k, $3::int4 from wanted on conflict do nothing returning key""",
    again=False,
)

#: group, keys, instance, notice: gives these claims up; a notice that is not empty goes to the other instances
RELEASE_GROUPS = Query(
    b"release_groups",
    f"""with gone as (
          delete from {SCHEMA}.message_group
           where group_id = $1::int4 and key = any($2::int8[]) and instance_id = $3::int4 returning 1)
        select count(*), case when $4::text <> '' then pg_notify('coordinator_ready', $4::text) end from gone""",
)

#: group, keys, instance: gives up all claims of the instance but these
FORGET_GROUPS = Query(
    b"forget_groups",
    f"""delete from {SCHEMA}.message_group
         where group_id = $1::int4 and instance_id = $3::int4 and key <> all($2::int8[])""",
)

#: group, keys, most entries of each, most bytes, lease: of message groups that are claimed, each from its first entry
#: on. Asked only after the claim is committed: what the one before gave back is there then. An entry and its key; and
#: for each key a row without an id, that has in place of the half how many were found.
LEASE_GROUPS = Query(
    b"lease_groups",
    f"""with picked as materialized (
          select e.* from unnest($2::int8[]) u(k) cross join lateral (
            select group_id, id, half_id, message_group from {SCHEMA}.entry
             where {_IN_GROUP} order by id limit $3::int4) e),
        sized as materialized (
          select group_id, id, message, sum({_SIZE}) over (order by message_group, id) - {_SIZE} as before
            from picked {_MESSAGES}),
        leased as (
          update {SCHEMA}.entry e set lease = $5::int4 from sized s
           where e.group_id = s.group_id and e.id = s.id and e.lease = 0 and s.before < $4::int8
          returning e.id, e.half_id, e.attempts, e.expires_at, e.annotations, s.message, e.acquired, e.priority,
                    e.message_group)
        select {_ENTRY}, message_group from leased
        union all
        select null, count(*), null, null, null, null, null, null, null, message_group
          from picked group by message_group
         order by id""",
    again=False,
)

#: On the channel coordinator_ready, in place of groups: an instance has begun, and every other looks around.
ARRIVED = "arrived"
ARRIVE = Query(b"arrive", f"select pg_notify('coordinator_ready', '{ARRIVED}')")

#: what the notice says
ANNOUNCE_LINK = Query(b"announce_link", f"select pg_notify('{LINK_CHANNEL}', $1::text)")

#: digest, container-id, instance, number of the connection, close_existing, when it asked first (empty: now): whether
#: the claim is its own, whether the one that has it was seen alive since, and the time of this question. The one that
#: has it is told.
CLAIM = Query(
    b"claim",
    f"""with taken as (
          insert into {SCHEMA}.sole_connection (digest, container_id, instance_id, connection, close_existing)
          select $1::bytea, $2::text, $3::int4, $4::int8, $5::bool
           where exists (select from {SCHEMA}.instance where id = $3::int4 and ended_at is null)
          on conflict (digest) do nothing returning 1),
        there as (
          select instance_id, connection, seen_at, (instance_id, connection) = ($3::int4, $4::int8) as own
            from {SCHEMA}.sole_connection where digest = $1::bytea),
        told as (select pg_notify('{SOLE_CHANNEL}', instance_id || ' ' || connection) from there where not own)
        select exists (select from taken) or exists (select from there where own),
               exists (select from there where not own and seen_at > nullif($6::text, '')::timestamptz),
               now()::text, (select count(*) from told)""",
)

#: digest, instance, number: the connection that has the claim is alive
SEEN = Query(
    b"seen",
    f"""update {SCHEMA}.sole_connection set seen_at = now()
         where digest = $1::bytea and instance_id = $2::int4 and connection = $3::int8""",
)

RELEASE = Query(
    b"release",
    f"""delete from {SCHEMA}.sole_connection
         where digest = $1::bytea and instance_id = $2::int4 and connection = $3::int8""",
)

#: op id, instance: expired entries that are not leased are dropped, with one op, or marked for the dead letters
EXPIRE = Query(
    b"expire",
    f"""with picked as (
          select e.group_id, e.id, coalesce(
                   (select a.on_expiry from {SCHEMA}.consumer_group g join {SCHEMA}.address a on a.id = g.address_id
                     where g.id = e.group_id), 'drop') as policy
            from {SCHEMA}.entry e
           where e.expires_at <= now() and e.lease = 0 and e.failed is null
             and not (e.{CONDITION[Rank.NORMAL]} and e.available_at is null
                      and exists (select from {SCHEMA}.consumer_group g join {SCHEMA}.group_read r
                                    on r.group_id = g.id and r.instance_id = g.holder
                                   where g.id = e.group_id and e.id <= r.read_through))
           limit 500 for update of e skip locked),
        marked as (
          update {SCHEMA}.entry e set failed = 'expired' from picked p
           where p.policy = 'dead-letter' and e.group_id = p.group_id and e.id = p.id returning 1),
        dropped as (
          delete from {SCHEMA}.entry e using picked p
           where p.policy = 'drop' and e.group_id = p.group_id and e.id = p.id returning e.half_id, e.group_id),
        decided as (
          insert into {SCHEMA}.op (id, decision, half_ids, group_ids, instance_id)
          select $1::uuid, 'expire', array_agg(half_id), array_agg(group_id), $2::int4 from dropped
          having count(*) > 0)
        select (select count(*) from marked), (select count(*) from dropped)""",
)

#: new ids, whether other instances live and get a notice: entries that are due now are entered anew, behind all that
#: is there. The groups it is of, each with its lowest new id and how many; and a row of no group: in how many
#: milliseconds the next is due, null for never.
PROMOTE = Query(
    b"promote",
    f"""with due as (
          select group_id, id, available_at from {SCHEMA}.entry
           where available_at <= now() and lease = 0 and failed is null
           order by available_at limit cardinality($1::int8[]) for update skip locked),
        placed as (
          select d.group_id, d.id, f.id as new_id
            from (select group_id, id, row_number() over (order by available_at, id) as n from due) d
            join unnest($1::int8[]) with ordinality f(id, n) on f.n = d.n),
        promoted as (
          update {SCHEMA}.entry e set id = p.new_id, available_at = null from placed p
           where e.group_id = p.group_id and e.id = p.id returning e.group_id, e.id),
        told as (
          select pg_notify('coordinator_ready', group_id::text) from promoted where $2::bool group by group_id)
        select group_id, min(id), count(*), null::int8 from promoted group by group_id
        union all
        select 0, 0, (select count(*) from told),
               (select (extract(epoch from min(available_at) - now()) * 1000)::int8
                  from {SCHEMA}.entry where available_at > now() and lease = 0 and failed is null)""",
    again=False,
)

#: group, lease: the ids of the entries it holds in the store for its consumers
HELD = Query(
    b"held",
    f"select id from {SCHEMA}.entry where group_id = $1::int4 and lease = $2::int4 and failed is null",
)

#: lease: gives up the leases of entries marked failed; asked when the reply that named them was lost
YIELD_FAILED = Query(
    b"yield_failed", f"update {SCHEMA}.entry set lease = 0 where failed is not null and lease = $1::int4"
)
