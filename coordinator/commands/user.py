"""``coordinator user add | list | password | role | disable | enable | remove``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    fail,
    print_rows,
    store,
    user_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

app = typer.Typer(help="Users that clients log in as.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 128 octets of printable text; case counts.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Take the password from the first line of this file, - for the standard input. Default: it is asked for.",
    ),
]

#: octets of a password's line that are read
_LONGEST_LINE = 4096


@app.command()
def add(
    name: Name,
    password_file: PasswordFile = None,
    without_password: Annotated[
        bool, typer.Option("--without-password", help="It logs in by its certificate alone (SASL EXTERNAL).")
    ] = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Make a user, while the service runs. Its password is not stored, but what it is compared by."""
    from coordinator.login import verifiers
    from store import users
    from store.errors import UserExists

    name = user_name(name)
    if name != name.strip():  # they are not seen, and another user may have the name without them
        fail("this can be no name of a user: it begins or ends with a space", 2)
    if without_password and password_file is not None:
        fail("--without-password: a password is given too; leave one out", 2)
    made = {} if without_password else verifiers.new(_password(password_file))
    with store(config, database_url, data_dir, reason) as connection:
        try:
            users.add(connection, name, made)
        except UserExists:
            fail(f"there is a user {name} already")
    typer.echo(f"made the user {name}")


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List all users with their roles, and since when each is disabled."""
    from store import users

    with store(config, database_url, data_dir) as connection:
        rows = [asdict(each) for each in users.list_all(connection)]
    print_rows(rows, ("name", "disabled_at", "password_set_at", "created_at", "roles"), as_json=as_json)


@app.command()
def password(
    name: Name,
    password_file: PasswordFile = None,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Give a user another password. Connections that it has stay; new ones need the new password at once."""
    from coordinator.login import verifiers
    from store import users

    name = user_name(name)
    made = verifiers.new(_password(password_file))
    _change(
        name,
        lambda connection, name: users.set_verifiers(connection, name, made),
        config,
        database_url,
        data_dir,
        reason,
    )
    typer.echo(f"{name}: has a new password")


@app.command()
def role(
    name: Name,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A name for permissions that several users have.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take the role from the user.")] = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Give a user a role, and with it what is granted to the role. It counts at once."""
    from store import permissions
    from store.tables import ANONYMOUS

    name, role = user_name(name), user_name(role, "role")
    if role == ANONYMOUS:
        fail(f"the role {ANONYMOUS} is that of clients without a login; no user has it", 2)
    with store(config, database_url, data_dir, reason) as connection:
        if remove and not permissions.take_role(connection, name, role):
            fail(f"there is no user {name} with the role {role}")
        if not remove and not permissions.give_role(connection, name, role):
            fail(f"there is no user {name}")
    typer.echo(f"{name}: {'without' if remove else 'has'} the role {role}")


@app.command()
def disable(
    name: Name, reason: Reason = None, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """A user may not log in any more, and its connections are closed."""
    from store import users

    name = user_name(name)
    _change(name, users.disable, config, database_url, data_dir, reason)
    typer.echo(f"{name}: disabled")


@app.command()
def enable(
    name: Name, reason: Reason = None, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """A user may log in again, with the password that it had."""
    from store import users

    name = user_name(name)
    _change(name, users.enable, config, database_url, data_dir, reason)
    typer.echo(f"{name}: enabled")


@app.command()
def remove(
    name: Name, reason: Reason = None, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """Remove a user with its password, roles and permissions, and close its connections."""
    from store import users

    name = user_name(name)
    _change(name, users.remove, config, database_url, data_dir, reason)
    typer.echo(f"removed the user {name}")


def _change(
    name: str,
    change: Callable[[Connection, str], bool],
    config: Config,
    database_url: DatabaseUrl,
    data_dir: DataDir,
    reason: Reason,
) -> None:
    """Make the change to the user; ends the command if there is none."""
    with store(config, database_url, data_dir, reason) as connection:
        if not change(connection, name):
            fail(f"there is no user {name}")


def _password(file: Path | None) -> str:
    """The password of the file, or of the terminal, twice; ends the command if it can be none."""
    from coordinator.login import verifiers

    text = _asked() if file is None else _read(file)
    try:
        return verifiers.new_password(text)
    except verifiers.NotPrepared as error:
        fail(f"this can be no password: {error}", 2)


def _asked() -> str:
    if not sys.stdin.isatty():
        fail("there is no terminal to ask for the password; give --password-file", 2)
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt="Once more"))


def _read(file: Path) -> str:
    try:
        if str(file) == "-":
            octets = sys.stdin.buffer.readline(_LONGEST_LINE)
        else:
            with file.open("rb") as stream:
                octets = stream.readline(_LONGEST_LINE)
        return octets.decode().rstrip("\r\n")
    except OSError as error:
        fail(f"--password-file: {file}: {error.strerror}", 2)
    except UnicodeDecodeError:
        fail(f"--password-file: {file}: the first line is not UTF-8", 2)
