"""``coordinator audit``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, asked, fail, print_table
from coordinator.commands.reconcile import given_moment

if TYPE_CHECKING:
    from store.audit import Action

_COLUMNS = ("at", "who", "place", "what", "subject", "detail", "times", "why")


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def audit(
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From then on: 2026-03-01, 2026-03-01T12:00Z, or 24h (ago).")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")] = None,
    who: Annotated[
        str | None,
        typer.Option(metavar="USER", help="By or as this user: of the operating system, of clients, or database role."),
    ] = None,
    what: Annotated[
        str | None, typer.Option(metavar="ACTION", help="This alone, such as login-failed, resolve, or grant.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="The last so many.")] = 1000,
    form: Annotated[
        Format, typer.Option("--format", help="A table, or a JSON document a line, with all columns.")
    ] = Format.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one document a line, as --format json.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Print who has decided what, when, from where and why: transactions decided by hand, repairs, changes of
    addresses, groups, users and permissions; and logins that failed. The oldest first.
    """
    from coordinator import answers

    now = datetime.now(UTC)
    lines = asked(
        answers.audited,
        config,
        database_url,
        data_dir,
        since=given_moment("--since", since, now, None),
        until=given_moment("--until", until, now, None),
        who=who,
        what=_action(what),
        most=limit,
    )
    if as_json or form is Format.JSON:
        for line in lines:
            typer.echo(json.dumps(line, default=answers.plain, ensure_ascii=True))
    else:
        print_table([_row(line) for line in lines], _COLUMNS)


def _row(line: Mapping[str, Any]) -> dict[str, object]:
    detail = " ".join(f"{name}={_shown(value)}" for name, value in line["detail"].items() if value is not None)
    return {
        "at": line["at"].astimezone(UTC),
        "who": line["os_user"] or line["client_user"],
        "place": line["place"],
        "what": line["action"],
        "subject": line["subject"],
        "detail": detail or None,
        "times": line["times"],
        "why": line["reason"],
    }


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _action(text: str | None) -> Action | None:
    from store.audit import Action

    try:
        return None if text is None else Action(text)
    except ValueError:
        fail(f"--what: expected one of {', '.join(Action)}, not {text!r}", 2)
