"""``coordinator maintain``."""

from __future__ import annotations

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, database, fail, settings, store


def maintain(database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None) -> None:
    """Do once what a service whose role owns the store does every ten minutes: make the partitions of the coming days,
    drop old days, forget what is old. For a timer, where the service's role owns nothing (coordinator role grant); the
    owner of the store runs it.
    """
    from coordinator.commands import maintenance
    from coordinator.process import logs
    from store import roles

    checked = settings(config)
    with store(config, database_url, data_dir) as connection:
        if not roles.owns(connection):
            fail("the database's role does not own the store, which drops days as their owner alone")
    logs.configure(checked.log)
    if maintenance.maintain(checked, database(config, database_url, data_dir)):
        raise typer.Exit(1)
