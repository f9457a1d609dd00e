"""``coordinator archive on | off | write | restore``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    fail,
    named_folder,
    require,
    settings,
    store,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

app = typer.Typer(
    help="Keep what retention drops as Parquet files: whole days, counted and summed before they are dropped.",
    no_args_is_help=True,
)


@contextmanager
def _archive(config: Path | None, database_url: str | None, data_dir: Path | None) -> Iterator[Connection]:
    """Yield a connection to the store; what is wrong with the archive ends the command with 2."""
    from store.archive.copies import ArchiveUnusable

    try:
        with store(config, database_url, data_dir, work="long") as connection:
            yield connection
    except ArchiveUnusable as error:
        fail(str(error), 2)


def _root(connection: Connection, given: Path | None = None) -> Path:
    """Return the folder of the archive: this one, or that of the archive which is on; ends the command if none is."""
    from store.archive import days

    root = given or days.folder(connection)
    connection.rollback()
    if root is None:
        fail("the archive is off; coordinator archive on FOLDER turns it on")
    return days.checked_root(connection, root)


def _day(given: str, what: str) -> date:
    try:
        return date.fromisoformat(given)
    except ValueError:
        fail(f"{what}: {given!r} is no day; expected 2026-11-01", 2)


@app.command()
def on(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            parser=named_folder,
            help="Where the archive is kept; made if it is missing. coordinator archive write fills it.",
        ),
    ],
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Turn the archive on: from now on the store drops no day that is not archived in this folder.

    An archive that was moved is turned on again at its new place. Exit status 2: the folder is another store's, or
    lacks days that are dropped.
    """
    from store.archive import days

    with _archive(config, database_url, data_dir) as connection:
        days.turn_on(connection, folder.absolute())
    typer.echo(f"the archive is on, in {folder.absolute()}; run coordinator archive write once a day")


@app.command()
def off(database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None) -> None:
    """Turn the archive off: old days are dropped again without a copy. What is archived stays."""
    from store.archive import days

    with _archive(config, database_url, data_dir) as connection:
        was_on = days.turn_off(connection)
    typer.echo("the archive is off" if was_on else "the archive was off")


@app.command()
def write(
    before: Annotated[
        str | None,
        typer.Option(
            metavar="DAY",
            help="Archive all days before this one (UTC), though the store still keeps them. Default: those that the"
            " settings' retention drops by now.",
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Archive the days that have become old enough, and drop them.

    Each is counted and summed in the store, written, read back and compared, and only then dropped. Stopped at any
    point, it is run again. Exit status 2: the archive cannot be written, or is another store's.
    """
    require("reconcile")
    from coordinator.commands.maintenance import policy
    from store import retention
    from store.archive import writing

    until = None if before is None else _day(before, "--before")
    if until is not None and until > datetime.now(UTC).date():
        fail(
            f"--before: {until.isoformat()} is yet to come; expected today ({datetime.now(UTC):%Y-%m-%d}) or earlier", 2
        )
    kept = policy(settings(config, database_url=database_url, data_dir=data_dir).retention)
    with _archive(config, database_url, data_dir) as connection, writing.alone(connection):
        root = _root(connection)
        due = writing.due(connection, kept, until)
        for table, day in due:
            done = writing.write_day(connection, root, table, day)
            typer.echo(f"archived {table} of {day.isoformat()}: {done.rows} rows, {done.octets} octets")
        dropped = retention.drop_old(connection, kept)
    if not due:
        typer.echo("no day is due to be archived")
    for name in dropped.emptied:
        typer.echo(f"dropped {name}")
    for name in (*dropped.waiting, *dropped.unarchived):
        typer.echo(f"left {name} for later: it is in use, or rows came to it meanwhile")


@app.command()
def restore(
    day: Annotated[str, typer.Argument(metavar="DAY", help="A day (UTC) that is archived and dropped: 2026-11-01.")],
    hold: Annotated[
        int, typer.Option(metavar="HOURS", min=1, max=24 * 365, help="For how long retention leaves it alone then.")
    ] = 7 * 24,
    archive: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", parser=named_folder, help="The archive. Default: that of the archive which is on."
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Bring a day back: its messages and decisions are in the store again, as they were. Nothing is delivered by that.

    The copy stays, and is checked whole before the first row is written. Exit status 2: it is not there, or changed.
    """
    require("reconcile")
    from store.archive import restoring, writing

    wanted = _day(day, "DAY")
    with _archive(config, database_url, data_dir) as connection, writing.alone(connection):
        back = restoring.restore_day(connection, _root(connection, archive), wanted, timedelta(hours=hold))
    for table, rows in back.items():
        typer.echo(f"restored {table} of {wanted.isoformat()}: {rows} rows")
