"""``coordinator connection list | show | close``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    fail,
    print_json,
    print_pairs,
    print_rows,
    print_table,
    store,
    user_name,
)

if TYPE_CHECKING:
    from store.connections import ConnectionId

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

_DIGITS = 9


def read_connection_id(text: str) -> ConnectionId:
    """Return the id that the argument stands for; ends the command if it is none."""
    from store.connections import ConnectionId

    parts = text.split("-")
    if len(parts) != 2 or not all(each.isascii() and each.isdecimal() and len(each) <= _DIGITS for each in parts):
        fail(f"CONNECTION: expected two numbers, as in 12-345 (coordinator connection list), not {text[:80]!r}", 2)
    return ConnectionId(instance=int(parts[0]), number=int(parts[1]))


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
    from store import connections

    name = None if user is None else user_name(user)
    with store(config, database_url, data_dir) as connection:
        lines = connections.all_connections(connection, limit, user=name, closed=closed)
    print_rows([asdict(line) for line in lines], _CLOSED if closed else _OPEN, as_json=as_json)
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
    from store import connections

    wanted = read_connection_id(connection_id)
    with store(config, database_url, data_dir) as connection:
        line, links = connections.one(connection, wanted)
    shown, rows = asdict(line), [each._asdict() for each in links]
    if as_json:
        print_json({**shown, "link_list": rows})
        return
    print_pairs(shown)
    if rows:
        typer.echo()
        print_table(rows, _LINK)
    if line.links > len(rows):
        typer.echo(f"and {line.links - len(rows)} more links")


@app.command()
def close(
    connection_id: Id,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Close a connection with amqp:connection:forced; its client is told the reason. It may connect again."""
    from store import connections

    wanted = read_connection_id(connection_id)
    with store(config, database_url, data_dir, reason) as connection:
        connections.ask_to_close(connection, wanted, reason)
        connections.wait_until_closed(connection, wanted)
    typer.echo(f"connection {wanted} is closed")
