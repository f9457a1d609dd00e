"""``coordinator purge``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, Reason, fail, store


def purge(
    address: Annotated[str, typer.Argument(help="The address.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first, as it does on a terminal.")] = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Throw away the messages that wait at an address; those that consumers hold stay."""
    from coordinator.address.addresses import shown
    from store.purge import purge as purge_store

    if sys.stdin.isatty() and not yes:
        typer.confirm(f"Throw away all messages that wait at {shown(address)}?", abort=True)
    with store(config, database_url, data_dir, reason, work="long") as connection:
        done = purge_store(connection, address)
    if done is None:
        fail(f"there is no address {shown(address)}")
    typer.echo(f"purged {done.purged}, left {done.held} that are held by consumers or on their way to the dead letters")
