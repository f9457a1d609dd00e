"""``coordinator connection list | show | close``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    asked,
    fail,
    print_json,
    print_pairs,
    print_rows,
    print_table,
    user_name,
)

app = typer.Typer(help="List the connections of clients, and close one.", no_args_is_help=True)

_OPEN = (
    *("connection", "user", "host", "port", "container_id", "product", "version", "tls", "opened_at", "links"),
    *("unsettled", "posted_per_second", "delivered_per_second", "last_error"),
)
_CLOSED = (
    *("connection", "user", "host", "port", "container_id", "product", "version", "opened_at", "closed_at"),
    *("close_reason", "last_error"),
)
_LINK = ("name", "role", "address", "credit", "unsettled", "deliveries")

Id = Annotated[str, typer.Argument(metavar="CONNECTION", help="Its id, as list has it: 12-345.")]


def read_connection_id(text: str) -> str:
    """Return the id that the argument stands for; ends the command if it is none."""
    from coordinator import answers

    try:
        return str(answers.connection_id_of(text))
    except answers.Malformed as error:
        fail(str(error), 2)


@app.command("list")
def list_(
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Those of this user.")] = None,
    closed: Annotated[
        bool, typer.Option("--closed", help="The last that have ended, in place of those that are open, and why.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="At most so many.")] = 1000,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List the connections of clients, over all instances, as they were some seconds ago; the oldest first."""
    from coordinator import answers

    name = None if user is None else user_name(user)
    lines = asked(answers.all_connections, config, database_url, data_dir, user=name, closed=closed, most=limit)
    print_rows(lines, _CLOSED if closed else _OPEN, as_json=as_json)
    if len(lines) == limit:
        typer.echo(f"these are {limit}, the limit: there may be more (--limit)", err=True)


@app.command()
def show(
    connection_id: Id,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show one connection with its links: address, credit, unsettled deliveries, and how many it has carried."""
    from coordinator import answers

    wanted = read_connection_id(connection_id)
    shown = asked(answers.one_connection, config, database_url, data_dir, connection_id=wanted)
    if as_json:
        print_json(shown)
        return
    rows = shown.pop("link_list")
    print_pairs(shown)
    if rows:
        typer.echo()
        print_table(rows, _LINK)
    if shown["links"] > len(rows):
        typer.echo(f"and {shown['links'] - len(rows)} more links")


@app.command()
def close(
    connection_id: Id,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Close a connection with amqp:connection:forced; its client is told the reason. It may connect again."""
    from coordinator import acts

    wanted = read_connection_id(connection_id)
    asked(acts.close, config, database_url, data_dir, reason, connection_id=wanted)
    typer.echo(f"connection {wanted} is closed")
