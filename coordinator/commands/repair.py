"""``coordinator repair``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    actor,
    by_api,
    database,
    defects_by_name,
    fail,
    named_folder,
    print_json,
)
from coordinator.printable import printable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from coordinator.answers import Answer
    from coordinator.repairs import Found
    from spark.read_back import Report
    from store.audit import Actor


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
    finding: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="With --run: this one of its findings, as findings show numbers them."),
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
    and replay a message whose dead letter is lost. The first decision wins; nothing is forced. Of a report of several
    stores it repairs the findings of this one.

    What is told is done and stays: interrupted, it goes on when it is run again, and does nothing twice.

    Exit status: 0 nothing is left to do, 1 some findings are left (the lines say why), 2 it could not run.
    """
    with defects_by_name():
        person = actor(reason)
        if (folder is None) == (run is None):
            fail("give the FOLDER of a report, or --run RUN", 2)
        if finding is not None and run is None:
            fail("--finding: give --run, too", 2)
        told = _Told(apply=apply, as_json=as_json)
        at = config, database_url, data_dir
        given = {"run": str(run), "finding": finding, "apply": apply, "reason": reason}
        try:
            if run is None or not _by_api(told, at, given):
                _by_store(told, folder, run, finding, person, url=lambda: database(*at))
        except typer.Exit as error:
            raise typer.Exit(max(2, error.exit_code)) from None
        if told.end():
            raise typer.Exit(1)


def _by_api(told: _Told, at: tuple[Path | None, str | None, Path | None], given: dict[str, Any]) -> bool:
    """Have the API repair what a stored run has found; False: there is no ``--url``."""
    from coordinator import acts

    rest: dict[str, Any] | None = {"after": 0}
    while rest is not None:
        done = by_api(acts.repair, *at, status=2, **given, **rest)
        if done is None:
            return False
        told.add(done["repairs"], done["by_hand"])
        rest = done["next"]
    return True


def _by_store(
    told: _Told, folder: Path | None, run: int | None, finding: int | None, person: Actor, url: Callable[[], str]
) -> None:
    """Repair in the store itself; ends the command with 2 if it cannot."""
    from coordinator import repairs
    from coordinator.answers import Malformed, Unknown
    from spark.read_back import ReportUnusable, read_report
    from store import audit, migrations
    from store.database import connected
    from store.errors import StoreError

    try:
        report = None if folder is None else read_report(folder)
        with connected(url(), application_name="coordinator repair") as connection:
            migrations.check(connection)
            audit.act_as(connection, person)
            found = (
                repairs.of_run(connection, str(run), finding=finding)
                if report is None
                else _of_report(connection, report)
            )
            for piece in repairs.pieces(connection, found, apply=told.apply):
                told.add(map(asdict, piece.lines), piece.by_hand)
    except (ReportUnusable, StoreError, Unknown, Malformed) as error:
        fail(str(error), 2)
    except KeyboardInterrupt:
        fail("interrupted; run it again for the others", 130)


def _of_report(connection: Connection, report: Report) -> Found:
    from coordinator.repairs import Found
    from store import repairs

    mine = repairs.store_id(connection)
    if (of := report.stores.get(mine)) is None:
        stores = f"store{'s' if len(report.stores) > 1 else ''} {', '.join(report.stores)}"
        fail(f"the report in {report.folder} is of the {stores}, and this is {mine}", 2)
    reason = f"{repairs.REASON} {of.seen_at.isoformat()}"
    return Found(seen_at=of.seen_at, reason=reason, findings=partial(report.findings, of.name))


class _Told:
    """Prints what becomes of the findings, piece by piece; as JSON at the end."""

    def __init__(self, *, apply: bool, as_json: bool) -> None:
        from coordinator.repairs import ByHand

        self.apply = apply
        self._as_json = as_json
        self._lines: list[Answer] = []
        self._by_hand = ByHand()
        self._left = False

    def add(self, lines: Iterable[Answer], by_hand: Iterable[Mapping[str, Any]]) -> None:
        """Tell of findings that the store can do something about, and of others."""
        self._by_hand.add(by_hand)
        for each in lines:
            self._left = self._left or each["state"] != "done"
            if self._as_json:
                self._lines.append(each)
            else:
                word = {"can": "would", "done": "done:", "cannot": "left:"}[each["state"]]
                typer.echo(printable(f"{word} {each['said']} ({each['kind']})"))

    def end(self) -> bool:
        """Tell the rest; return whether something is left to do."""
        told = self._by_hand.told()
        if self._as_json:
            names = ("kind", "findings", "suggested_repair")
            by_hand = [{name: getattr(each, name) for name in names} for each in told]
            print_json({"applied": self.apply, "repairs": self._lines, "by_hand": by_hand})
        else:
            for kind in sorted({each.kind for each in told}):
                its = [each for each in told if each.kind == kind]
                count, first = sum(each.findings for each in its), its[0].suggested_repair
                others = f" (and {len(its) - 1} others)" if len(its) > 1 else ""
                typer.echo(printable(f"by hand: {count} {kind}: {first}{others}"))
        return self._left or bool(told)
