"""Repairs are what the store can do about the findings of a reconciliation (R34): ``coordinator repair``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from coordinator.address.addresses import DEAD_LETTER_PREFIX, dead_letter_name
from coordinator.address.dead_letters import mark_of
from coordinator.address.enqueue import terms_again
from coordinator.answers import Malformed, Unknown, run_of
from coordinator.heads import whole_head
from coordinator.timeline import as_utc
from store import partitions, runs
from store import repairs as of_store
from store.repairs import Decide, Release, Replay, Requeue, Resume

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from store.commit.terms import DeliveryTerms
    from store.history import Message
    from store.repairs import Repair

#: What a report suggests where the book has decided (R22): the decision is in it.
_RESOLVE = re.compile(r"coordinator transaction resolve ([0-9a-f-]{36}) --(commit|rollback) ")
#: Kind, and what is suggested.
Alike = tuple[str, str]
#: findings of a piece
_MOST_TOGETHER = 1000
#: digits of the number of a run
_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class Found:
    """Reads what a run has found, as mappings, as often as a caller wants. ``seen_at``: as of when; ``reason``: of the
    ops of its repairs; ``decides``: the findings by which transactions are decided, if ``findings`` are a part of them.
    """

    seen_at: datetime
    reason: str
    findings: Callable[[], Iterable[Mapping[str, Any]]]
    decides: Callable[[], Iterable[Mapping[str, Any]]] | None = None


def of_run(
    connection: Connection,
    number: str,
    *,
    finding: int | None = None,
    after: int = 0,
    seen_at: datetime | None = None,
) -> Found:
    """Return what a stored run has found, behind the number ``after``. ``finding``: that of this number alone;
    ``seen_at``: of the run as of then, which a person has looked at; None: as it is now.

    :raises Malformed: ``number`` is none of a run.
    :raises Unknown: there is no such run, or it has no such finding.
    :raises Superseded: the run was stored again since ``seen_at``, and its numbers may be of other findings.
    """
    stored = stored_run(connection, number)
    if seen_at is not None and seen_at != stored.seen_at:
        now, then = as_utc(stored.seen_at), as_utc(seen_at)
        said = f"run {stored.id} was stored again, as of {now}; what was looked at is as of {then}: look at it anew"
        raise runs.Superseded(said)

    def plain(each: runs.Finding) -> dict[str, Any]:
        return {**asdict(each), "txn_id": each.txn_id and str(each.txn_id)}

    def findings() -> Iterator[dict[str, Any]]:
        if finding is None:
            yield from map(plain, runs.findings(connection, stored, above=after))
            return
        for each in islice(runs.findings(connection, stored, above=finding - 1), 1):
            if each.number == finding:
                yield plain(each)
                return
        raise Unknown(f"run {stored.id} has no finding {finding}")

    def decides() -> Iterator[dict[str, Any]]:
        yield from map(plain, runs.findings(connection, stored, kinds=("undecided-but-known",)))

    reason = f"{of_store.REASON} run {stored.id}, {stored.seen_at.astimezone(UTC).isoformat()}"
    return Found(seen_at=stored.seen_at, reason=reason, findings=findings, decides=decides)


def stored_run(connection: Connection, number: str) -> runs.Stored:
    """Return the stored run that ``number`` stands for; as :func:`of_run`."""
    if not (number.isascii() and number.isdecimal() and len(number) <= _DIGITS):
        raise Malformed(f"RUN: expected the number of a run, not {number[:80]!r}")
    return run_of(connection, int(number))


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """A finding that the store can do something about. ``state``: of its repair: ``can``, ``done`` or ``cannot``;
    ``said``: what was done, or why it cannot be.
    """

    kind: str
    txn_id: str | None
    half_id: int | None
    address: str | None
    consumer_group: str | None
    state: str
    said: str


@dataclass(frozen=True, kw_only=True)
class LeftByHand:
    """The first of ``findings`` that are alike, which a person repairs."""

    kind: str
    half_id: int | None
    suggested_repair: str
    findings: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """``lines``: of findings that the store can do something about; read once, as a repair is done when its line is
    read. ``by_hand``: the others; ``through``: the number of the last of all, behind which another piece follows; None:
    none does.
    """

    lines: Iterable[Repaired]
    by_hand: list[Mapping[str, Any]] = field(default_factory=list)
    through: int | None = None


def pieces(connection: Connection, found: Found, *, apply: bool) -> Iterator[Piece]:
    """Look what can be done about findings, and do it, with ``apply``; piece by piece. What a piece tells stays."""
    if apply:  # the service, which makes them, may have been stopped for weeks
        partitions.make_ahead(connection)
    twice = decided_twice((found.decides or found.findings)())
    waiting: dict[Repair, list[Mapping[str, Any]]] = {}
    by_hand: list[Mapping[str, Any]] = []

    def lines(alike: Mapping[Repair, list[Mapping[str, Any]]]) -> Iterator[Repaired]:
        for repair, verdict in of_store.repaired(connection, list(alike), found.reason if apply else None):
            for each in alike[repair]:
                line = {name: each[name] for name in ("kind", "txn_id", "half_id", "address", "consumer_group")}
                yield Repaired(**line, state=verdict.state.value, said=verdict.said)

    for finding in found.findings():
        proposed = proposal(finding, found.seen_at, twice)
        if proposed is None:
            by_hand.append(finding)
        else:
            waiting.setdefault(proposed, []).append(finding)
        if len(waiting) == of_store.MOST_TOGETHER or len(by_hand) == _MOST_TOGETHER:
            yield Piece(lines=lines(waiting), by_hand=by_hand, through=finding.get("number"))
            waiting, by_hand = {}, []
    yield Piece(lines=lines(waiting), by_hand=by_hand)


class ByHand:
    """Counts findings that a person repairs, those alike together."""

    def __init__(self) -> None:
        self._counted: Counter[Alike] = Counter()
        self._first: dict[Alike, dict[str, Any]] = {}

    def add(self, findings: Iterable[Mapping[str, Any]]) -> None:
        """Add findings, or what :meth:`told` has of others."""
        for each in findings:
            its = alike(each)
            self._counted[its] += each.get("findings", 1)
            told = {name: each[name] for name in ("kind", "half_id", "suggested_repair")}
            self._first.setdefault(its, told)

    def told(self) -> list[LeftByHand]:
        """Return the first of those alike, those of which there are most first."""
        counted = sorted(self._counted.items(), key=lambda item: (-item[1], item[0]))
        return [LeftByHand(**self._first[its], findings=count) for its, count in counted]


def alike(finding: Mapping[str, Any]) -> Alike:
    """Return the key of findings that a person repairs in the same way, each for its own message."""
    number, suggested = finding.get("half_id"), finding["suggested_repair"]
    return finding["kind"], suggested if number is None else suggested.replace(str(number), "")


def decided_twice(findings: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the transactions that the books decide in two ways, by the keys of two of its messages."""
    decisions: dict[str, str | None] = {}
    both = set()
    for finding in findings:
        if finding["kind"] == "undecided-but-known" and finding["txn_id"] is not None:
            said = _RESOLVE.match(finding["suggested_repair"])
            # what suggests no decision is a commit that its client alone can do
            decision = None if said is None else said[2]
            if decisions.setdefault(finding["txn_id"], decision) != decision:
                both.add(finding["txn_id"])
    return frozenset(both)


def proposal(
    finding: Mapping[str, Any], seen_at: datetime, contradicted: frozenset[str] = frozenset()
) -> Repair | None:
    """Return the repair of a finding; None: there is none that the store can do. ``contradicted``: the transactions
    that are for a person to decide.
    """
    makes: dict[str, Callable[[], Repair | None]] = {
        "undecided-but-known": lambda: _decision(finding, contradicted),
        "overdue": lambda: Resume(UUID(finding["txn_id"]), seen_at),
        "lost-delivery": lambda: _delivery(finding),
        "stuck-delivery": lambda: _release(finding),
        "dead-letter-mismatch": lambda: _replay(finding),
    }
    make = makes.get(finding["kind"])
    with suppress(ValueError, TypeError, AttributeError):  # it is not what the report writes: for a person
        return None if make is None else make()
    return None


def _decision(finding: Mapping[str, Any], contradicted: frozenset[str]) -> Repair | None:
    found = _RESOLVE.match(finding["suggested_repair"])
    if found is None or found[1] != finding["txn_id"]:
        return None
    return Decide(UUID(found[1]), found[2], contradicted=found[1] in contradicted)


def _place(finding: Mapping[str, Any]) -> tuple[int, str, str] | None:
    """Return the delivery of the finding."""
    half_id, address, group = finding["half_id"], finding["address"], finding["consumer_group"]
    return None if half_id is None or address is None or group is None else (half_id, address, group)


def _delivery(finding: Mapping[str, Any]) -> Repair | None:
    place = _place(finding)
    return None if place is None else Requeue(*place, terms_of)


def _release(finding: Mapping[str, Any]) -> Repair | None:
    """Return None for a passed-over delivery, a warning: it is not leased, and a person finds out why."""
    place = _place(finding)
    return None if place is None or finding["severity"] != "error" else Release(*place)


def _replay(finding: Mapping[str, Any]) -> Repair | None:
    """Return None for a note: a client may have posted a letter without an op."""
    half_id, group = finding["half_id"], finding["consumer_group"]
    if half_id is None or group is None or finding["severity"] != "error":
        return None
    return Replay(half_id, group, box_of, mark_of, terms_of)


def box_of(address: str, group: str) -> str:
    """Return the address of the dead letters of a group."""
    return address if address.startswith(DEAD_LETTER_PREFIX) else dead_letter_name(group or address)


def terms_of(connection: Connection, message: Message, fifo: bool) -> DeliveryTerms:
    """Return the terms on which a message is delivered again."""
    head = whole_head(connection, message.half_id, message.head, message.octets)
    return terms_again(head, fifo=fifo, posted_at=message.posted_at)
