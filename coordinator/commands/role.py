"""``coordinator role grant``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, Reason, fail, store

app = typer.Typer(help="Roles of the database, and what they may do here.", no_args_is_help=True)

#: octets of a role's name
_LONGEST_NAME = 63
#: octets of a consumer's name in the inbox
_LONGEST_CONSUMER = 1000

_MAY = {
    "coordinator_application": "use the store as an application",
    "coordinator_service": "run the service",
    "coordinator_reader": "read the store",
}


@app.callback()
def _roles() -> None:
    pass


def _checked(option: str, text: str) -> str:
    """Return the name of a role of the database; ends the command if it can be none."""
    if not text.isprintable() or not 0 < len(text.encode()) <= _LONGEST_NAME:
        fail(f"{option}: expected 1 to {_LONGEST_NAME} octets of printable text", 2)
    return text


@app.command()
def grant(
    application: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE",
            help="The role of an application: it may post, discharge and ask for first times in its own SQL "
            "transactions, and read the views. It touches no table.",
        ),
    ] = None,
    inbox: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A consumer's name in the inbox that belongs to the application's role, and its members, from now on; "
            "may be repeated. Default: a name belongs to the role that asks with it first.",
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE", help="The role of the service, and of the commands of operators. It owns nothing."
        ),
    ] = None,
    reader: Annotated[
        str | None, typer.Option(metavar="ROLE", help="A role that only reads, for reconciliation.")
    ] = None,
    show: Annotated[bool, typer.Option("--sql", help="Print the SQL, and do nothing.")] = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Let a role of the database use the store: as an application, as the service, or as a reader. The owner of the
    store runs this, again after each upgrade; coordinator migrate and maintain stay the owner's.

    It becomes a member of coordinator_application, coordinator_service or coordinator_reader, which is made if it is
    missing.
    """
    from store import roles

    given = _given(application, inbox or [], service, reader)
    if show:
        typer.echo(roles.script(given, inbox or ()), nl=False)
        return
    with store(config, database_url, data_dir, reason) as connection:
        for group, role in given:
            if group == roles.APPLICATION:
                roles.grant_application(connection, role, inbox or ())
            else:
                roles.grant(connection, group, role)
            typer.echo(f"role {role} may {_MAY[group]}")
        if application is not None and roles.closed(connection):
            typer.echo(
                "it cannot connect yet: the embedded server listens at no port; give the service"
                " postgresql://127.0.0.1:5433 in listen",
                err=True,
            )


def _given(application: str | None, inbox: list[str], service: str | None, reader: str | None) -> list[tuple[str, str]]:
    """Return what each role becomes a member of, and the role; ends the command if something is wrong."""
    from store import roles

    if application is None and service is None and reader is None:
        fail("give --application, --service or --reader", 2)
    if application is None and inbox:
        fail("--inbox: give --application, too", 2)
    if any(not 0 < len(name.encode()) <= _LONGEST_CONSUMER for name in inbox):
        fail(f"--inbox: expected 1 to {_LONGEST_CONSUMER} octets", 2)
    given = (
        (roles.APPLICATION, "--application", application),
        (roles.SERVICE, "--service", service),
        (roles.READER, "--reader", reader),
    )
    return [(group, _checked(option, role)) for group, option, role in given if role is not None]
