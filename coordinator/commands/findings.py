"""``coordinator findings list | show``."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    fail,
    print_json,
    print_rows,
    store,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from store.runs import Stored

app = typer.Typer(
    help="Look at what coordinator watch, and runs of coordinator reconcile --store, have found.", no_args_is_help=True
)

_COLUMNS = ("run", "seen_at", "since", "until", "books", "findings", "kinds")
_SHOWN = ("kind", "severity", "txn_id", "half_id", "address", "consumer_group", "detail", "suggested_repair")


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List the runs in the store, the last first: as of when each read it, over which period, and what it has found;
    among them what coordinator watch has found since it began."""
    from store import runs

    with store(config, database_url, data_dir) as connection:
        found = runs.runs(connection)
    if as_json:
        print_json([_run(each) for each in found])
    else:
        watching = {"books": "(coordinator watch)"}
        lines = [
            {
                **_run(each),
                **(watching if each.watch_id else {}),
                "kinds": [f"{count} {kind}" for kind, count in _kinds(each).items()],
            }
            for each in found
        ]
        print_rows(lines, _COLUMNS, as_json=False)


@app.command()
def show(
    run: Annotated[int, typer.Argument(metavar="RUN", help="The number of a run, as list has it.")],
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Of this kind alone, such as lost-delivery; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000_000, help="The first so many.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show the findings of a run, in the order of its report."""
    from store import runs

    with store(config, database_url, data_dir, work="long") as connection:
        of = the_run(connection, run)
        found = islice(runs.findings(connection, of, kinds=_known(kind or (), of)), limit)
        if as_json:
            for each in found:
                typer.echo(json.dumps(asdict(each), default=str, ensure_ascii=True))
        else:
            print_rows([asdict(each) for each in found], _SHOWN, as_json=False)


def the_run(connection: Connection, number: int) -> Stored:
    """Return the run of this number; ends the command if there is none."""
    from store import runs

    found = runs.run_of(connection, number) if 0 < number < 1 << 31 else None
    if found is None:
        fail(f"there is no run {number}: coordinator findings list has those that are stored")
    return found


def _known(kinds: Sequence[str], of: Stored) -> Sequence[str]:
    """Return ``kinds``; ends the command if one is unknown here, and to the run, which may be another version's."""
    from spark.kinds import KINDS

    for each in kinds:
        if each not in KINDS and each not in _kinds(of):
            fail(f"--kind: expected one of {', '.join(KINDS)}, not {each[:40]!r}", 2)
    return kinds


def _kinds(found: Stored) -> dict[str, int]:
    counted: dict[str, int] = {}
    for (kind, _), count in found.counts.items():
        counted[kind] = counted.get(kind, 0) + count
    return counted


def _run(found: Stored) -> dict[str, object]:
    return {
        "run": found.id,
        "seen_at": found.seen_at,
        "since": found.since,
        "until": found.until,
        "books": list(found.books),
        "watch": found.watch_id is not None,
        "stored_at": found.stored_at,
        "version": found.version,
        "findings": found.findings,
        "kinds": _kinds(found),
    }
