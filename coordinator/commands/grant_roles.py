"""``coordinator grant-roles``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, Reason, fail, store
from coordinator.commands.grant_sql import role_name


def grant_roles(
    service: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="A role of the database for the service, and for the commands of operators."),
    ] = None,
    reader: Annotated[
        str | None, typer.Option(metavar="ROLE", help="A role of the database that only reads, for reconciliation.")
    ] = None,
    show: Annotated[bool, typer.Option("--sql", help="Print the SQL, and do nothing.")] = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Let a role of the database run the service without owning anything, or only read the store. The owner of the
    store runs this, again after each upgrade; coordinator migrate and maintain stay the owner's.
    """
    from store import roles

    if service is None and reader is None:
        fail("give --service or --reader", 2)
    given = [
        (group, role_name(option, role))
        for group, option, role in ((roles.SERVICE, "--service", service), (roles.READER, "--reader", reader))
        if role is not None
    ]
    if show:
        typer.echo(roles.script(given), nl=False)
        return
    with store(config, database_url, data_dir, reason) as connection:
        for group, role in given:
            roles.grant(connection, group, role)
            what = "run the service" if group == roles.SERVICE else "read the store"
            typer.echo(f"role {role} may {what}")
