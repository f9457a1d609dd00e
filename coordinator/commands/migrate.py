"""``coordinator migrate``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, database_of, fail, is_embedded, settings


def migrate(
    show: Annotated[
        bool,
        typer.Option("--sql", help="Print the SQL for an administrator, who runs it as the owner, and do nothing."),
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Bring the database's schema to this version. An embedded server is migrated at the start of the service."""
    found = settings(config, database_url=database_url, data_dir=data_dir)
    url = database_of(found, database_url, data_dir)
    embedded = is_embedded(found, database_url, data_dir)
    from store import migrations
    from store.errors import StoreError

    try:
        if show:
            script = migrations.script(url)
            typer.echo(script or f"-- database schema is at {migrations.REVISIONS[-1]} already", nl=not script)
        else:
            _migrate(url, embedded)
    except StoreError as error:
        fail(str(error))


def _migrate(url: str, embedded: bool) -> None:
    from coordinator.commands import held_up
    from store import migrations, partitions, recovery
    from store.database import connected

    session, alive = "coordinator migrate", None
    if embedded and migrations.is_behind(url):
        fail(
            "the PostgreSQL that comes along is migrated when the service starts, which copies it before: stop the"
            " service, and start this version"
        )
    with held_up.reporting(url, session, lambda text: typer.echo(text, err=True)):
        before = migrations.upgrade(url)
        with connected(url, application_name=session) as connection:
            if before != migrations.REVISIONS[-1]:
                alive = connection.scalar(recovery.ALIVE)
            partitions.make_ahead(connection)  # applications may post in SQL before the first service starts
    if before == migrations.REVISIONS[-1]:
        typer.echo(f"database schema is at {before} already")
    else:
        typer.echo(f"database schema is at {migrations.REVISIONS[-1]} now, was at {before or 'none'}")
    if alive:
        typer.echo(f"instances of the service that are alive: {alive}; stop those of the version before", err=True)
