"""``coordinator findings list | show``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    asked,
    fail,
    print_json,
    print_rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: findings that are read at one time
_PAGE = 10_000

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
    from coordinator import answers

    found = asked(answers.all_runs, config, database_url, data_dir)
    if as_json:
        print_json(found)
    else:
        watching = {"books": "(coordinator watch)"}
        lines = [
            {
                **each,
                **(watching if each["watch"] else {}),
                "kinds": [f"{count} {kind}" for kind, count in each["kinds"].items()],
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
    from coordinator import answers

    of = asked(answers.one_run, config, database_url, data_dir, run=run)
    wanted: dict[str, Any] = {"run": run, "kind": _known(kind or (), of["kinds"])}
    shown, after, more = 0, 0, True
    while more:
        most = min(limit - shown, _PAGE)
        lines = asked(answers.findings, config, database_url, data_dir, work="long", **wanted, after=after, most=most)
        if as_json:
            for each in lines:
                typer.echo(json.dumps(each, default=str, ensure_ascii=True))
        elif lines or not shown:
            print_rows(lines, _SHOWN, as_json=False)
        shown += len(lines)
        after = lines[-1]["number"] if lines else after
        more = len(lines) == most and shown < limit
    if shown > _PAGE and asked(answers.one_run, config, database_url, data_dir, run=run)["seen_at"] != of["seen_at"]:
        fail(f"run {run} was repeated meanwhile")


def _known(kinds: Sequence[str], of: Mapping[str, int]) -> Sequence[str]:
    """Return ``kinds``; ends the command if one is unknown here, and to the run, which may be another version's and has
    the kinds ``of``.
    """
    from spark.kinds import KINDS

    for each in kinds:
        if each not in KINDS and each not in of:
            fail(f"--kind: expected one of {', '.join(KINDS)}, not {each[:40]!r}", 2)
    return kinds
