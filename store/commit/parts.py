"""Compose the batch statement of parts; a batch uses the parts for which it has rows.

``PARTS`` is SQL text for libpq, as this is the hot path; ``tests/integration/test_batch_statement.py`` checks it
against the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.channels import READY
from store.tables import HELD, SCHEMA

NO_TXN = bytes(16)
NO_UUID = "'00000000-0000-0000-0000-000000000000'"

#: Joins entries with a list of keys. ``any(array[...])`` of the first column, here and in all such joins: a plan may be
#: made while the table has just been emptied, and is kept while it grows. With ``=`` it would read the whole table in
#: index order, as if to merge it with the list, and compare each row with each of the list.
_LISTED = "e.group_id = any(array[u.g]) and e.id = u.i"

_FAN = (
    f"insert into {SCHEMA}.entry (group_id, id, half_id, expires_at, available_at, priority, message_group) "
    "select g.id, i, i, nullif(x, 'infinity'), nullif(a, '-infinity'), p, nullif(k, 0) "
    "from unnest({0}, {1}, {2}, {3}, {4}, {5}) u(t, i, x, a, p, k) "
    f"join {SCHEMA}.consumer_group g on g.address_id = any(array[t])"
)
#: A group that is being removed gets no entry, as nothing would remove the entry.
# lock order: 8
_STAYS = " for key share of g returning 1"

# lock order: 7
_THERE = f"select from {SCHEMA}.address a where a.id = any({{0}}) order by a.id for key share"

_SPLIT = f"select from {SCHEMA}.consumer_group g where g.address_id {{}} and g.name > ''"

#: When the first check is due of a checkable transaction that its client has left, or keeps for too long (H7).
_DUE = "greatest(e.declared_at + e.check_immunity_ms * interval '1 ms', now())"

_CHECKABLE = (
    "id, instance_id, owner, declared_at, timeout_at, posted, retired, producer_group, "
    "check_immunity_ms, check_interval_ms, most_checks, connection"
)
#: The columns of :class:`store.commit.checkable.Declared`, after the transaction.
_DECLARED = (
    "unnest({0}) i, unnest({1}) o, unnest({2}) d, unnest({3}) t, unnest({4}) g, unnest({5}) m, unnest({6}) v, "
    "unnest({7}) c, unnest({8}) n"
)
_DECLARED_TYPES = (
    "uuid[]",
    "text[]",
    "timestamptz[]",
    "timestamptz[]",
    "text[]",
    "int4[]",
    "int4[]",
    "int2[]",
    "int8[]",
)

#: The columns of :class:`store.commit.checkable.Retired`, after transaction, group and entry.
_RETIRED = (
    *("uuid[]", "int4[]", "int8[]", "text[]", "text[]", "int2[]", "text[]", "bytea[]", "int8[]", "text[]"),
    "int2[]",
)

# In the list of a select "unnest" of many arrays is cheaper than in "from", where each is kept as a table.

#: Part -> (its common table expression, the types of its parameters). ``{0}``, ``{1}``… are the part's parameters,
#: ``{me}`` is the instance's id.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "half": (
        f"insert into {SCHEMA}.half (id, txn_id, address_id, message) "
        f"select i, nullif(t, {NO_UUID}), a, m from unnest({{0}}, {{1}}, {{2}}, {{3}}) u(i, t, a, m)",
        ("int8[]", "uuid[]", "int4[]", "bytea[]"),
    ),
    # The one entry of a queue's message; on the plain path entry and half have the same id.
    "entry": (
        f"insert into {SCHEMA}.entry (group_id, id, half_id, lease) "
        "select g, i, i, l from unnest({0}, {1}, {2}) u(g, i, l)",
        ("int4[]", "int8[]", "int4[]"),
    ),
    # The delivery-tags of producers (P22). It waits for another instance's batch that posts under the same.
    "posted": (
        f"insert into {SCHEMA}.posted (address_id, owner, producer, tag, half_id) "
        "select a, o, p, t, i from unnest({0}, {1}, {2}, {3}, {4}) u(a, o, p, t, i) on conflict do nothing returning 1",
        ("int4[]", "text[]", "text[]", "bytea[]", "int8[]"),
    ),
    # Single rows of a batch: these do what half, entry, gone, commit and op do, without the tables that "unnest" fills.
    "one_half": (
        f"insert into {SCHEMA}.half (id, txn_id, address_id, message) "
        f"values ({{0}}, nullif({{1}}, {NO_UUID}), {{2}}, {{3}})",
        ("int8", "uuid", "int4", "bytea"),
    ),
    "one_entry": (
        f"insert into {SCHEMA}.entry (group_id, id, half_id, lease) values ({{0}}, {{1}}, {{1}}, {{2}})",
        ("int4", "int8", "int4"),
    ),
    "one_gone": (
        f"delete from {SCHEMA}.entry e "
        "where e.group_id = {0} and e.id = {1} and e.lease in (0, {me}) returning 1",
        ("int4", "int8"),
    ),
    "one_commit": (
        f"insert into {SCHEMA}.op (id, decision, posted, instance_id) values ({{0}}, 'commit', {{1}}, {{me}})",
        ("uuid", "int4"),
    ),
    "one_op": (
        f"insert into {SCHEMA}.op (id, decision, txn_id, reason, posted, half_ids, group_ids, instance_id) "
        f"values ({{0}}, {{1}}, nullif({{2}}, {NO_UUID}), nullif({{3}}, ''), nullif({{4}}, -1), "
        "nullif({5}, '{{}}'), nullif({6}, '{{}}'), {me})",
        ("uuid", "text", "uuid", "text", "int4", "int8[]", "int4[]"),
    ),
    # Like entry, for messages with an expiry, a delivery time, a priority or a message group.
    "particular": (
        f"insert into {SCHEMA}.entry (group_id, id, half_id, lease, expires_at, available_at, priority, message_group) "
        "select g, i, i, l, nullif(x, 'infinity'), nullif(a, '-infinity'), p, nullif(k, 0) "
        "from unnest({0}, {1}, {2}, {3}, {4}, {5}, {6}) u(g, i, l, x, a, p, k)",
        ("int4[]", "int8[]", "int4[]", "timestamptz[]", "timestamptz[]", "int2[]", "int8[]"),
    ),
    # The entries of a topic's message: one for each group that exists now.
    "fan": (_FAN + _STAYS, ("int4[]", "int8[]", "timestamptz[]", "timestamptz[]", "int2[]", "int8[]")),
    # Like fan, without the groups paired with each half: subscriptions with no-local of its poster.
    "fan_others": (
        f"{_FAN} where not exists (select from unnest({{6}}, {{7}}) n(h, p) "
        f"where n.h = u.i and n.p = any(array[g.id])){_STAYS}",
        ("int4[]", "int8[]", "timestamptz[]", "timestamptz[]", "int2[]", "int8[]", "int8[]", "int4[]"),
    ),
    "gone": (
        f"delete from {SCHEMA}.entry e using unnest({{0}}, {{1}}) u(g, i) "
        f"where {_LISTED} and e.lease in (0, {{me}}) returning 1",
        ("int4[]", "int8[]"),
    ),
    # Keeps an entry in its place with other counts and another lease; it may be marked for the dead letters.
    "back": (
        f"update {SCHEMA}.entry e set attempts = u.n, failures = u.x, acquired = true, lease = u.l, "
        "failed = nullif(u.f, ''), annotations = nullif(u.m, ''), available_at = nullif(u.a, '-infinity') "
        "from unnest({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}) u(g, i, n, x, l, f, m, a) "
        f"where {_LISTED} and e.lease in (0, {{me}}) returning 1",
        ("int4[]", "int8[]", "int2[]", "int2[]", "int4[]", "text[]", "bytea[]", "timestamptz[]"),
    ),
    # Returns entries undecided: counts no failure, writes no op, and does not refuse the batch if the lease was lost
    # already. n: the entry's attempts; -1: it was delivered to no link.
    "yielded": (
        f"update {SCHEMA}.entry e set lease = 0, attempts = greatest(e.attempts, u.n), acquired = acquired or u.n >= 0 "
        f"from unnest({{0}}, {{1}}, {{2}}) u(g, i, n) where {_LISTED} and e.lease in (0, {{me}}) "
        "and (e.lease <> 0 or u.n >= 0)",
        ("int4[]", "int8[]", "int2[]"),
    ),
    # Another instance has consumers of groups that are held whole: release them, and lease the entries in hand singly
    # (pinned).
    "shared": (
        f"update {SCHEMA}.consumer_group e set holder = 0 from unnest({{0}}) u(g) "
        "where e.id = any(array[u.g]) and e.holder = {me}{after}",
        ("int4[]",),
    ),
    "pinned": (
        f"update {SCHEMA}.entry e set lease = {{me}} from unnest({{0}}, {{1}}) u(g, i) where {_LISTED} and e.lease = 0",
        ("int4[]", "int8[]"),
    ),
    "commit": (
        f"insert into {SCHEMA}.op (id, decision, posted, instance_id) "
        "select t, 'commit', n, {me} from unnest({0}, {1}) u(t, n)",
        ("uuid[]", "int4[]"),
    ),
    # Ops with all columns; ``lo`` and ``hi`` bound the slice that each covers in the flat arrays of halves and groups.
    "op": (
        f"insert into {SCHEMA}.op (id, decision, txn_id, reason, posted, half_ids, group_ids, instance_id) "
        f"select i, d, nullif(t, {NO_UUID}), nullif(r, ''), nullif(n, -1), "
        "case when hi >= lo then ({7}::int8[])[lo:hi] end, case when hi >= lo then ({8}::int4[])[lo:hi] end, {me} "
        "from unnest({0}, {1}, {2}, {3}, {4}, {5}, {6}) u(i, d, t, r, n, lo, hi)",
        ("uuid[]", "text[]", "uuid[]", "text[]", "int4[]", "int4[]", "int4[]", "int8[]", "int4[]"),
    ),
    # Lists undecided transactions for the command line and for recovery. No transaction is in registered and forgotten.
    "registered": (
        f"insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired) "
        "select i, {me}, o, d, t, p, r from unnest({0}, {1}, {2}, {3}, {4}, {5}) u(i, o, d, t, p, r) "
        "on conflict (id) do nothing",
        ("uuid[]", "text[]", "timestamptz[]", "timestamptz[]", "int4[]", "int4[]"),
    ),
    # Removes decided transactions from the list. Their rows are locked before ops are written, as queries do (T11):
    # PostgreSQL runs unread clauses from the last to the first.
    "forgotten": (f"delete from {SCHEMA}.txn e using unnest({{0}}) u(i) where e.id = any(array[u.i])", ("uuid[]",)),
    # Halves of checkable transactions that wait for the decision, except those in the transactions' rows.
    # left_out: groups that get no entry.
    "pending": (
        f"insert into {SCHEMA}.pending "
        "(txn_id, half_id, address_id, expires_at, available_at, priority, message_group, left_out) "
        "select t, i, a, nullif(x, 'infinity'), nullif(v, '-infinity'), p, nullif(k, 0), "
        "case when hi >= lo then ({9}::int4[])[lo:hi] end from (select unnest({0}) t, unnest({1}) i, unnest({2}) a, "
        "unnest({3}) x, unnest({4}) v, unnest({5}) p, unnest({6}) k, unnest({7}) lo, unnest({8}) hi) u",
        (
            "uuid[]",
            "int8[]",
            "int4[]",
            "timestamptz[]",
            "timestamptz[]",
            "int2[]",
            "int8[]",
            "int4[]",
            "int4[]",
            "int4[]",
        ),
    ),
    # Rows of checkable transactions, each written with the first half or halves. Last parameters: for each row the
    # slice of its halves and their address, then all these halves.
    "declared": (
        f"insert into {SCHEMA}.txn ({_CHECKABLE}, half_ids, address_id) "
        "select i, {me}, o, d, t, 0, 0, g, m, v, c, n, case when hi >= lo then ({12}::int8[])[lo:hi] end, nullif(a, 0) "
        f"from (select {_DECLARED}, unnest({{9}}) lo, unnest({{10}}) hi, unnest({{11}}) a) u returning 1",
        (*_DECLARED_TYPES, "int4[]", "int4[]", "int4[]", "int8[]"),
    ),
    # Like declared, for rows that may exist already: a plain transaction was registered, or an earlier half was sent.
    "listed": (
        f"insert into {SCHEMA}.txn ({_CHECKABLE}) select i, {{me}}, o, d, t, 0, 0, g, m, v, c, n "
        f"from (select {_DECLARED}) u on conflict (id) do update set producer_group = excluded.producer_group, "
        "check_immunity_ms = excluded.check_immunity_ms, check_interval_ms = excluded.check_interval_ms, "
        "most_checks = excluded.most_checks, connection = excluded.connection "
        f"where {SCHEMA}.txn.producer_group is null returning 1",
        _DECLARED_TYPES,
    ),
    # Locks the rows of checkable transactions that the batch changes. It waits for no row: the commit of an application
    # that has discharged one in SQL may lock its row for long.
    # lock order: 3, waiting for none
    "free": (f"select from {SCHEMA}.txn t where t.id = any({{0}}) order by t.id for update nowait", ("uuid[]",)),
    # Locks transactions with further halves or retirements: a rival decision waits for this batch, or refuses it.
    # lock order: 3, waiting for none
    "enlisted": (
        f"select from {SCHEMA}.txn t where t.id = any({{0}}) and t.producer_group is not null "
        "order by t.id for key share nowait",
        ("uuid[]",),
    ),
    # Transactions whose control link is detached (orphaned) or whose timeout is over (overdue): they are checked from
    # now on, once their immunity ends.
    "orphaned": (
        f"update {SCHEMA}.txn e set connection = -nullif(u.c, 0), next_check_at = {_DUE} "
        "from unnest({0}, {1}) u(i, c) where e.id = any(array[u.i]) and e.instance_id = {me} returning 1",
        ("uuid[]", "int8[]"),
    ),
    "overdue": (
        f"update {SCHEMA}.txn e set next_check_at = {_DUE} "
        "from unnest({0}) u(i) where e.id = any(array[u.i]) and e.instance_id = {me} and e.next_check_at is null",
        ("uuid[]",),
    ),
    # Transactions whose retired deliveries this instance no longer has in memory. Their rows in txn are locked first.
    "let_go": (
        f"select {SCHEMA}.let_go(array[{{me}}]::int4[], {{0}}) from (select count(*) from orphaned) first "
        "where first.count >= 0",
        ("uuid[]",),
    ),
    # Retirements that another process has rolled back: this instance, whose consumers may still have the deliveries,
    # leases their entries again (taken).
    "owed": (
        f"delete from {SCHEMA}.pending_retirement r where r.txn_id = any({{0}}) and r.holder = {{me}} "
        "and r.rolled_back returning r.group_id, r.entry_id",
        ("uuid[]",),
    ),
    "taken": (
        f"update {SCHEMA}.entry e set lease = {{me}} from owed o "
        f"where e.group_id = any(array[o.group_id]) and e.id = o.entry_id and e.lease = {HELD}",
        (),
    ),
    # Entries of newly retired deliveries: the transactions hold them until they are decided.
    "holding": (
        f"update {SCHEMA}.entry e set lease = {HELD} from unnest({{0}}, {{1}}) u(g, i) "
        f"where {_LISTED} and e.lease in (0, {{me}}) returning 1",
        ("int4[]", "int8[]"),
    ),
    "retiring": (
        f"insert into {SCHEMA}.pending_retirement (txn_id, group_id, entry_id, half_id, message_group, decision, "
        "reason, attempts, failed, annotations, wait_ms, undo_failed, failures, holder) "
        "select t, g, i, e.half_id, case when e.message_group < 0 then e.message_group end, d, nullif(r, ''), n, "
        "nullif(f, ''), nullif(m, ''), w, nullif(z, ''), x, {me} "
        "from unnest({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}) u(t, g, i, d, r, n, f, m, w, z, x) "
        f"join {SCHEMA}.entry e on e.group_id = any(array[g]) and e.id = i",
        _RETIRED,
    ),
    # Replaces the outcome of a delivery that is retired already. The row of the transaction is locked first.
    "replaced": (
        f"update {SCHEMA}.pending_retirement e set decision = d, reason = nullif(r, ''), attempts = n, "
        "failed = nullif(f, ''), annotations = nullif(m, ''), wait_ms = w, undo_failed = nullif(z, ''), failures = x "
        "from unnest({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}) u(t, g, i, d, r, n, f, m, w, z, x), "
        "(select count(*) from enlisted) first "
        "where e.txn_id = any(array[u.t]) and e.group_id = u.g and e.entry_id = u.i and first.count >= 0",
        _RETIRED,
    ),
    # Commits by their owners of transactions that have retired nothing: the work of decide_all, in this statement.
    # Their rows are locked first, as the refusals are evaluated in the order of the parts.
    "settled": (
        f"delete from {SCHEMA}.txn e "
        "using (select unnest({0}) i, unnest({1}) n, unnest({2}) lo, unnest({3}) hi) u "
        "where e.id = any(array[u.i]) and e.producer_group is not null "
        "returning e.id, u.n, coalesce(e.half_ids, '{{}}') = ({4}::int8[])[u.lo:u.hi] as whole",
        ("uuid[]", "int4[]", "int4[]", "int4[]", "int8[]"),
    ),
    # The ops of these commits. Parameter: how many of their halves have rows of their own.
    "concluded": (
        f"insert into {SCHEMA}.op (id, decision, posted, instance_id) "
        "select s.id, 'commit', s.n, {me} from settled s",
        ("int8",),
    ),
    # The entries of halves that were in the rows, in the default groups of their queues.
    "released": (
        f"insert into {SCHEMA}.entry (group_id, id, half_id) "
        "select g, i, h from unnest({0}, {1}, {2}) u(g, i, h)",
        ("int4[]", "int8[]", "int8[]"),
    ),
    "unpended": (
        f"delete from {SCHEMA}.pending e using unnest({{0}}, {{1}}, {{2}}) u(t, h, i) "
        "where e.txn_id = any(array[u.t]) and e.half_id = u.h returning e.*, u.i as entry_id",
        ("uuid[]", "int8[]", "int8[]"),
    ),
    "delivered": (
        f"insert into {SCHEMA}.entry (group_id, id, half_id, expires_at, available_at, priority, message_group) "
        "select g.id, m.entry_id, m.half_id, m.expires_at, m.available_at, m.priority, "
        "case m.message_group when 1 then m.entry_id else m.message_group end "
        f"from unpended m join {SCHEMA}.consumer_group g on g.address_id = any(array[m.address_id]){_STAYS}",
        (),
    ),
    "decided": (
        f"select d.won from {SCHEMA}.decide_all({{0}}, {{1}}, {{2}}, {{me}}, {{3}}, {{4}}, {{5}}, {{me}}) d",
        ("uuid[]", "text[]", "text[]", "uuid[]", "int8[]", "int8[]"),
    ),
    # Marks a batch that adds no other row which would prove that it was committed.
    "mark": (
        f"insert into {SCHEMA}.batch_mark (instance_id, number) values ({{me}}, {{0}})",
        ("int8",),
    ),
    # Locks the addresses that are posted to, each once: a post to a removed address must not be accepted. Until the
    # batch is committed they cannot be removed, nor can the default groups of queues. Locks are taken in the order of
    # ids, as when an address is removed.
    "there": (_THERE, ("int4[]",)),
    # Finds groups other than the default one, of queues whose messages get one entry each.
    "split": (_SPLIT.format("= any({0})"), ("int4[]",)),
    # Replaces there and split where every post is to one queue.
    # lock order: 7
    "queue": (f"select from {SCHEMA}.address a where a.id = {{0}} for key share", ("int4",)),
    # Sent only while other instances live: they may have consumers for entries that this one has left in the store.
    "wake": (f"select pg_notify('{READY}', {{0}})", ("text",)),
}

#: Giving an instance up locks its row for update: it waits for a batch under way, and no later batch finds the instance
#: alive.
# lock order: 2
_ALIVE = f"select from {SCHEMA}.instance where id = {{me}} and ended_at is null for key share"
_GIVEN_UP = ("CO002", "the instance was given up")
_NOT_HELD = ("CO001", "an entry is not held")
_DECIDED = ("CO005", "a checkable transaction is decided")
_ADDRESS_GONE = ("CO003", "an address that is posted to is gone")
_LEFT_OUT = ("22000", "halves were left out of a commit")
_POSTED_BEFORE = ("CO012", "a message was posted before under its delivery-tag")
_GROUPS_CHANGED = ("CO004", "a queue has groups beside the default one")
#: A part, a condition on which the whole batch is refused, the SQLSTATE, the reason.
REFUSED: tuple[tuple[str, str, str, str], ...] = (
    ("gone", "(select count(*) from gone) <> cardinality({1})", *_NOT_HELD),
    ("posted", "(select count(*) from posted) <> cardinality({0})", *_POSTED_BEFORE),
    ("one_gone", "not exists (select from one_gone)", *_NOT_HELD),
    ("back", "(select count(*) from back) <> cardinality({1})", *_NOT_HELD),
    # Always false; evaluating it locks the rows before the other parts are evaluated.
    ("free", "(select count(*) from free) < 0", "55P03", "a checkable transaction is locked"),
    # The function runs after the rows were inserted, so that it finds a decision made during the insertion.
    ("declared", f"{SCHEMA}.any_decided({{0}}, (select count(*) from declared))", *_DECIDED),
    ("listed", f"{SCHEMA}.any_decided({{0}}, (select count(*) from listed))", *_DECIDED),
    ("enlisted", "(select count(*) from enlisted) <> cardinality({0})", *_DECIDED),
    ("holding", "(select count(*) from holding) <> cardinality({1})", *_NOT_HELD),
    ("decided", "exists (select from decided where not won)", *_DECIDED),
    ("settled", "(select count(*) from settled) <> cardinality({0})", *_DECIDED),
    # Exactly their halves: one that is left behind would be lost. And no half that is withheld from a group.
    (
        "concluded",
        "exists (select from settled where not whole) "
        f"or (select sum((select count(*) from {SCHEMA}.pending p where p.txn_id = s.id)) from settled s) <> {{0}}",
        *_LEFT_OUT,
    ),
    ("unpended", "(select count(*) from unpended where left_out is null) <> cardinality({1})", *_LEFT_OUT),
    ("there", "(select count(*) from there) <> cardinality({0})", *_ADDRESS_GONE),
    ("split", "exists (select from split)", *_GROUPS_CHANGED),
    ("queue", "not exists (select from queue)", *_ADDRESS_GONE),
    ("queue", f"exists ({_SPLIT.format('= {0}')})", *_GROUPS_CHANGED),
)

#: Parts of producers and of checkable transactions. They never wait for rows of txn; a wait for another lock is cut
#: into pieces, between which batches of other connections are sent.
_WAITS = frozenset({"posted", "declared", "listed", "enlisted", "orphaned", "overdue", "settled", "decided"})
LOCK_WAIT_SECONDS = 0.2
_IN_PIECES = f"set_config('lock_timeout', '{LOCK_WAIT_SECONDS:g}s', true) is null or "

#: Session settings of the batch connection: commits are always flushed, plans suit a table of any size.
SETUP = (
    "set synchronous_commit = on; set plan_cache_mode = force_generic_plan; "
    "set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off; "
    "set client_min_messages = warning; set idle_in_transaction_session_timeout = 0"
)


#: Selects, of these checkable transactions, those whose rows others have locked. It waits for no row.
# lock order: 3, skipping those
LOCKED = f"""with free as (
    select t.id from {SCHEMA}.txn t where t.id = any($1::uuid[]) order by t.id for update skip locked)
  select t.id from {SCHEMA}.txn t where t.id = any($1::uuid[]) and t.id not in (select f.id from free f)"""


#: Selects which of these delivery-tags the store has, by their places, from 1 on.
POSTED = f"""select u.n from unnest($1::int4[], $2::text[], $3::text[], $4::bytea[]) with ordinality u(a, o, p, t, n)
  where exists (select from {SCHEMA}.posted e
    where e.address_id = any(array[u.a]) and e.owner = u.o and e.producer = u.p and e.tag = u.t)"""


#: What locks rows of groups. PostgreSQL leaves out a row that the statement itself has changed before: the group would
#: get no entry. So groups are released after that.
_LOCKS_GROUPS: Final = ("fan", "fan_others", "delivered")


def statement(parts: Sequence[str], instance_id: int) -> str:
    """Return the SQL of the batch statement of these parts."""
    clauses: list[str] = []
    last: list[str] = []
    after = "".join(f" and (select count(*) from {each}) >= 0" for each in _LOCKS_GROUPS if each in parts)
    first = "" if _WAITS.isdisjoint(parts) else _IN_PIECES
    refusals = [(f"{first}not exists ({_ALIVE.format(me=instance_id)})", *_GIVEN_UP)]
    number = 1
    for part in parts:
        sql, types = PARTS[part]
        placeholders = [f"${number + offset}::{kind}" for offset, kind in enumerate(types)]
        number += len(types)
        clause = f"{part} as ({sql.format(*placeholders, me=instance_id, after=after)})"
        (last if part == "shared" else clauses).append(clause)
        refusals += [(when.format(*placeholders), code, why) for of, when, code, why in REFUSED if of == part]
    # The function is called only to refuse the batch: a call for each condition would cost as much as a small batch.
    refused = " ".join(f"when {condition} then {SCHEMA}.refuse('{code}', '{why}')" for condition, code, why in refusals)
    # PostgreSQL does not run a clause that changes no rows unless it is read.
    called = "".join(f", (select count(*) from {each})" for each in ("let_go", "wake") if each in parts)
    return f"with {', '.join(clauses + last)} select case {refused} end{called}"
