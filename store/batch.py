"""The group commit: everything that waits at the end of a turn goes to PostgreSQL as one statement.

A *unit* is what succeeds or fails by itself: one transaction's decision, one plain post, the settlements of one link.
Units write themselves into a :class:`Batch` of parallel columns; one batch is under way at a time and the next gathers
meanwhile. The statement is one SQL transaction, so one flush to disk serves many units, and each unit hears
``durable()`` only after it, or ``refused(error)`` when the store will never take it.

The statement is composed of parts, each only where the batch has rows for it; it is prepared once per combination.
``PARTS`` is libpq text on purpose (the hot path); ``tests/integration/test_batch_statement.py`` holds it against the
tables.

Large messages (:data:`store.spool.LARGE`) are not in the statement, which would be in memory as a whole, here and in
PostgreSQL. A batch that has some is an SQL transaction of several statements: first each large message goes piece by
piece into a temporary table and from there, in PostgreSQL, to its half; then comes the batch statement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog
from psycopg import pq

from store import arrays, priorities
from store.errors import Contended, StoreError
from store.libpq import Connection
from store.loop import Loop
from store.old_backend import OldBackend
from store.spool import LARGE, Octets, pieces
from store.tables import SCHEMA

log = structlog.get_logger(__name__)

NO_TXN = bytes(16)
#: In :attr:`Batch.wake`: whatever the group. A notice has room for :data:`MOST_WOKEN` of them by name.
EVERY_GROUP = 0
MOST_WOKEN = 200
#: And for these, which are longer.
MOST_KEYS_WOKEN = 150
_NO_UUID = "'00000000-0000-0000-0000-000000000000'"

_FAN = (
    f"insert into {SCHEMA}.entry (group_id, id, half_id, expires_at, available_at, priority, message_group) "
    "select g.id, i, i, nullif(x, 'infinity'), nullif(a, '-infinity'), p, nullif(k, 0) "
    "from unnest({0}, {1}, {2}, {3}, {4}, {5}) u(t, i, x, a, p, k) "
    f"join {SCHEMA}.consumer_group g on g.address_id = t"
)

#: Part -> (its common table expression, the types of its parameters). ``{0}``, ``{1}``… are its own parameters,
#: ``{me}`` the instance.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "half": (
        f"insert into {SCHEMA}.half (id, txn_id, address_id, message) "
        f"select i, nullif(t, {_NO_UUID}), a, m from unnest({{0}}, {{1}}, {{2}}, {{3}}) u(i, t, a, m)",
        ("int8[]", "uuid[]", "int4[]", "bytea[]"),
    ),
    # The one entry of a queue's message; on the plain path entry and half have the same id.
    "entry": (
        f"insert into {SCHEMA}.entry (group_id, id, half_id, lease) "
        "select g, i, i, l from unnest({0}, {1}, {2}) u(g, i, l)",
        ("int4[]", "int8[]", "int4[]"),
    ),
    # The same of messages that say more: when they expire, from when they may be delivered, their priority,
    # their group.
    "particular": (
        f"insert into {SCHEMA}.entry (group_id, id, half_id, lease, expires_at, available_at, priority, message_group) "
        "select g, i, i, l, nullif(x, 'infinity'), nullif(a, '-infinity'), p, nullif(k, 0) "
        "from unnest({0}, {1}, {2}, {3}, {4}, {5}, {6}) u(g, i, l, x, a, p, k)",
        ("int4[]", "int8[]", "int4[]", "timestamptz[]", "timestamptz[]", "int2[]", "int8[]"),
    ),
    # A topic: one entry for each group that exists now.
    "fan": (_FAN, ("int4[]", "int8[]", "timestamptz[]", "timestamptz[]", "int2[]", "int8[]")),
    # As fan, but each half leaves out the groups it is paired with: of consumers that want nothing of its poster.
    "fan_others": (
        f"{_FAN} where not exists (select from unnest({{6}}, {{7}}) n(h, p) where n.h = u.i and n.p = g.id)",
        ("int4[]", "int8[]", "timestamptz[]", "timestamptz[]", "int2[]", "int8[]", "int8[]", "int4[]"),
    ),
    "gone": (
        f"delete from {SCHEMA}.entry e using unnest({{0}}, {{1}}) u(g, i) "
        "where e.group_id = u.g and e.id = u.i and e.lease in (0, {me}) returning 1",
        ("int4[]", "int8[]"),
    ),
    # Back to its place: another count, another lease, perhaps on its way to the dead letters.
    "back": (
        f"update {SCHEMA}.entry e set attempts = u.n, acquired = true, lease = u.l, failed = nullif(u.f, ''), "
        "annotations = nullif(u.m, '') from unnest({0}, {1}, {2}, {3}, {4}, {5}) u(g, i, n, l, f, m) "
        "where e.group_id = u.g and e.id = u.i and e.lease in (0, {me}) returning 1",
        ("int4[]", "int8[]", "int2[]", "int4[]", "text[]", "bytea[]"),
    ),
    # Held and not decided: no count, no op, and no harm where the lease was lost already.
    "yielded": (
        f"update {SCHEMA}.entry e set lease = 0, acquired = acquired or u.q "
        "from unnest({0}, {1}, {2}) u(g, i, q) where e.group_id = u.g and e.id = u.i and e.lease in (0, {me}) "
        "and (e.lease <> 0 or u.q)",
        ("int4[]", "int8[]", "bool[]"),
    ),
    # Another instance came: groups held whole are held no more, and what we have of them is leased row by row.
    "shared": (
        f"update {SCHEMA}.consumer_group e set holder = 0, read_through = 0 from unnest({{0}}) u(g) "
        "where e.id = u.g and e.holder = {me}",
        ("int4[]",),
    ),
    "pinned": (
        f"update {SCHEMA}.entry e set lease = {{me}} from unnest({{0}}, {{1}}) u(g, i) "
        "where e.group_id = u.g and e.id = u.i and e.lease = 0",
        ("int4[]", "int8[]"),
    ),
    "commit": (
        f"insert into {SCHEMA}.op (id, decision, txn_id, posted, instance_id) "
        "select t, 'commit', t, n, {me} from unnest({0}, {1}) u(t, n)",
        ("uuid[]", "int4[]"),
    ),
    # Ops with everything; ``lo`` and ``hi`` bound what each covers in the flat arrays of halves and groups.
    "op": (
        f"insert into {SCHEMA}.op (id, decision, txn_id, reason, posted, half_ids, group_ids, instance_id) "
        f"select i, d, nullif(t, {_NO_UUID}), nullif(r, ''), nullif(n, -1), "
        "case when hi >= lo then ({7}::int8[])[lo:hi] end, case when hi >= lo then ({8}::int4[])[lo:hi] end, {me} "
        "from unnest({0}, {1}, {2}, {3}, {4}, {5}, {6}) u(i, d, t, r, n, lo, hi)",
        ("uuid[]", "text[]", "uuid[]", "text[]", "int4[]", "int4[]", "int4[]", "int8[]", "int4[]"),
    ),
    # Only where other instances live: they may have consumers for what was left to the store.
    "wake": ("select pg_notify('coordinator_ready', {0})", ("text",)),
}

#: where a large message is put together
_PIECES = "pg_temp.coordinator_piece"
# compressed by nobody, as in the half; PostgreSQL 15 cannot say it with the column
_MAKE_PIECES = f"""do $$ begin
  if to_regclass('{_PIECES}') is null then
    create temporary table coordinator_piece (number int4, octets bytea) on commit delete rows;
    alter table {_PIECES} alter column octets set storage external;
  end if;
end $$"""
_CLEAR_PIECES = f"truncate {_PIECES}"
_ADD_PIECE = f"insert into {_PIECES} values ($1::int4, $2::bytea)"
_JOIN_PIECES = (
    f"insert into {SCHEMA}.half (id, txn_id, address_id, message) "
    f"select $1::int8, nullif($2::uuid, {_NO_UUID}), $3::int4, string_agg(octets, '' order by number) from {_PIECES}"
)
#: Session settings of the batch connection: durability is not negotiable, plans are for a table of any size.
SETUP = (
    "set synchronous_commit = on; set plan_cache_mode = force_generic_plan; "
    "set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off; "
    "set jit = off; set client_min_messages = warning; "
    "set idle_in_transaction_session_timeout = 0; set statement_timeout = 0; set lock_timeout = 0"
)

#: what a unit that waits takes in memory besides its messages
_UNIT_OCTETS = 512

PROBE_RETRY_SECONDS = 1.0
_PROBE_OP = f"select exists (select from {SCHEMA}.op where id = any($1::uuid[]))"
_PROBE_HALF = f"select exists (select from {SCHEMA}.half where id = any($1::int8[]))"


def statement(parts: Sequence[str], instance_id: int) -> str:
    """The batch statement of these parts."""
    clauses = []
    number = 1
    leased = []
    for part in parts:
        sql, types = PARTS[part]
        placeholders = [f"${number + offset}::{kind}" for offset, kind in enumerate(types)]
        number += len(types)
        clauses.append(f"{part} as ({sql.format(*placeholders, me=instance_id)})")
        if part in ("gone", "back"):
            leased.append(f"(select count(*) from {part})")
    wanted = "select 1"
    if leased:
        clauses.append(
            f"alive as (select 1 from {SCHEMA}.instance where id = {instance_id} and ended_at is null for share)"
        )
        alive = "(select count(*) from alive)"
        wanted = f"select {SCHEMA}.require_held({' + '.join(leased)}, ${number}::int8, {alive})"
    if "wake" in parts:
        wanted += ", (select count(*) from wake)"
    return f"with {', '.join(clauses)} {wanted}"


def notice(groups: Set[int], keys: Set[tuple[int, int]]) -> bytes:
    """What others hear: ``group``, or ``group/key`` where it is a message group; nothing where they are too many."""
    groups = groups | {group for group, _ in keys} if len(keys) > MOST_KEYS_WOKEN else groups
    if EVERY_GROUP in groups or len(groups) > MOST_WOKEN:
        return b""
    named = [f"{group}/{key:x}" for group, key in sorted(keys) if group not in groups]
    return ",".join([*map(str, sorted(groups)), *named]).encode()


class Unit(Protocol):
    """What succeeds or fails by itself."""

    def write(self, batch: Batch) -> None:
        """Add the rows. May be called again for another batch when this one was refused for a neighbour's fault."""

    def durable(self) -> None:
        """The rows are committed and flushed."""

    def refused(self, error: StoreError) -> None:
        """The store will not take the rows; none of them is there."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    """Most of what one batch takes: rows of messages and retirements, and bytes of messages."""

    messages: int = 2000
    octets: int = 4 << 20
    #: bytes of messages that wait for a batch until no more should come
    waiting_octets: int = 64 << 20


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


class Terms(NamedTuple):
    """On which terms a message is delivered. Times in microseconds since 2000-01-01 UTC."""

    #: ``arrays.INFINITY``: never
    expires: int = arrays.INFINITY
    #: ``arrays.BEFORE``: at once
    available: int = arrays.BEFORE
    priority: int = priorities.DEFAULT
    #: on an address of kind fifo: the message group as a number below 0, or :data:`ALONE`; elsewhere 0
    message_group: int = 0


#: In :attr:`Terms.message_group`: of a group that is its own.
ALONE = 1


def key_of(terms: Terms, entry_id: int) -> int:
    """The entry's message group."""
    return entry_id if terms.message_group == ALONE else terms.message_group


#: Nearly every message's; recognised by identity.
PLAIN = Terms()


def _columns(ids: Sequence[int], terms: Sequence[Terms]) -> tuple[bytes, bytes, bytes, bytes]:
    return (
        arrays.timestamptz([each.expires for each in terms]),
        arrays.timestamptz([each.available for each in terms]),
        arrays.int2([each.priority for each in terms]),
        arrays.int8([key_of(each, entry_id) for each, entry_id in zip(terms, ids, strict=True)]),
    )


class Batch:
    """Columns of one statement, filled by units."""

    __slots__ = (
        "back_annotations",
        "back_attempts",
        "back_failed",
        "back_groups",
        "back_ids",
        "back_leases",
        "commit_ids",
        "commit_posted",
        "covered_groups",
        "covered_halves",
        "entry_groups",
        "entry_ids",
        "entry_leases",
        "fan_addresses",
        "fan_ids",
        "fan_terms",
        "gone_groups",
        "gone_ids",
        "half_addresses",
        "half_ids",
        "half_messages",
        "half_txns",
        "large",
        "left_out_groups",
        "left_out_ids",
        "octets",
        "op_decisions",
        "op_hi",
        "op_ids",
        "op_lo",
        "op_posted",
        "op_reasons",
        "op_txns",
        "particular_groups",
        "particular_ids",
        "particular_leases",
        "particular_terms",
        "pinned_groups",
        "pinned_ids",
        "shared_groups",
        "units",
        "wake",
        "wake_keys",
        "yielded_acquired",
        "yielded_groups",
        "yielded_ids",
    )

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.octets = 0
        self.half_ids: list[int] = []
        self.half_txns: list[bytes] = []
        self.half_addresses: list[int] = []
        self.half_messages: list[Octets] = []
        self.large: list[LargeHalf] = []
        self.entry_groups: list[int] = []
        self.entry_ids: list[int] = []
        self.entry_leases: list[int] = []
        self.particular_groups: list[int] = []
        self.particular_ids: list[int] = []
        self.particular_leases: list[int] = []
        self.particular_terms: list[Terms] = []
        self.fan_addresses: list[int] = []
        self.fan_ids: list[int] = []
        self.fan_terms: list[Terms] = []
        self.left_out_ids: list[int] = []
        self.left_out_groups: list[int] = []
        self.gone_groups: list[int] = []
        self.gone_ids: list[int] = []
        self.back_groups: list[int] = []
        self.back_ids: list[int] = []
        self.back_attempts: list[int] = []
        self.back_leases: list[int] = []
        self.back_failed: list[bytes] = []
        self.back_annotations: list[bytes] = []
        self.yielded_groups: list[int] = []
        self.yielded_ids: list[int] = []
        self.yielded_acquired: list[bool] = []
        self.shared_groups: list[int] = []
        self.pinned_groups: list[int] = []
        self.pinned_ids: list[int] = []
        self.commit_ids: list[bytes] = []
        self.commit_posted: list[int] = []
        self.op_ids: list[bytes] = []
        self.op_decisions: list[bytes] = []
        self.op_txns: list[bytes] = []
        self.op_reasons: list[bytes] = []
        self.op_posted: list[int] = []
        self.op_lo: list[int] = []
        self.op_hi: list[int] = []
        self.covered_halves: list[int] = []
        self.covered_groups: list[int] = []
        self.wake: set[int] = set()
        #: message groups by what :attr:`wake` would have of them, and their keys
        self.wake_keys: set[tuple[int, int]] = set()

    def half(self, half_id: int, txn_id: bytes, address_id: int, message: Octets) -> None:
        """``txn_id``: 16 octets, or :data:`NO_TXN`."""
        size = len(message)
        self.octets += size
        if size > LARGE:
            self.large.append(LargeHalf(half_id, txn_id, address_id, message))
            return
        self.half_ids.append(half_id)
        self.half_txns.append(txn_id)
        self.half_addresses.append(address_id)
        self.half_messages.append(message)

    def entry(self, group_id: int, entry_id: int, lease: int, terms: Terms) -> None:
        """The entry of a queue's half with the same id."""
        if terms is PLAIN:
            self.entry_groups.append(group_id)
            self.entry_ids.append(entry_id)
            self.entry_leases.append(lease)
        else:
            self.particular_groups.append(group_id)
            self.particular_ids.append(entry_id)
            self.particular_leases.append(lease)
            self.particular_terms.append(terms)

    def fan(self, address_id: int, entry_id: int, terms: Terms, without: Iterable[int] = ()) -> None:
        """An entry for each group of a topic, but for those ``without``."""
        for group_id in without:
            self.left_out_ids.append(entry_id)
            self.left_out_groups.append(group_id)
        self.fan_addresses.append(address_id)
        self.fan_ids.append(entry_id)
        self.fan_terms.append(terms)

    def gone(self, group_id: int, entry_id: int) -> None:
        """A held entry that is done with; refused where it is not this instance's."""
        self.gone_groups.append(group_id)
        self.gone_ids.append(entry_id)

    def back(
        self, group_id: int, entry_id: int, *, attempts: int, lease: int, failed: str = "", annotations: bytes = b""
    ) -> None:
        """A held entry that stays, with another count or lease; ``failed``: on its way to the dead letters."""
        self.back_groups.append(group_id)
        self.back_ids.append(entry_id)
        self.back_attempts.append(min(attempts, 32767))
        self.back_leases.append(lease)
        self.back_failed.append(failed.replace("\0", "").encode())
        self.back_annotations.append(annotations)

    def share(self, group_id: int, held: Iterable[int]) -> None:
        """A group that was held whole; ``held``: the ids of the entries that stay ours."""
        self.shared_groups.append(group_id)
        for entry_id in held:
            self.pinned_groups.append(group_id)
            self.pinned_ids.append(entry_id)

    def yield_entry(self, group_id: int, entry_id: int, *, acquired: bool) -> None:
        """A held entry goes back to the store undecided; ``acquired``: a link had it."""
        self.yielded_groups.append(group_id)
        self.yielded_ids.append(entry_id)
        self.yielded_acquired.append(acquired)

    def op(
        self,
        op_id: bytes,
        decision: bytes,
        *,
        txn_id: bytes = NO_TXN,
        reason: str = "",
        posted: int = -1,
        covers: Sequence[tuple[int, int]] = (),
    ) -> None:
        """``covers``: (half id, group id) of the deliveries decided."""
        self.op_ids.append(op_id)
        self.op_decisions.append(decision)
        self.op_txns.append(txn_id)
        self.op_reasons.append(reason.replace("\0", "").encode())
        self.op_posted.append(posted)
        halves = self.covered_halves
        self.op_lo.append(len(halves) + 1)
        if covers:
            groups = self.covered_groups
            for half_id, group_id in covers:
                halves.append(half_id)
                groups.append(group_id)
        self.op_hi.append(len(halves))

    @property
    def rows(self) -> int:
        return len(self.half_ids) + len(self.large) + len(self.gone_ids) + len(self.back_ids) + len(self.yielded_ids)

    def parts(self) -> tuple[tuple[str, ...], list[bytes]]:
        """The parts this batch needs, and their parameters in order."""
        names: list[str] = []
        parameters: list[bytes] = []
        if self.half_ids:
            names.append("half")
            parameters += (
                arrays.int8(self.half_ids),
                arrays.uuid(self.half_txns),
                arrays.int4(self.half_addresses),
                arrays.bytea(self.half_messages),
            )
        if self.entry_ids:
            names.append("entry")
            parameters += (
                arrays.int4(self.entry_groups),
                arrays.int8(self.entry_ids),
                arrays.int4(self.entry_leases),
            )
        if self.particular_ids:
            names.append("particular")
            parameters += (
                arrays.int4(self.particular_groups),
                arrays.int8(self.particular_ids),
                arrays.int4(self.particular_leases),
                *_columns(self.particular_ids, self.particular_terms),
            )
        if self.fan_ids:
            names.append("fan_others" if self.left_out_ids else "fan")
            parameters += (
                arrays.int4(self.fan_addresses),
                arrays.int8(self.fan_ids),
                *_columns(self.fan_ids, self.fan_terms),
            )
            if self.left_out_ids:
                parameters += (arrays.int8(self.left_out_ids), arrays.int4(self.left_out_groups))
        if self.gone_ids:
            names.append("gone")
            parameters += (arrays.int4(self.gone_groups), arrays.int8(self.gone_ids))
        if self.back_ids:
            names.append("back")
            parameters += (
                arrays.int4(self.back_groups),
                arrays.int8(self.back_ids),
                arrays.int2(self.back_attempts),
                arrays.int4(self.back_leases),
                arrays.text(self.back_failed),
                arrays.bytea(self.back_annotations),
            )
        if self.yielded_ids:
            names.append("yielded")
            parameters += (
                arrays.int4(self.yielded_groups),
                arrays.int8(self.yielded_ids),
                arrays.boolean(self.yielded_acquired),
            )
        if self.shared_groups:
            names.append("shared")
            parameters.append(arrays.int4(self.shared_groups))
        if self.pinned_ids:
            names.append("pinned")
            parameters += (arrays.int4(self.pinned_groups), arrays.int8(self.pinned_ids))
        if self.commit_ids:
            names.append("commit")
            parameters += (arrays.uuid(self.commit_ids), arrays.int4(self.commit_posted))
        if self.op_ids:
            names.append("op")
            parameters += (
                arrays.uuid(self.op_ids),
                arrays.text(self.op_decisions),
                arrays.uuid(self.op_txns),
                arrays.text(self.op_reasons),
                arrays.int4(self.op_posted),
                arrays.int4(self.op_lo),
                arrays.int4(self.op_hi),
                arrays.int8(self.covered_halves),
                arrays.int4(self.covered_groups),
            )
        if self.wake or self.wake_keys:
            names.append("wake")
            parameters.append(notice(self.wake, self.wake_keys))
        if self.gone_ids or self.back_ids:
            parameters.append((len(self.gone_ids) + len(self.back_ids)).to_bytes(8, "big"))
        return tuple(names), parameters

    def large_steps(self) -> Iterator[Step]:
        """What writes the large messages, inside an SQL transaction; each piece is read when its turn has come."""
        for half in self.large:
            yield Step(b"clear_pieces", _CLEAR_PIECES)
            for number, piece in enumerate(pieces(half.message)):
                yield Step(b"add_piece", _ADD_PIECE, (number.to_bytes(4, "big"), piece))
            parameters = (half.id.to_bytes(8, "big"), half.txn_id, half.address_id.to_bytes(4, "big"))
            yield Step(b"join_pieces", _JOIN_PIECES, parameters)

    def probe(self) -> tuple[bytes, str, bytes] | None:
        """One row that is there if, and only if, the batch was committed; none where writing it twice does no harm."""
        if self.commit_ids:
            return b"probe_op", _PROBE_OP, arrays.uuid(self.commit_ids[:1])
        if self.op_ids:
            return b"probe_op", _PROBE_OP, arrays.uuid(self.op_ids[:1])
        if self.half_ids:
            return b"probe_half", _PROBE_HALF, arrays.int8(self.half_ids[:1])
        if self.large:
            return b"probe_half", _PROBE_HALF, arrays.int8([self.large[0].id])
        return None


class GroupCommit:
    """Takes units, commits them in batches, answers each."""

    def __init__(self, loop: Loop, url: str, instance_id: int, limits: Limits) -> None:
        self._loop = loop
        self._instance_id = instance_id
        self._limits = limits
        self._connection = Connection(loop, url, f"batch {instance_id}", SETUP, self)
        self._statements: dict[tuple[str, ...], tuple[bytes, str]] = {}
        self._under_way: Batch | None = None
        self._backend = 0
        self._old_backend = OldBackend(loop, self._connection)
        self._answers: deque[tuple[list[Unit], StoreError | None]] = deque()
        self._answering = False
        # Refused for one unit's fault: halves of the batch still to be tried, oldest first, before anything newer.
        self._salvage: deque[list[Unit]] = deque()
        self._waiting: deque[tuple[Unit, int]] = deque()
        #: of the units that wait, with their messages
        self._waiting_octets = 0
        self._next = Batch()
        #: what is left of a batch that is several statements
        self._steps: Iterator[Step] = iter(())
        self.batches = 0
        self.rows = 0

    def start(self) -> None:
        self._connection.start()

    def close(self) -> None:
        self._connection.close()

    @property
    def up(self) -> bool:
        return self._connection.up

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return self._under_way is None and not self._next.units and not self._waiting and not self._salvage

    @property
    def congested(self) -> bool:
        """More waits than two batches hold: stop asking peers for more."""
        return len(self._waiting) > self._limits.messages or self.overfull

    @property
    def overfull(self) -> bool:
        """More octets wait than there should be: do not even take what peers were asked for."""
        return self._waiting_octets > self._limits.waiting_octets

    def add(self, unit: Unit, octets: int = 0) -> None:
        """``octets``: of the messages that the unit holds until it is written."""
        batch = self._next
        if self._waiting or batch.octets >= self._limits.octets or batch.rows >= self._limits.messages:
            self._waiting.append((unit, octets))
            self._waiting_octets += octets + _UNIT_OCTETS
        else:
            batch.units.append(unit)
            unit.write(batch)

    def kick(self) -> None:
        """End of a turn: if nothing is under way, send what waits."""
        if self._under_way is None and (self._next.units or self._salvage) and self._connection.idle:
            self._send_next()

    def _send_next(self) -> None:
        if self._salvage:
            batch = Batch()
            for unit in self._salvage.popleft():
                batch.units.append(unit)
                unit.write(batch)
        else:
            batch = self._next
            self._next = Batch()
            next_batch = self._next
            waiting = self._waiting
            limits = self._limits
            while waiting and next_batch.octets < limits.octets and next_batch.rows < limits.messages:
                unit, octets = waiting.popleft()
                self._waiting_octets -= octets + _UNIT_OCTETS
                next_batch.units.append(unit)
                unit.write(next_batch)
        self._send(batch)

    def _send(self, batch: Batch) -> None:
        self._under_way = batch
        self._backend = self._connection.backend_pid
        parts, parameters = batch.parts()
        if not parts:  # units with nothing to write
            self._under_way = None
            self._finish(batch)
            return
        known = self._statements.get(parts)
        if known is None:
            known = self._statements[parts] = (
                f"batch_{len(self._statements)}".encode(),
                statement(parts, self._instance_id),
            )
        if batch.large:
            self._steps = self._steps_of(batch, Step(*known, parameters))
            self._step()
        else:
            self._connection.execute(known[0], known[1], parameters, self._answered)

    @staticmethod
    def _steps_of(batch: Batch, statement: Step) -> Iterator[Step]:
        yield Step(b"make_pieces", _MAKE_PIECES)
        yield Step(b"begin", "begin")
        yield from batch.large_steps()
        yield statement
        yield Step(b"commit", "commit")

    def _step(self) -> None:
        step = next(self._steps, None)
        if step is None:
            self._answered(None)
        else:
            self._connection.execute(step.name, step.sql, step.parameters, self._stepped)

    def _stepped(self, answer: object) -> None:
        if isinstance(answer, StoreError):
            self._connection.execute(b"rollback", "rollback", (), lambda _: self._answered(answer))
        else:
            self._step()

    def _answered(self, answer: object) -> None:
        batch = self._under_way
        assert batch is not None
        self._under_way = None
        if isinstance(answer, Contended):
            self._send(batch)
        elif isinstance(answer, StoreError):
            self._refused(batch, answer)
        else:
            self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        self.batches += 1
        self.rows += batch.rows
        self._answer(batch.units, None)

    def _answer(self, units: list[Unit], error: StoreError | None) -> None:
        """Tell them, batch after batch in the order of the commits."""
        answers = self._answers
        answers.append((units, error))
        self.kick()  # the next batch is on its way before we answer; one without rows comes back here at once
        if self._answering:
            return
        self._answering = True
        try:
            while answers:
                units, error = answers.popleft()
                for unit in units:
                    if error is None:
                        unit.durable()
                    else:
                        unit.refused(error)
        finally:
            self._answering = False

    def _refused(self, batch: Batch, error: StoreError) -> None:
        units = batch.units
        if len(units) == 1:
            log.warning("unit refused by the store", unit=type(units[0]).__name__, error=str(error))
            self._answer(units, error)
            return
        middle = len(units) // 2
        self._salvage.appendleft(units[middle:])
        self._salvage.appendleft(units[:middle])
        self.kick()

    # -- the connection's owner

    def connected(self) -> None:
        if self._under_way is None:
            self.kick()
        else:
            self._old_backend.end(self._backend, self._look_up)

    def lost(self) -> None:
        pass  # whatever was under way is looked up by ``connected``

    def notified(self, channel: str, payload: str) -> None:
        pass

    # -- a batch whose reply was lost

    def _look_up(self) -> None:
        batch = self._under_way
        assert batch is not None
        probe = batch.probe()
        if probe is None:
            self._looked_up(batch, committed=False)
            return
        name, sql, parameter = probe

        def answered(answer: list[pq.abc.PGresult] | StoreError) -> None:
            if isinstance(answer, StoreError):
                log.error("cannot look for the batch in doubt", error=str(answer))
                self._loop.call_later(PROBE_RETRY_SECONDS, self.connected)
            else:
                self._looked_up(batch, committed=answer[-1].get_value(0, 0) == b"\x01")

        self._connection.execute(name, sql, [parameter], answered)

    def _looked_up(self, batch: Batch, *, committed: bool) -> None:
        log.warning("batch in doubt looked up", committed=committed, units=len(batch.units))
        if committed:
            self._under_way = None
            self._finish(batch)
        else:
            self._send(batch)
