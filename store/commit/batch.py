"""Collect a batch: units fill the columns of one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, NamedTuple, Protocol

from store.arrays import octets_of
from store.commit.checkable import LARGEST_COUNT, NEVER_HAD, CheckableRows
from store.commit.parts import NO_TXN, NO_UUID
from store.commit.terms import BEFORE, PLAIN, DeliveryTerms
from store.ids import declared_at, moment_of
from store.spool import LARGE, Octets, pieces
from store.tables import SCHEMA

if TYPE_CHECKING:
    from store.errors import StoreError


# Large messages: an SQL transaction of several statements writes each piece by piece, and PostgreSQL joins it.

#: the temporary table in which the pieces of a large message are gathered
_PIECES = "pg_temp.coordinator_piece"
# not compressed, as in the half; PostgreSQL 15 cannot declare it with the column
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
#: inserts a half: a prefix, then the message of another half from some octet on
COPY_HALF = (
    f"insert into {SCHEMA}.half (id, txn_id, address_id, message) "
    f"select $1::int8, nullif($2::uuid, {NO_UUID}), $3::int4, $4::bytea || substring(message from $6::int4 + 1) "
    f"from {SCHEMA}.half where id = $5::int8"
)


class Step(NamedTuple):
    """One prepared statement and its parameters."""

    name: bytes
    sql: str
    parameters: Sequence[bytes | None] = ()


class LargeHalf(NamedTuple):
    """A half that is written piece by piece, as its message is too long for the columns of a batch."""

    id: int
    txn_id: bytes
    address_id: int
    message: Octets


class CopiedHalf(NamedTuple):
    """A half that the store copies: ``prefix``, then the message of the half ``source`` from octet ``start`` on."""

    id: int
    txn_id: bytes
    address_id: int
    prefix: bytes
    source: int
    start: int


class Unit(Protocol):
    """One independent change in a batch: it is committed or refused alone."""

    @property
    def owner(self) -> object:
        """Return the connection that the unit belongs to, or None. Where many units wait, connections take turns."""

    def write(self, batch: Batch) -> None:
        """Add the unit's rows. Called again with a new batch if the store refused this one because of another unit."""

    def durable(self) -> None:
        """Called when the rows are committed and flushed."""

    def refused(self, error: StoreError) -> None:
        """Called when the store has refused the rows; it has none of them."""


#: An op of the same id may come from another instance, which decided first: the other columns distinguish them.
_PROBE_OP = (
    f"select exists (select from {SCHEMA}.op where id = $1::uuid and decision = $2::text "
    "and coalesce(reason, '') = $3::text and instance_id = $4::int4)"
)
#: selects whether all these transactions have these decisions, with these reasons, by this instance
_PROBE_DECIDED = (
    "select not exists (select from unnest($1::uuid[], $2::text[], $3::text[]) u(t, d, r) where not exists "
    f"(select from {SCHEMA}.op where id = t and decision = d and coalesce(reason, '') = r and instance_id = $4::int4))"
)
_PROBE_HALF = f"select exists (select from {SCHEMA}.half where id = $1::int8)"
_PROBE_MARK = f"select exists (select from {SCHEMA}.batch_mark where instance_id = $1::int4 and number = $2::int8)"


class Undecided(NamedTuple):
    """A row of the store's list of undecided transactions. Times are in microseconds since 2000-01-01 UTC."""

    owner: bytes
    declared: int
    timeout: int
    posted: int
    retired: int


class Back(NamedTuple):
    """A held entry that is kept with other counts: the columns of the part ``back``."""

    group: int
    id: int
    attempts: int
    failures: int
    lease: int
    failed: bytes
    annotations: bytes
    #: in microseconds since 2000-01-01 UTC
    available: int


class Posted(NamedTuple):
    """A delivery-tag that a half was posted under: the columns of the part ``posted``; and the unit of the half."""

    address_id: int
    owner: bytes
    producer: bytes
    tag: bytes
    half_id: int
    unit: Unit


class Batch:
    """Gathers the rows of units as the columns of one statement."""

    __slots__ = (
        "attempts", "backs", "begun", "checkable", "commit_ids", "commit_posted", "covered_groups", "covered_halves",
        "days_made", "ended_by_server", "entry_groups", "entry_ids", "entry_leases", "fan_addresses", "fan_ids",
        "fan_terms", "forgotten", "gone_groups", "gone_ids", "half_addresses", "half_ids", "half_messages", "half_txns",
        "large", "left_out_groups", "left_out_ids", "number", "octets", "op_decisions", "op_hi", "op_ids", "op_lo",
        "op_posted", "op_reasons", "op_txns", "particular_groups", "particular_ids", "particular_leases",
        "particular_terms", "pinned_groups", "pinned_ids", "posted", "queue_addresses", "refused_with", "registered",
        "rows", "shared_groups", "units", "wake", "wake_keys", "yielded_attempts", "yielded_groups", "yielded_ids",
    )  # fmt: skip

    def __init__(self) -> None:
        #: its number at this instance; and how often sending it has failed
        self.number = self.attempts = 0
        #: when it was sent for the first time, by the monotonic clock
        self.begun = 0.0
        #: True if the server, closing or refusing writes, ended its connection last; and its SQLSTATE, or ''
        self.ended_by_server, self.refused_with = False, ""
        self.units: list[Unit] = []
        #: rows that the statement writes and deletes: halves, fan-out entries, retirements, ops except plain commits
        self.rows = self.octets = 0
        #: True if partitions of its days were missing, and were created once
        self.days_made = False
        self.half_ids: list[int] = []
        self.half_txns: list[bytes] = []
        self.half_addresses: list[int] = []
        self.half_messages: list[Octets] = []
        self.large: list[LargeHalf | CopiedHalf] = []
        #: queues that are posted to: each message has one entry
        self.queue_addresses: set[int] = set()
        self.entry_groups: list[int] = []
        self.entry_ids: list[int] = []
        self.entry_leases: list[int] = []
        self.particular_groups: list[int] = []
        self.particular_ids: list[int] = []
        self.particular_leases: list[int] = []
        self.particular_terms: list[DeliveryTerms] = []
        self.fan_addresses: list[int] = []
        self.fan_ids: list[int] = []
        self.fan_terms: list[DeliveryTerms] = []
        self.left_out_ids: list[int] = []
        self.left_out_groups: list[int] = []
        self.gone_groups: list[int] = []
        self.gone_ids: list[int] = []
        self.backs: list[Back] = []
        self.yielded_groups: list[int] = []
        self.yielded_ids: list[int] = []
        self.yielded_attempts: list[int] = []
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
        self.checkable: CheckableRows | None = None
        self.registered: dict[bytes, Undecided] = {}
        self.forgotten: list[bytes] = []
        self.posted: list[Posted] = []
        #: groups with entries that other instances may lease, or addresses (negated); the lowest of their ids
        self.wake: dict[int, int] = {}
        #: message groups with entries that other instances may lease: consumer group and key
        self.wake_keys: set[tuple[int, int]] = set()

    def half(self, half_id: int, txn_id: bytes, address_id: int, message: Octets) -> None:
        """Add a half. ``txn_id``: 16 octets, or :data:`NO_TXN`."""
        size = len(message)
        self.rows += 1
        self.octets += size
        if size > LARGE:
            self.large.append(LargeHalf(half_id, txn_id, address_id, message))
            return
        self.half_ids.append(half_id)
        self.half_txns.append(txn_id)
        self.half_addresses.append(address_id)
        self.half_messages.append(message)

    def columns(
        self, half_ids: Sequence[int], txn_id: bytes, address_id: int, messages: Sequence[Octets], group_id: int
    ) -> None:
        """Add several halves of one transaction for one queue, each with a plain entry that is not leased.

        It does what :meth:`half` and :meth:`entry` do for each. No message may have more than :data:`LARGE` octets.
        """
        count = len(half_ids)
        self.rows += count
        self.octets += sum(map(len, messages))
        self.half_ids += half_ids
        self.half_txns += [txn_id] * count
        self.half_addresses += [address_id] * count
        self.half_messages += messages
        self.queue_addresses.add(address_id)
        self.entry_groups += [group_id] * count
        self.entry_ids += half_ids
        self.entry_leases += [0] * count

    def once(self, unit: Unit, address_id: int, owner: str, producer: str, tag: bytes, half_id: int) -> None:
        """Add the tag of a half. The batch is refused if the store has a half of this producer under it."""
        self.rows += 1
        self.posted.append(Posted(address_id, owner.encode(), producer.encode(), tag, half_id, unit))

    def copied_half(self, half: CopiedHalf) -> None:
        """Add a large message that the store copies from another half."""
        self.octets += len(half.prefix)
        self.large.append(half)

    def entry(self, address_id: int, group_id: int, entry_id: int, lease: int, terms: DeliveryTerms) -> None:
        """Add the only entry of a queue's half: it has the half's id and is in the queue's default group."""
        self.queue_addresses.add(address_id)
        if terms is PLAIN:
            self.entry_groups.append(group_id)
            self.entry_ids.append(entry_id)
            self.entry_leases.append(lease)
        else:
            self.particular_groups.append(group_id)
            self.particular_ids.append(entry_id)
            self.particular_leases.append(lease)
            self.particular_terms.append(terms)

    def fan(
        self, address_id: int, entry_id: int, terms: DeliveryTerms, groups: int, without: Iterable[int] = ()
    ) -> None:
        """Add an entry for each group of the address except ``without``. ``groups``: about how many groups it has."""
        self.rows += groups
        for group_id in without:
            self.left_out_ids.append(entry_id)
            self.left_out_groups.append(group_id)
        self.fan_addresses.append(address_id)
        self.fan_ids.append(entry_id)
        self.fan_terms.append(terms)

    @property
    def has_single_rows(self) -> bool:
        """Whether the batch has at most one half, plain entry, deleted entry, plain commit and other op each."""
        return (
            len(self.half_ids) <= 1
            and len(self.entry_ids) <= 1
            and len(self.gone_ids) <= 1
            and len(self.commit_ids) <= 1
            and len(self.op_ids) <= 1
        )

    def notify(self, group_id: int, lowest: int) -> None:
        """Notify the other instances of entries that are not leased, from the id ``lowest`` on.

        ``group_id``: their group, or their address, negated.
        """
        self.wake[group_id] = min(lowest, self.wake.get(group_id, lowest))

    def gone(self, group_id: int, entry_id: int) -> None:
        """Delete a held entry. The batch is refused if this instance does not hold it."""
        self.rows += 1
        self.gone_groups.append(group_id)
        self.gone_ids.append(entry_id)

    def all_gone(self, group_ids: Sequence[int], entry_ids: Sequence[int]) -> None:
        """Delete several held entries: the group and the id of each. Refused as by :meth:`gone`."""
        self.rows += len(entry_ids)
        self.gone_groups += group_ids
        self.gone_ids += entry_ids

    def back(
        self,
        group_id: int,
        entry_id: int,
        *,
        attempts: int,
        failures: int,
        lease: int,
        failed: str = "",
        annotations: bytes = b"",
        available: int = BEFORE,
    ) -> None:
        """Keep a held entry, with other counts or another lease.

        ``failed``: the reason why it becomes a dead letter, or an empty string. ``available``: the time before which it
        is not delivered, in microseconds since 2000.
        """
        self.rows += 1
        why, counts = octets_of(failed), (min(attempts, LARGEST_COUNT), min(failures, LARGEST_COUNT))
        self.backs.append(Back(group_id, entry_id, *counts, lease, why, annotations, available))
        self.octets += len(annotations)

    def share(self, group_id: int, held: Iterable[int]) -> None:
        """Release a group that is held whole. ``held``: ids of the entries that stay leased to this instance."""
        self.shared_groups.append(group_id)
        for entry_id in held:
            self.pinned_groups.append(group_id)
            self.pinned_ids.append(entry_id)

    def yield_entry(self, group_id: int, entry_id: int, *, attempts: int = NEVER_HAD) -> None:
        """Return a held entry to the store undecided. ``attempts``: its attempts, if it was delivered to a link."""
        self.rows += 1
        self.yielded_groups.append(group_id)
        self.yielded_ids.append(entry_id)
        self.yielded_attempts.append(min(attempts, LARGEST_COUNT))

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
        """Add an op. ``covers``: (half id, group id) of the deliveries decided."""
        self.rows += 1
        self.op_ids.append(op_id)
        self.op_decisions.append(decision)
        self.op_txns.append(txn_id)
        self.op_reasons.append(octets_of(reason))
        self.op_posted.append(posted)
        halves = self.covered_halves
        self.op_lo.append(len(halves) + 1)
        if covers:
            half_ids, group_ids = zip(*covers, strict=True)
            halves += half_ids
            self.covered_groups += group_ids
        self.op_hi.append(len(halves))

    def check_back(self) -> CheckableRows:
        """Return the batch's rows of checkable transactions, for the caller to add one."""
        self.rows += 1
        if self.checkable is None:
            self.checkable = CheckableRows()
        return self.checkable

    def register(self, txn_id: bytes, undecided: Undecided) -> None:
        self.rows += 1
        self.registered[txn_id] = undecided

    def forget(self, txn_id: bytes) -> None:
        """Remove a decided transaction from the store's list."""
        if self.registered.pop(txn_id, None) is None:
            self.forgotten.append(txn_id)

    def days(self) -> set[date]:
        """Return the days of the batch's halves and ops, by their ids."""
        halves = [*self.half_ids, *(half.id for half in self.large)]
        return {moment_of(each).date() for each in halves} | {
            declared_at(each).date() for each in (*self.commit_ids, *self.op_ids, *self._decided)
        }

    @property
    def _decided(self) -> Sequence[bytes]:
        return () if self.checkable is None else [*self.checkable.decided_ids, *self.checkable.settled]

    def large_steps(self) -> Iterator[Step]:
        """Yield the steps of one SQL transaction that write the large messages. A piece is read when its step runs."""
        for half in self.large:
            own = (half.id.to_bytes(8, "big"), half.txn_id, half.address_id.to_bytes(4, "big"))
            if isinstance(half, CopiedHalf):
                of = (half.prefix, half.source.to_bytes(8, "big"), half.start.to_bytes(4, "big"))
                yield Step(b"copy_half", COPY_HALF, own + of)
                continue
            yield Step(b"clear_pieces", CLEAR_PIECES)
            for number, piece in enumerate(pieces(half.message)):
                yield Step(b"add_piece", ADD_PIECE, (number.to_bytes(4, "big"), piece))
            yield Step(b"join_pieces", JOIN_PIECES, own)

    @property
    def traceless(self) -> bool:
        """Whether the batch changes entries, and adds no row that would prove that it was committed."""
        held = self.checkable is not None and self.checkable.retired
        changes = self.gone_ids or self.backs or self.yielded_ids or self.shared_groups or self.pinned_ids
        return bool(changes or held) and not (self.commit_ids or self.op_ids or self.half_ids or self.large)

    def probe(self, instance_id: int) -> Step | None:
        """Return a statement that selects whether a row exists which only this batch, once committed, has written.

        None: there is no such row, and the batch may be sent again.

        Rows that a rival could have written as well are probed last: another connection of the producer group may have
        made the same decisions on checkable transactions at this instance. If the batch writes nothing else, it does
        not matter which of the two has made them.
        """
        me = instance_id.to_bytes(4, "big")
        if self.half_ids:
            return Step(b"probe_half", _PROBE_HALF, (self.half_ids[0].to_bytes(8, "big"),))
        if self.large:
            return Step(b"probe_half", _PROBE_HALF, (self.large[0].id.to_bytes(8, "big"),))
        if self.commit_ids:
            return Step(b"probe_op", _PROBE_OP, (self.commit_ids[0], b"commit", b"", me))
        if self.op_ids:
            return Step(b"probe_op", _PROBE_OP, (self.op_ids[0], self.op_decisions[0], self.op_reasons[0], me))
        if self.traceless:
            return Step(b"probe_mark", _PROBE_MARK, (me, self.number.to_bytes(8, "big")))
        if self._decided and self.checkable is not None:
            return Step(b"probe_decided", _PROBE_DECIDED, (*self.checkable.wanted(), me))
        return None
