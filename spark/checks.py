"""Check pairs, transactions and sums: each check is a pure function that returns a finding or None.

It examines a pair or a transaction that is not in order (:mod:`spark.sums`), or the sums of an address and
hour. No check reads a clock or a table. Rule numbers are those of docs/explanation/reconciliation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from spark.directory import Directory, OpenTransaction
from spark.finding import Finding
from spark.ledger import CLOCK_STEP, Pair, declared_at
from spark.marks import ACCOUNTED
from spark.sums import AddressHour, moment_of_micros

#: How late a check, or the decision of a transaction past its timeout, may be before it counts as overdue.
OVERDUE_AFTER: Final = timedelta(minutes=2)


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """A transaction that is checked, with the facts of all tables.

    ``address_id`` is of one of its halves; ``listed`` is None if it is not listed as undecided."""

    txn_id: str
    commits: int = 0
    rollbacks: int = 0
    posted: int | None = None
    decided_at: datetime | None = None
    halves: int = 0
    address_id: int | None = None
    listed: OpenTransaction | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the transaction has no decision."""
        return self.commits + self.rollbacks == 0


@dataclass(frozen=True, kw_only=True)
class FindingBuilder:
    """Builds findings; has the moment of the snapshot, and the names of addresses and groups."""

    seen_at: datetime
    directory: Directory

    def name(self, address_id: int | None) -> str | None:
        return None if address_id is None else self.directory.addresses.get(address_id)

    def at_address(self, address_id: int | None, kind: str, detail: str, repair: str) -> Finding:
        return Finding(
            kind=kind,
            severity="error",
            address=self.name(address_id),
            seen_at=self.seen_at,
            detail=detail,
            suggested_repair=repair,
        )

    def at_transaction(
        self, found: Transaction, kind: str, detail: str, repair: str, severity: str = "error"
    ) -> Finding:
        return Finding(
            kind=kind,
            severity=severity,
            txn_id=found.txn_id,
            address=self.name(found.address_id),
            seen_at=self.seen_at,
            detail=detail,
            suggested_repair=repair,
        )

    def at_pair(self, pair: Pair, kind: str, detail: str, repair: str, severity: str = "error") -> Finding:
        return Finding(
            kind=kind,
            severity=severity,
            txn_id=pair.txn_id,
            half_id=pair.half_id,
            address=self.name(pair.address_id),
            consumer_group=self.directory.groups.get(pair.group_id),
            seen_at=self.seen_at,
            detail=detail,
            suggested_repair=repair,
        )


def age(moment: datetime, seen_at: datetime) -> str:
    """Return how long ``moment`` was before ``seen_at``, as text in the unit that suits it."""
    seconds = (seen_at - moment).total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def overdue(found: Transaction, builder: FindingBuilder) -> Finding | None:
    """R10: the transaction is undecided, and overdue.

    It is a checkable one whose check, or whose decision after the timeout with no check sent, is more than
    ``OVERDUE_AFTER`` late; or one with stored halves that is not listed as undecided: no instance will decide it.
    """
    if not found.is_open:
        return None
    declared = age(declared_at(found.txn_id), builder.seen_at)
    resolve = f'coordinator transaction resolve {found.txn_id} --rollback --reason "overdue" (or --commit)'
    repair = f"ask the producer, then {resolve}"
    if found.listed is None:
        detail = (
            f"declared {declared} ago; {found.halves} halves are stored, there is no op, and it is not listed as"
            " undecided: no instance will decide it"
        )
        return builder.at_transaction(found, "overdue", detail, repair)
    listed = found.listed
    due = listed.next_check_at or (listed.timeout_at if listed.checks == 0 else None)
    if listed.producer_group is None or due is None or due >= builder.seen_at - OVERDUE_AFTER:
        return None
    detail = (
        f"declared {declared} ago by producer group {listed.producer_group}, {listed.checks} checks sent,"
        f" due {age(due, builder.seen_at)} ago, still undecided"
    )
    return builder.at_transaction(found, "overdue", detail, repair, "warning")


def double_decision(found: Transaction, builder: FindingBuilder) -> Finding | None:
    """R12: the transaction has more than one decision, which the database refuses: a person or a restore made it."""
    decisions = found.commits + found.rollbacks
    if decisions < 2:
        return None
    return builder.at_transaction(
        found,
        "double-decision",
        f"decided {decisions} times: {found.commits} commits, {found.rollbacks} rollbacks",
        "keep the op that was first (see decided_at); find out what wrote the other",
    )


_RESTORE: Final = "restore the half from a back-up or the archive; nothing can be delivered without it"


def orphan_commit(found: Transaction, builder: FindingBuilder) -> Finding | None:
    """R11: the store has fewer halves than the commit counts."""
    if not found.commits or found.posted is None or found.posted <= found.halves:
        return None
    return builder.at_transaction(found, "orphan-op", _posted(found), _RESTORE)


def surplus_halves(found: Transaction, builder: FindingBuilder) -> Finding | None:
    """R19: the store has more halves than the commit counts."""
    if not found.commits or found.posted is None or found.posted >= found.halves:
        return None
    repair = "find out what wrote the other halves; they were delivered with the rest"
    return builder.at_transaction(found, "unbalanced", _posted(found), repair)


def _posted(found: Transaction) -> str:
    return f"its commit says {found.posted} halves were posted, the store has {found.halves}"


def orphan_op(pair: Pair, builder: FindingBuilder) -> Finding | None:
    """R11: an op covers a delivery whose half does not exist."""
    if pair.state is not None or not pair.ops:
        return None
    if not pair.half_id:
        detail = f"{pair.ops} ops name no half: null stands in its place; one is {pair.op_id}"
        return builder.at_pair(pair, "orphan-op", detail, "find out what wrote the op; the service writes none such")
    detail = f"{pair.ops} ops name half {pair.half_id}, which is nowhere; one is {pair.op_id}"
    return builder.at_pair(pair, "orphan-op", detail, _RESTORE)


def lost_delivery(pair: Pair, builder: FindingBuilder) -> Finding | None:
    """R13: the half is committed, and its group, which had to receive it, has neither an entry nor a final op."""
    if not pair.expected or pair.entries or pair.finals:
        return None
    detail = f"committed, but its group has neither an entry nor a final op ({pair.ops} other ops)"
    return builder.at_pair(
        pair, "lost-delivery", detail, "give the group its entry again, so that the message is delivered"
    )


def orphan_entry(pair: Pair, builder: FindingBuilder) -> Finding | None:
    """R13: an entry belongs to a removed group: no consumer can get it, and the service should have deleted it."""
    if not pair.entries or pair.group_id in builder.directory.swept_later:
        return None
    detail = f"its consumer group (number {pair.group_id}) is gone, and its entry is still there"
    repair = "see that the service runs: its maintenance drops such entries, with an op"
    return builder.at_pair(pair, "orphan-entry", detail, repair)


def phantom_delivery(pair: Pair, builder: FindingBuilder) -> Finding | None:
    """R14: a half that is not committed has an entry or an op of a delivery; or an entry's half does not exist."""
    known = pair.entries if pair.state is None else pair.entries + pair.ops
    if pair.state == "committed" or not known:
        return None
    state = pair.state or "nowhere"
    if state == "open":
        state = "undecided" if pair.txn_id in builder.directory.open_transactions else "unknown"
    return builder.at_pair(
        pair,
        "phantom-delivery",
        f"its half is {state}, yet there are {pair.entries} entries and {pair.ops} ops of deliveries",
        "tell the owner of the group: it was given a message that was never sent"
        if pair.ops
        else "remove the entry before it is delivered",
    )


def double_delivery(pair: Pair, builder: FindingBuilder) -> Finding | None:
    """R15: the pair has two final ops; or one, and an entry that will deliver the half again."""
    if pair.state is None or not (pair.finals > 1 or (pair.finals and pair.entries)):
        return None
    detail = (
        f"{pair.finals} final ops ({pair.accepted} accepted, {pair.dead_lettered} dead-lettered,"
        f" {pair.expired} expired, {pair.purged} purged; one is {pair.op_id}) and {pair.entries} entries"
    )
    repair = (
        "remove the entry before it is delivered again"
        if pair.entries
        else "tell the owner of the group: it may have worked on this message twice"
    )
    return builder.at_pair(pair, "double-delivery", detail, repair)


def stuck_delivery(pair: Pair, builder: FindingBuilder) -> Finding | None:
    """R16: an instance that has ended leases the entry: no consumer gets it before it is released."""
    if not pair.left:
        return None
    detail = f"leased by instance {pair.left}, which has ended or was never there: no other instance delivers it"
    repair = "coordinator repair releases it, as a restart of the service does"
    return builder.at_pair(pair, "stuck-delivery", detail, repair)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A delivery that is available and passed over (:mod:`spark.waiting`).

    ``since``: in microseconds since 1970. ``yields``: its priority is below the default."""

    half_id: int
    group_id: int
    txn_id: str | None
    address_id: int | None
    since: int
    yields: bool


def passed_over(found: Waiting, builder: FindingBuilder) -> Finding:
    """R16: the delivery is available for long, while its group's consumers get messages that were posted later.

    It is only a note if the priority is not the reason: a selector may exclude the message."""
    waits = age(moment_of_micros(found.since), builder.seen_at)
    urgent = "see whether more urgent messages come without end: its priority is low"
    left_out = "see whether a selector of its consumers is to leave it out: as none of them takes it, one does"
    return Finding(
        kind="stuck-delivery",
        severity="warning" if found.yields else "note",
        txn_id=found.txn_id,
        half_id=found.half_id,
        address=builder.name(found.address_id),
        consumer_group=builder.directory.groups.get(found.group_id),
        seen_at=builder.seen_at,
        detail=f"available for {waits}; its group had messages that were posted later",
        suggested_repair=urgent if found.yields else left_out,
    )


def order(pair: Pair, builder: FindingBuilder) -> Finding | None:
    """R18: an op of a delivery is older than the commit of its half."""
    if pair.first_op_at is None or pair.sent_at is None:
        return None
    first, sent = moment_of_micros(pair.first_op_at), moment_of_micros(pair.sent_at)
    if first >= sent - CLOCK_STEP:
        return None
    detail = (
        f"its first op is of {first:%Y-%m-%d %H:%M:%S} UTC, {age(first, sent)} before it was committed"
        f" ({sent:%Y-%m-%d %H:%M:%S} UTC)"
    )
    repair = "see whether the database's clock was set back; where not, tell the group's owner that it came too early"
    return builder.at_pair(pair, "order", detail, repair, "warning")


@dataclass(frozen=True, kw_only=True)
class Burials:
    """A moment at which the numbers of dead letters and of their ops differ (:mod:`spark.waiting`), and one of each.

    ``at`` is in microseconds since 1970."""

    at: int
    ops: int
    letters: int
    half_id: int | None
    group_id: int | None
    letter_id: int | None


def dead_letter_mismatch(found: Burials, builder: FindingBuilder) -> Finding:
    """R17: an op ``dead-letter`` has no letter; or a dead letter has no op, as a client may have posted it there."""
    counted = (
        f"{moment_of_micros(found.at):%Y-%m-%d %H:%M:%S.%f} UTC: {found.ops} ops dead-letter, {found.letters} letters"
    )
    lost = found.ops > found.letters
    half_id = found.half_id if lost else found.letter_id
    return Finding(
        kind="dead-letter-mismatch",
        severity="error" if lost else "note",
        half_id=half_id,
        consumer_group=None if found.group_id is None else builder.directory.groups.get(found.group_id),
        seen_at=builder.seen_at,
        detail=f"{counted}; one {'op is of' if lost else 'letter is'} half {half_id}",
        suggested_repair="coordinator repair replays it to its group: the message itself is the half that the op names"
        if lost
        else "find out what posted it to the dead letters; a client may",
    )


def unbalanced(balance: Mapping[AddressHour, Mapping[str, int]], builder: FindingBuilder) -> Iterator[Finding]:
    """R19: the sums of an address and hour do not balance.

    Posted must be committed + rolled back + undecided, and expected deliveries those accounted for."""
    repair = "look at the other findings of this address and hour; where there are none, something left no trace"
    for (address_id, at), sums in balance.items():
        decided = sum(sums[name] for name in ("committed", "rolled_back", "undecided"))
        if sums["posted"] != decided:
            detail = (
                f"{at:%Y-%m-%d %H:00} UTC: posted {sums['posted']}, but {sums['committed']} committed"
                f" + {sums['rolled_back']} rolled back + {sums['undecided']} undecided"
            )
            yield builder.at_address(address_id, "unbalanced", detail, repair)
        # a removed address has no groups and entries any more: only its halves can be counted
        if sums["expected"] != sum(sums[kind] for kind in ACCOUNTED):
            parts = " + ".join(f"{sums[kind]} {kind.replace('_', '-')}" for kind in ACCOUNTED)
            detail = f"{at:%Y-%m-%d %H:00} UTC: committed x groups = {sums['expected']}, accounted for {parts}"
            yield builder.at_address(address_id, "unbalanced", detail, repair)


OF_TRANSACTIONS: Final[tuple[Callable[[Transaction, FindingBuilder], Finding | None], ...]] = (
    overdue,
    double_decision,
    orphan_commit,
    surplus_halves,
)
OF_PAIRS: Final[tuple[Callable[[Pair, FindingBuilder], Finding | None], ...]] = (
    orphan_op,
    lost_delivery,
    orphan_entry,
    phantom_delivery,
    double_delivery,
    stuck_delivery,
    order,
)


def check_transaction(found: Transaction, builder: FindingBuilder) -> Iterator[Finding]:
    """Run all checks on a transaction of the period; yields the findings."""
    return filter(None, (check(found, builder) for check in OF_TRANSACTIONS))


def check_pair(pair: Pair, builder: FindingBuilder) -> Iterator[Finding]:
    """Run all checks on a pair of the period; yields the findings."""
    return filter(None, (check(pair, builder) for check in OF_PAIRS))
