"""Parts of the administrative commands: find the store, print an answer, fail.

Exit status: 0 done, 1 it could not be done (not found, refused, the database is away), 2 the command itself is wrong,
or its standard output cannot be written.
"""

from __future__ import annotations

import inspect
import json
import os
import pwd
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import typer

from coordinator.printable import printable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from coordinator.commands.remote import Remote
    from coordinator.settings import Settings
    from store.audit import Actor


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command with ``message`` on the standard error."""
    for line in message.splitlines():
        typer.echo(f"error: {printable(line)}", err=True)
    raise typer.Exit(status)


def require(extra: str) -> None:
    """End the command, with 2, where ``extra`` of :data:`coordinator.extras.MODULES` is not installed."""
    from coordinator.extras import missing

    if (said := missing(extra)) is not None:
        fail(said, 2)


def named_folder(text: str) -> Path:
    """Return the folder of an option. An empty text ends the command: it may be of a variable that is not set, and
    would be the current folder.
    """
    if not text:
        fail("a folder is given as an empty text; the current one is .", 2)
    return Path(text)


DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The store's database, postgresql://...; a password is better in the environment, the settings file or "
        "~/.pgpass. Default: the embedded server of the data folder.",
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="FOLDER", parser=named_folder, help="The data folder of the embedded server.")
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="The settings file (TOML).")]
Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Why; kept in the audit (coordinator audit shows it).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: What a command does in the store: a moment's work, counting all that waits, or work that takes as long as it takes.
#: It says for how long the command waits for the store.
Work = Literal["brief", "counting", "long"]

_Told = TypeVar("_Told")

#: what a command says is wrong, by the status of the API
_WRONG = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_OF_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_TOKEN = re.compile("[!-~]+")

#: characters of a value in a table; `--json` has all
_WIDEST_CELL = 100


def settings(config: Path | None, **flags: object) -> Settings:
    """Return the settings, with those of the command line; ends the command if one is wrong, or with ``--url``."""
    if _remote is not None:
        fail("--url: the API does not do this; leave it out, for the store itself", 2)
    from coordinator.process.arguments import hide
    from coordinator.settings import SettingsInvalid, load

    if isinstance(url := flags.get("database_url"), str):
        hide(url)
    try:
        return load(flags, config)
    except SettingsInvalid as error:
        fail(str(error), 2)


def database(config: Path | None, database_url: str | None, data_dir: Path | None, status: int = 1) -> str:
    """Return the URL of the store: of the flag or the settings, else of the embedded server, which must run; if it does
    not, the command ends with ``status``, as it does with 2 if both are given as flags.
    """
    return database_of(settings(config, database_url=database_url, data_dir=data_dir), database_url, data_dir, status)


def is_embedded(found: Settings, database_url: str | None, data_dir: Path | None) -> bool:
    """Whether the store is the embedded server's: a folder on the command line wins over a URL in the settings."""
    return found.database_url is None or (database_url is None and data_dir is not None)


def database_of(found: Settings, database_url: str | None, data_dir: Path | None, status: int = 1) -> str:
    """Do as :func:`database`, with settings that were read with the flags."""
    if database_url is not None and data_dir is not None:
        fail("--data-dir: a database URL is given too; leave one out", 2)
    from store.embedded.folder import default_data_dir
    from store.embedded.programs import EmbeddedError
    from store.embedded.running import running_url

    if found.database_url is not None and not is_embedded(found, database_url, data_dir):
        return found.database_url.get_secret_value()
    try:
        return running_url(found.data_dir or default_data_dir())
    except EmbeddedError as error:
        fail(str(error), status)


def user_name(text: str, kind: str = "user") -> str:
    """Return the name of a user, or of a role, as it is stored; ends the command if it can be none."""
    from coordinator import answers

    try:
        return answers.user_name(text, kind)
    except answers.Malformed as error:
        fail(str(error), 2)


def actor(reason: str | None) -> Actor:
    """Return the person who runs this command, for the audit; ends the command if ``reason`` can be none."""
    from coordinator.answers import Malformed, check_reason
    from store.audit import Actor

    try:
        check_reason(reason)
    except Malformed as error:
        fail(error.by_option, 2)
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:  # in a container
        name = str(number)
    return Actor(os_user=name, host=socket.gethostname(), reason=reason)


@contextmanager
def store(
    config: Path | None,
    database_url: str | None,
    data_dir: Path | None,
    reason: str | None = None,
    *,
    work: Work = "brief",
    status: int = 1,
) -> Iterator[Connection]:
    """Yield a connection to the store, its schema checked; an error of the store ends the command with ``status``, with
    1 where the store does not have what the command asks for, and with 2 where that can be none.

    ``reason``: of what is decided, for the audit.
    """
    person = actor(reason)
    from coordinator.answers import InTheWay, Malformed, Unknown
    from store import audit, migrations
    from store.database import BRIEF, COUNTING, ENDLESS, connected
    from store.errors import DatabaseUrlInvalid, Locked, StoreError

    patience = {"brief": BRIEF, "counting": COUNTING, "long": ENDLESS}[work]
    try:
        url = database(config, database_url, data_dir, status)
        with connected(url, application_name="coordinator command", patience=patience) as connection:
            migrations.check(connection)
            audit.act_as(connection, person)
            yield connection
    except Malformed as error:
        fail(error.by_option, 2)
    except (Unknown, InTheWay) as error:
        fail(error.by_option)
    except DatabaseUrlInvalid as error:
        fail(str(error), 2)
    except Locked as error:
        fail(f"{error}{_standby_of(url)}", status)
    except StoreError as error:
        fail(str(error), status)


#: what ``coordinator --url`` asks in place of the store
_remote: Remote | None = None


def ask_at(url: str, token_file: Path | None) -> None:
    """Have the API at ``url`` answer this command; ends the command if it cannot."""
    global _remote
    from coordinator.commands.remote import Remote
    from coordinator.secret_file import FileInvalid, secret
    from coordinator.settings import HTTP, TOKEN_VARIABLE, endpoint

    try:
        place = endpoint(url, HTTP)
    except ValueError as error:
        fail(f"--url: {error}", 2)
    if place.scheme == "http" and place.host not in _OF_THIS_MACHINE:
        fail("--url: in plain text others could read the token; expected https://, or http://localhost:port", 2)
    try:
        token = os.environ.get(TOKEN_VARIABLE, "")
        if token_file is not None:
            token = secret("--token-file", token_file).decode("ascii", "replace")
    except FileInvalid as error:
        fail(str(error), 2)
    if not _TOKEN.fullmatch(token.strip()):
        fail(f"--url: expected the token of an operator in --token-file, or in {TOKEN_VARIABLE}", 2)
    _remote = Remote(place, token.strip())


def by_api(
    run: Callable[..., Any],
    config: Path | None,
    database_url: str | None,
    data_dir: Path | None,
    /,
    *,
    status: int,
    **given: object,
) -> Any:
    """Return what the API of ``--url`` returns for ``run``, of :mod:`coordinator.operations`; None: there is no such
    flag. Errors end the command as those of :func:`store`.
    """
    if _remote is None:
        return None
    if (config, database_url, data_dir) != (None, None, None):
        fail("--url: a store, or settings, are given too; leave one out", 2)
    from coordinator.commands.remote import RemoteError

    try:
        return _remote.ask(run, given)
    except RemoteError as error:
        if error.status in (None, HTTPStatus.SERVICE_UNAVAILABLE):
            fail(str(error), status)
        fail(str(error), 2 if error.status in _WRONG else 1)


def asked(
    run: Callable[..., _Told],
    config: Path | None,
    database_url: str | None,
    data_dir: Path | None,
    reason: str | None = None,
    /,
    *,
    work: Work = "brief",
    status: int = 1,
    **given: object,
) -> _Told:
    """Return what ``run``, of :mod:`coordinator.operations`, returns with the arguments ``given``. Errors, ``reason``
    and ``status``: as of :func:`store`.
    """
    takes = inspect.signature(run).parameters
    if "reason" in takes:
        given["reason"] = reason
    if _remote is not None:
        actor(reason)
        if reason is not None:
            given["reason"] = reason
        told: _Told = by_api(run, config, database_url, data_dir, status=status, **given)
        return told
    if "kept" in takes:
        given["kept"] = timedelta(hours=settings(config).retention.hours)
    with store(config, database_url, data_dir, reason, work=work, status=status) as connection:
        return run(connection, **given)


def _standby_of(url: str) -> str:
    """Return a text about the sessions that hold locks while their commits wait for a standby; may be empty."""
    from store.database import BRIEF, connected
    from store.errors import StoreError
    from store.locks import waiting_for_standby

    try:
        with connected(url, application_name="coordinator command", patience=BRIEF) as connection:
            count = waiting_for_standby(connection)
    except StoreError:
        return ""
    sessions = "1 session of this database waits" if count == 1 else f"{count} sessions of this database wait"
    return f"; {sessions} to commit until a synchronous standby answers" if count else ""


@contextmanager
def defects_by_name() -> Iterator[None]:
    """End the command with 2 after an unexpected error, as its 1 means that something was found."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        from coordinator.extras import explained

        if isinstance(error, ModuleNotFoundError) and explained(error) is not None:
            raise  # __main__ tells of it
        traceback.print_exception(error)
        fail("that is a defect of coordinator, and nothing that was found", 2)


def print_json(value: object) -> None:
    """Print one JSON document; times in ISO 8601, UTC."""
    from coordinator.answers import plain

    for piece in json.JSONEncoder(default=plain, indent=2, ensure_ascii=False).iterencode(value):
        # JSON escapes control characters below U+0020 alone; a terminal acts on others too
        shown = piece if piece.isprintable() else "".join(map(_harmless, piece))
        sys.stdout.write(shown)
    sys.stdout.write("\n")


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print ``columns`` of ``rows``, aligned, under their names; control characters in values are escaped. A long one
    moves what comes behind it on its own line, and spreads no other.
    """
    lines = [[name.replace("_", "-") for name in columns]]
    lines += [[_cell(row[name]) for name in columns] for row in rows]
    widths = [
        max(len(line[index]) for line in lines if len(line[index]) <= _WIDEST_CELL) for index in range(len(columns))
    ]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_counted(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], others: Sequence[str] = ()) -> None:
    """Print a table of counts and ``others``; between them, if any has more than is counted, how many these are."""
    from coordinator.answers import about

    more = ["more"] if any(row["more"] is not None for row in rows) else []
    print_table([{**row, "more": about(row["more"])} for row in rows], [*columns, *more, *others])


def print_rows(rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print all that the rows have as JSON, or ``columns`` of them as a table."""
    if as_json:
        print_json(rows)
    else:
        print_table(rows, columns)


def print_pairs(values: Mapping[str, object]) -> None:
    """Print one ``name: value`` a line."""
    width = max(len(name) for name in values) + 1
    for name, value in values.items():
        typer.echo(f"{name.replace('_', '-') + ':':<{width}} {_cell(value)}")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(each) for each in value) or "-"
    text = printable(str(value))
    # blanks at an end, or alone, would not be seen
    return text if text == text.strip() else repr(text)


def _harmless(character: str) -> str:
    """Escape a character of a JSON text: unprintable ones occur in strings, except line ends."""
    return character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
