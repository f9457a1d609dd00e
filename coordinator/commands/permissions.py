"""``coordinator permission grant | revoke | list``."""

from __future__ import annotations

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
    store,
    user_name,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from store.permissions import Grantee, Verb

app = typer.Typer(help="What users may do, and who may do what.", no_args_is_help=True)

#: characters of an address, the separator, and a group
_LONGEST_PATTERN = 2050

Verbs = Annotated[
    str,
    typer.Argument(
        metavar="VERBS",
        help="Of send, receive, browse, create, check, manage: one, or some with commas between; or all.",
    ),
]
Pattern = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN",
        help="A name of an address, or its beginning and a * (orders.*). To receive and browse also ADDRESS::GROUP; to "
        "check the producer group.",
    ),
]
OfUser = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user.")]
OfRole = Annotated[
    str | None,
    typer.Option("--role", metavar="ROLE", help="All users with the role; anonymous: clients without a login."),
]


def report_what_ends(connection: Connection, *, open_before: bool) -> None:
    """Print, after a change, that permissions count from now on, or no longer (S3)."""
    from store import permissions

    now_open = permissions.none_counts(connection)
    if open_before and not now_open:
        typer.echo(
            "From now on clients without a login may do what the role anonymous may. To let them go on as before:\n"
            "coordinator permission grant all '*' --role anonymous",
            err=True,
        )
    elif now_open and not open_before:
        typer.echo("There are no users and no permissions now: clients without a login may do everything.", err=True)


@app.command()
def grant(
    verbs: Verbs,
    pattern: Pattern,
    user: OfUser = None,
    role: OfRole = None,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Let a user, or all users with a role, send to addresses, receive from them, and so on. It counts at once."""
    from store import permissions

    grantee, wanted, pattern = _grantee(user, role), _verbs(verbs), _pattern(pattern)
    with store(config, database_url, data_dir, reason) as connection:
        open_before = permissions.none_counts(connection)
        if not permissions.grant(connection, grantee, wanted, pattern):
            fail(f"there is no user {grantee.user}")
        typer.echo(f"{_name(grantee)} may {', '.join(wanted)}: {pattern}")
        report_what_ends(connection, open_before=open_before)


@app.command()
def revoke(
    verbs: Verbs,
    pattern: Pattern,
    user: OfUser = None,
    role: OfRole = None,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Take back what was granted with just this PATTERN. Links that need it are detached at once."""
    from store import permissions

    grantee, wanted, pattern = _grantee(user, role), _verbs(verbs), _pattern(pattern)
    with store(config, database_url, data_dir, reason) as connection:
        found = permissions.revoke(connection, grantee, wanted, pattern)
        if not found:
            fail(f"{_name(grantee)} has no such permission with the pattern {pattern}")
        typer.echo(f"revoked {found}")
        report_what_ends(connection, open_before=False)


@app.command("list")
def list_(
    who: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--who",
            metavar="VERB ADDRESS",
            help="Only who may do this, user by user, each with the permission that says so: send, receive, browse, "
            "create, check or manage, and an address, ADDRESS::GROUP, or to check a producer group.",
        ),
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List all permissions."""
    from coordinator import answers

    verb, name = (None, None) if who is None else who
    columns = ("user", "role", "verb", "pattern", "granted_at") if who is None else ("user", "role", "pattern")
    rows = asked(answers.all_permissions, config, database_url, data_dir, verb=verb, name=name)
    print_rows(rows, columns, as_json=as_json)


def _name(grantee: Grantee) -> str:
    return f"the role {grantee.role}" if grantee.user is None else grantee.user


def _grantee(user: str | None, role: str | None) -> Grantee:
    from store.permissions import Grantee

    if (user is None) == (role is None):
        fail("give --user or --role", 2)
    return Grantee(
        user=None if user is None else user_name(user), role=None if role is None else user_name(role, "role")
    )


def _verbs(text: str) -> list[Verb]:
    from store.permissions import Verb

    if text == "all":
        return list(Verb)
    try:
        return [Verb(each) for each in dict.fromkeys(text.split(","))]
    except ValueError:
        fail(f"VERBS: expected some of {', '.join(Verb)} with commas between, or all", 2)


def _pattern(text: str) -> str:
    from coordinator.address.permissions import ANYTHING

    if not 0 < len(text) <= _LONGEST_PATTERN or not text.isprintable():
        fail(f"PATTERN: expected 1 to {_LONGEST_PATTERN} printable characters", 2)
    if ANYTHING in text[:-1]:
        fail("PATTERN: a * can only be its last character", 2)
    return text
