"""``coordinator grant-sql``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, Reason, fail, store

#: octets of a role's name
_LONGEST_NAME = 63
#: octets of a consumer's name in the inbox
_LONGEST_CONSUMER = 1000


def role_name(option: str, text: str) -> str:
    """The name of a role of the database; ends the command if it can be none."""
    if not text.isprintable() or not 0 < len(text.encode()) <= _LONGEST_NAME:
        fail(f"{option}: expected 1 to {_LONGEST_NAME} octets of printable text", 2)
    return text


def grant_sql(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A role of the database, that of an application.")],
    inbox: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A consumer's name in the inbox that belongs to ROLE, and its members, from now on; may be repeated. "
            "Default: a name belongs to the role that asks with it first.",
        ),
    ] = None,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Let a role of the database post, discharge and ask for first times in its own SQL transactions, and read the
    views. It touches no table. It becomes a member of the role coordinator_application, which is made if it is missing.
    """
    role = role_name("ROLE", role)
    if any(not 0 < len(name.encode()) <= _LONGEST_CONSUMER for name in inbox or ()):
        fail(f"--inbox: expected 1 to {_LONGEST_CONSUMER} octets", 2)
    from store import roles

    with store(config, database_url, data_dir, reason) as connection:
        roles.grant_application(connection, role, inbox or ())
    typer.echo(f"role {role} may use the store as an application")
