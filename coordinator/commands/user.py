"""``coordinator user add | list | set | remove``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    asked,
    fail,
    print_rows,
    user_name,
)
from coordinator.commands.permissions import report_what_ends

if TYPE_CHECKING:
    from pydantic import SecretStr

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
    from coordinator import changes
    from coordinator.answers import Malformed

    if without_password and password_file is not None:
        fail("--without-password: a password is given too; leave one out", 2)
    try:
        name = changes.new_name(name)
    except Malformed as error:
        fail(str(error), 2)
    password = None if without_password else _password(password_file)
    wanted = {"name": name, "password": password, "without_password": without_password}
    done = asked(changes.add_user, config, database_url, data_dir, reason, **wanted)  # type: ignore[arg-type]
    typer.echo(f"made the user {name}")
    report_what_ends(done)


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List all users with their roles, and since when each is disabled."""
    from coordinator import answers

    rows = asked(answers.all_users, config, database_url, data_dir)
    print_rows(rows, ("name", "disabled_at", "password_set_at", "created_at", "roles"), as_json=as_json)


@app.command("set")
def set_(
    name: Name,
    password: Annotated[bool, typer.Option("--password", help="Another password, which is asked for.")] = False,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Another password, from the first line of this file, - for the standard input. Connections stay.",
        ),
    ] = None,
    role: Annotated[
        str | None, typer.Option(metavar="ROLE", help="Have a role, and with it what is granted to the role.")
    ] = None,
    without_role: Annotated[str | None, typer.Option(metavar="ROLE", help="Have this role no more.")] = None,
    disable: Annotated[
        bool, typer.Option("--disable", help="May not log in any more; its connections are closed.")
    ] = False,
    enable: Annotated[bool, typer.Option("--enable", help="May log in again, with the password that it had.")] = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Change one thing of a user, while the service runs. It counts at once.

    A role is a name for permissions that several users have.
    """
    from coordinator import changes

    given = [password, password_file is not None, role is not None, without_role is not None, disable, enable]
    if given.count(True) != 1:
        fail("give one of --password, --password-file, --role, --without-role, --disable and --enable", 2)
    name = user_name(name)
    new = _password(password_file) if password or password_file is not None else None
    wanted = {"password": new, "role": role, "without_role": without_role, "disable": disable, "enable": enable}
    done = asked(changes.set_user, config, database_url, data_dir, reason, name=name, **wanted)  # type: ignore[arg-type]
    typer.echo(f"{name}: {done['state']}")


@app.command()
def remove(
    name: Name, reason: Reason = None, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """Remove a user with its password, roles and permissions, and close its connections."""
    from coordinator import changes

    done = asked(changes.remove_user, config, database_url, data_dir, reason, name=name)
    typer.echo(f"removed the user {done['name']}")
    report_what_ends(done)


def _password(file: Path | None) -> SecretStr:
    """Return the password of the file, or of the terminal, twice; ends the command if it can be none."""
    from pydantic import SecretStr

    from coordinator.login import verifiers

    text = _prompted() if file is None else _read(file)
    try:
        return SecretStr(verifiers.new_password(text))
    except verifiers.NotPrepared as error:
        fail(f"this can be no password: {error}", 2)


def _prompted() -> str:
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
