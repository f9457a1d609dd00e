"""``--credentials`` says where Spark's tasks find the URL of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.administration import database, fail


def _absolute(file: Path | None) -> Path | None:
    """Return the absolute path: tasks have another working folder."""
    return None if file is None else file.absolute()


Credentials = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=_absolute,
        help="In place of --database-url: a file with the URL alone, which only its owner may read. On a cluster it"
        " is at this path on each machine.",
    ),
]


def store_url(config: Path | None, database_url: str | None, data_dir: Path | None, credentials: Path | None) -> str:
    """Return the store's URL; without one, ends the command with 2, as 1 may mean findings."""
    if credentials is not None:
        if (database_url, data_dir) != (None, None):
            fail("--credentials: give it, or --database-url, or --data-dir, not both", 2)
        return url_in(credentials)
    try:
        return database(config, database_url, data_dir)
    except typer.Exit:
        raise typer.Exit(2) from None


def url_in(credentials: Path, option: str = "--credentials") -> str:
    """Return the URL in the file of an option; ends the command if there is none."""
    from spark.source import SourceOptionError
    from spark.source import database_url as read
    from store.database import check_url
    from store.errors import DatabaseUrlInvalid

    try:
        return check_url(read(str(credentials)))
    except (SourceOptionError, DatabaseUrlInvalid) as error:
        fail(f"{option}: {error}", 2)
