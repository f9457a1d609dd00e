"""``coordinator sql``."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, database, fail

if TYPE_CHECKING:
    from pathlib import Path

_READ_ONLY = "-c default_transaction_read_only=on"


def sql(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENT]...", help="Of psql, behind --."),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="The session may change what it finds. Without it, it only reads unless told otherwise."
        ),
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Open psql on the store, as its owner where it is the embedded one. The exit status is psql's.

    What follows -- is psql's: coordinator sql -- --csv --command 'select * from coordinator.outcome'. It is the psql
    that comes with the embedded PostgreSQL, else the one of the PATH.
    """
    from store.embedded.programs import BinariesMissing, psql

    url = database(config, database_url, data_dir)
    try:
        program = psql()
    except BinariesMissing as error:
        fail(str(error))
    _become(program, url, arguments or [], write=write)


def _become(program: Path, url: str, arguments: list[str], *, write: bool) -> None:
    """Replace this process by psql. What is secret is in its environment, which other users cannot read, and not among
    its arguments.
    """
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import Conninfo

    from store.database import check_url
    from store.errors import DatabaseUrlInvalid

    try:
        given = [each for each in Conninfo.parse(check_url(url).encode()) if each.val is not None]
    except DatabaseUrlInvalid as error:
        fail(str(error), 2)
    shown, environment = {"application_name": "coordinator sql"}, dict(os.environ)
    for each in given:
        name, value = each.keyword.decode(), (each.val or b"").decode()
        if not each.dispchar:
            shown[name] = value
        elif each.envvar is not None:
            environment[each.envvar.decode()] = value
        else:
            fail(
                f"the database URL gives {name}, which psql takes among its arguments alone, where all users see it", 2
            )
    if not write:
        shown["options"] = f"{shown.get('options') or environment.get('PGOPTIONS', '')} {_READ_ONLY}".strip()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and so would psql
    os.execve(program, [str(program), make_conninfo("", **shown), *arguments], environment)  # noqa: S606
