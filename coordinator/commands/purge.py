"""``coordinator purge``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, Reason, fail, store


def purge(
    address: Annotated[str, typer.Argument(help="The address.")],
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Throw away the messages that wait at an address; those that consumers hold stay."""
    from coordinator.address.addresses import shown
    from store.purge import purge as purge_store

    with store(config, database_url, data_dir, reason, work="long") as connection:
        done = purge_store(connection, address)
    if done is None:
        fail(f"there is no address {shown(address)}")
    typer.echo(f"purged {done.purged}, left {done.held} that are held by consumers or on their way to the dead letters")
