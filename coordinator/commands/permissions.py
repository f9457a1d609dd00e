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
    print_rows,
)

if TYPE_CHECKING:
    from coordinator.answers import Answer

app = typer.Typer(help="What users may do, and who may do what.", no_args_is_help=True)

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


def report_what_ends(done: Answer) -> None:
    """Print, after a change, that permissions count from now on, or no longer (S3)."""
    if done["open_before"] and not done["open_now"]:
        typer.echo(
            "From now on clients without a login may do what the role anonymous may. To let them go on as before:\n"
            "coordinator permission grant all '*' --role anonymous",
            err=True,
        )
    elif done["open_now"] and not done["open_before"]:
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
    from coordinator import changes

    wanted = {"verbs": verbs, "pattern": pattern, "user": user, "role": role}
    done = asked(changes.grant, config, database_url, data_dir, reason, **wanted)  # type: ignore[arg-type]
    who = f"the role {done['role']}" if done["user"] is None else done["user"]
    typer.echo(f"{who} may {', '.join(done['verbs'])}: {pattern}")
    report_what_ends(done)


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
    from coordinator import changes

    wanted = {"verbs": verbs, "pattern": pattern, "user": user, "role": role}
    done = asked(changes.revoke, config, database_url, data_dir, reason, **wanted)  # type: ignore[arg-type]
    typer.echo(f"revoked {done['revoked']}")
    report_what_ends(done)


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
