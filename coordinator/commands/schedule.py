"""``coordinator schedule list | show``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    asked,
    print_counted,
    print_json,
    print_rows,
)
from coordinator.commands.group import Name

app = typer.Typer(help="Look at what is to be delivered later; message retire cancels one.", no_args_is_help=True)


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List the groups that are to get messages later: how many, of how many octets, and when the first and the last.

    Retries are those of them that have failed, and wait for the next attempt. Of a group with very many the next ones
    are counted.
    """
    from coordinator import answers

    lines = asked(answers.all_schedules, config, database_url, data_dir)
    if as_json:
        print_json(lines)
    else:
        named = [{**line, "group": line["group"] or "(default)"} for line in lines]
        print_counted(named, ("address", "group", "messages"), ("retries", "octets", "first_due", "last_due"))


@app.command()
def show(
    name: Name,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="The next so many.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show what a group is to get later, the next one first."""
    from coordinator import answers

    lines = asked(answers.scheduled, config, database_url, data_dir, name=name, most=limit)
    print_rows(lines, ("id", "due", "posted_at", "octets", "failures", "expires_at"), as_json=as_json)
