"""``coordinator dead-letters list | show | export | replay``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    asked,
    fail,
    print_counted,
    print_json,
    print_rows,
    store,
)

app = typer.Typer(help="Look at dead letters, and replay them.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="The queue or group whose messages they were (orders, billing or orders::billing; groups of one name "
        "share them), or their address: %DLQ%..., or TRANS_CHECK_MAX_TIME_TOPIC.",
    ),
]
_COLUMNS = ("id", "since", "original_address", "original_id", "delivery_count", "last_error")
_UNANSWERED_COLUMNS = ("id", "since", "original_address", "producer_group", "txn_id", "check_count")


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List the addresses of dead letters, with how many they have."""
    from coordinator import answers

    lines = asked(answers.all_dead_letters, config, database_url, data_dir)
    if as_json:
        print_json(lines)
    else:
        print_counted(lines, ("name", "letters"), ["oldest"])


@app.command()
def show(
    name: Name,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="The oldest so many.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show dead letters, the oldest first: where each came from, and why it is one."""
    from coordinator import answers
    from coordinator.address.addresses import UNANSWERED

    lines = asked(answers.letters, config, database_url, data_dir, name=name, most=limit)
    for line in lines:
        line.pop("entry", None)
    print_rows(lines, _UNANSWERED_COLUMNS if name == UNANSWERED else _COLUMNS, as_json=as_json)


@app.command()
def export(name: Name, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None) -> None:
    """Write dead letters to the standard output, a line of JSON each; "message" is the whole AMQP message in base64."""
    from coordinator import answers

    with store(config, database_url, data_dir, work="long") as connection:
        after = 0
        while lines := answers.letters(connection, name, after=after, most=100, whole=True):
            for line in lines:
                after = line.pop("entry")
                typer.echo(json.dumps(line, default=str, ensure_ascii=True))


@app.command()
def replay(
    name: Name,
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Letters, as show lists them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are there now.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="ADDRESS", help="Post them to all groups of this address, not to the group they came from."
        ),
    ] = None,
    like: Annotated[
        int | None,
        typer.Option(
            metavar="ID", help="With --all: those alone from the same address as this one, of the same error."
        ),
    ] = None,
    as_json: Json = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Post dead letters anew to the group that failed them, with no failed attempts.

    A message is as it came. One that has expired is delivered all the same, and a client that looks at its
    absolute-expiry-time may drop it (Qpid JMS does, unless its URL says jms.localMessageExpiry=false).

    Exit status: 0 all were replayed, 1 some stay (the last lines say why).
    """
    from coordinator import acts

    if bool(ids) == every or (like is not None and not every):
        fail("give letters by ID, or --all", 2)
    wanted: dict[str, Any] = {"name": name, "ids": ids or None, "all": every, "to": to, "like": like}
    done = asked(acts.replay, config, database_url, data_dir, reason, work="long", **wanted)
    replayed, left, rest = list(done["ids"]), list(done["left"]), done["next"]
    while rest is not None:
        done = asked(acts.replay, config, database_url, data_dir, reason, work="long", **wanted, **rest)
        replayed, left, rest = [*replayed, *done["ids"]], [*left, *done["left"]], done["next"]
    if as_json:
        print_json({"ids": replayed, "left": left})
    else:
        typer.echo(f"replayed {len(replayed)}, left {len(left)}")
        for number, why in left:
            typer.echo(f"left: {number}: {why}")
    if left:
        raise typer.Exit(1)
