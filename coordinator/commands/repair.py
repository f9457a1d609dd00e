"""``coordinator repair``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    actor,
    database,
    defects_by_name,
    fail,
    named_folder,
    print_json,
)
from coordinator.printable import printable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark.read_back import Report
    from store.audit import Actor
    from store.commit.terms import DeliveryTerms
    from store.history import Message
    from store.repairs import Repair, Verdict

#: What a report suggests where the book has decided (R22): the decision is in it.
_RESOLVE = re.compile(r"coordinator transaction resolve ([0-9a-f-]{36}) --(commit|rollback) ")
#: Kind, and what is suggested.
Alike = tuple[str, str]


def repair(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", parser=named_folder, help="A report: what coordinator reconcile was given as --out."
        ),
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(metavar="RUN", help="In place of a report: a run in the store, as coordinator findings list has."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it. Without it, it is only said what would be done.")
    ] = False,
    reason: Reason = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Repair what a reconciliation has found, as far as the store can: decide undecided transactions as the book says,
    check overdue ones again, deliver what a consumer group has lost, release what an instance that is gone still has,
    and replay a message whose dead letter is lost. The first decision wins; nothing is forced.

    What is told is done and stays: interrupted, it goes on when it is run again, and does nothing twice.

    Exit status: 0 nothing is left to do, 1 some findings are left (the lines say why), 2 it could not run.
    """
    with defects_by_name():
        person = actor(reason)
        if _work(
            folder, run, person, apply=apply, as_json=as_json, url=lambda: database(config, database_url, data_dir)
        ):
            raise typer.Exit(1)


def _work(
    folder: Path | None, run: int | None, person: Actor, *, apply: bool, as_json: bool, url: Callable[[], str]
) -> bool:
    """Return whether something is left to do; ends the command with 2 if it cannot run."""
    from coordinator.answers import Unknown
    from spark.read_back import ReportUnusable, read_report
    from store import audit, migrations
    from store.database import connected
    from store.errors import StoreError

    try:
        if (folder is None) == (run is None):
            fail("give the FOLDER of a report, or --run RUN")
        report = None if folder is None else read_report(folder)
        with connected(url(), application_name="coordinator repair") as connection:
            migrations.check(connection)
            audit.act_as(connection, person)
            found = _of_run(connection, run) if report is None else _of_report(connection, report)
            return _Run(connection, found, apply=apply, as_json=as_json).work()
    except (ReportUnusable, StoreError, Unknown) as error:
        fail(str(error), 2)
    except typer.Exit:
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        fail("interrupted; run it again for the others", 130)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Reads what a run has found, as mappings, as often as a caller wants. ``seen_at``: as of when; ``reason``: of the
    ops of its repairs.
    """

    seen_at: datetime
    reason: str
    findings: Callable[[], Iterable[dict[str, Any]]]


def _of_report(connection: Connection, report: Report) -> _Found:
    from store import repairs

    if (mine := repairs.store_id(connection)) != report.store_id:
        fail(f"the report in {report.folder} is of the store {report.store_id}, and this is {mine}")
    reason = f"{repairs.REASON} {report.seen_at.isoformat()}"
    return _Found(seen_at=report.seen_at, reason=reason, findings=report.findings)


def _of_run(connection: Connection, number: int | None) -> _Found:
    from coordinator.answers import run_of
    from store import repairs, runs

    stored = run_of(connection, number or 0)

    def findings() -> Iterator[dict[str, Any]]:
        for each in runs.findings(connection, stored):
            yield {**asdict(each), "txn_id": each.txn_id and str(each.txn_id)}

    reason = f"{repairs.REASON} run {stored.id}, {stored.seen_at.astimezone(UTC).isoformat()}"
    return _Found(seen_at=stored.seen_at, reason=reason, findings=findings)


class _Run:
    """Repairs the findings of one run, piece by piece."""

    def __init__(self, connection: Connection, found: _Found, *, apply: bool, as_json: bool) -> None:
        self._connection = connection
        self._found = found
        self._apply = apply
        self._as_json = as_json
        self._lines: list[dict[str, Any]] = []
        self._contradicted = _contradicted(found)
        #: Of each kind, how often each repair is suggested, whatever message it names; and the first one.
        self._by_hand: Counter[Alike] = Counter()
        self._first: dict[Alike, str] = {}

    def work(self) -> bool:
        """Return whether something is left to do."""
        from store import partitions, repairs

        left = False
        if self._apply:  # the service, which makes them, may have been stopped for weeks
            partitions.make_ahead(self._connection)
        waiting: dict[Repair, list[dict[str, Any]]] = {}
        for finding in self._found.findings():
            proposal = _proposal(finding, self._found.seen_at, self._contradicted)
            if proposal is None:
                alike = _alike(finding)
                self._by_hand[alike] += 1
                self._first.setdefault(alike, finding["suggested_repair"])
                continue
            waiting.setdefault(proposal, []).append(finding)
            if len(waiting) == repairs.MOST_TOGETHER:
                left = self._repair(waiting) or left
                waiting = {}
        left = self._repair(waiting) or left
        self._end()
        return left or bool(self._by_hand)

    def _repair(self, waiting: dict[Repair, list[dict[str, Any]]]) -> bool:
        """Repair a piece of the findings; return whether some are left to do."""
        from store import repairs

        left = False
        for repair, verdict in repairs.repaired(
            self._connection, list(waiting), self._found.reason if self._apply else None
        ):
            for finding in waiting[repair]:
                self._report(finding, verdict)
            left = left or verdict.state is not repairs.State.DONE
        return left

    def _report(self, finding: dict[str, Any], verdict: Verdict) -> None:
        line = {name: finding[name] for name in ("kind", "txn_id", "half_id", "address", "consumer_group")}
        if self._as_json:
            self._lines.append({**line, "state": verdict.state.value, "said": verdict.said})
            return
        word = {"can": "would", "done": "done:", "cannot": "left:"}[verdict.state.value]
        typer.echo(printable(f"{word} {verdict.said} ({finding['kind']})"))

    def _end(self) -> None:
        if self._as_json:
            by_hand = [
                {"kind": alike[0], "findings": count, "suggested_repair": self._first[alike]}
                for alike, count in _most(self._by_hand)
            ]
            print_json({"applied": self._apply, "repairs": self._lines, "by_hand": by_hand})
            return
        kinds: Counter[str] = Counter()
        for alike, count in self._by_hand.items():
            kinds[alike[0]] += count
        for kind, count in sorted(kinds.items()):
            whats = [self._first[alike] for alike, _ in _most(self._by_hand) if alike[0] == kind]
            others = f" (and {len(whats) - 1} others)" if len(whats) > 1 else ""
            typer.echo(printable(f"by hand: {count} {kind}: {whats[0]}{others}"))


def _most(counted: Counter[Alike]) -> list[tuple[Alike, int]]:
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))


def _alike(finding: dict[str, Any]) -> Alike:
    """Return the key of findings that a person repairs in the same way, each for its own message."""
    number, suggested = finding.get("half_id"), finding["suggested_repair"]
    return finding["kind"], suggested if number is None else suggested.replace(str(number), "")


def _contradicted(found: _Found) -> frozenset[str]:
    """Return the transactions that the books decide in two ways, by the keys of two of its messages."""
    decisions: dict[str, str | None] = {}
    contradicted = set()
    for finding in found.findings():
        if finding["kind"] == "undecided-but-known" and finding["txn_id"] is not None:
            said = _RESOLVE.match(finding["suggested_repair"])
            # what suggests no decision is a commit that its client alone can do
            decision = None if said is None else said[2]
            if decisions.setdefault(finding["txn_id"], decision) != decision:
                contradicted.add(finding["txn_id"])
    return frozenset(contradicted)


def _proposal(finding: dict[str, Any], seen_at: datetime, contradicted: frozenset[str] = frozenset()) -> Repair | None:
    """Return the repair of a finding; None: there is none that the store can do. ``contradicted``: the transactions
    that are for a person to decide.
    """
    from store.repairs import Resume

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


def _decision(finding: dict[str, Any], contradicted: frozenset[str]) -> Repair | None:
    from store.repairs import Decide

    found = _RESOLVE.match(finding["suggested_repair"])
    if found is None or found[1] != finding["txn_id"]:
        return None
    return Decide(UUID(found[1]), found[2], contradicted=found[1] in contradicted)


def _place(finding: dict[str, Any]) -> tuple[int, str, str] | None:
    """Return the delivery of the finding."""
    half_id, address, group = finding["half_id"], finding["address"], finding["consumer_group"]
    return None if half_id is None or address is None or group is None else (half_id, address, group)


def _delivery(finding: dict[str, Any]) -> Repair | None:
    from store.repairs import Requeue

    place = _place(finding)
    return None if place is None else Requeue(*place, _terms)


def _release(finding: dict[str, Any]) -> Repair | None:
    """Return None for a passed-over delivery, a warning: it is not leased, and a person finds out why."""
    from store.repairs import Release

    place = _place(finding)
    return None if place is None or finding["severity"] != "error" else Release(*place)


def _replay(finding: dict[str, Any]) -> Repair | None:
    """Return None for a note: a client may have posted a letter without an op."""
    from coordinator.address.dead_letters import mark_of
    from store.repairs import Replay

    half_id, group = finding["half_id"], finding["consumer_group"]
    if half_id is None or group is None or finding["severity"] != "error":
        return None
    return Replay(half_id, group, _box, mark_of, _terms)


def _box(address: str, group: str) -> str:
    from coordinator.address.addresses import DEAD_LETTER_PREFIX, dead_letter_name

    return address if address.startswith(DEAD_LETTER_PREFIX) else dead_letter_name(group or address)


def _terms(connection: Connection, message: Message, fifo: bool) -> DeliveryTerms:
    from coordinator.address.enqueue import terms_again
    from coordinator.heads import whole_head

    head = whole_head(connection, message.half_id, message.head, message.octets)
    return terms_again(head, fifo=fifo, posted_at=message.posted_at)
