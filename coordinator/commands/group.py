"""``coordinator group list | set``; :mod:`coordinator.commands.seek` has ``seek``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    asked,
    fail,
    print_json,
    print_table,
    store,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


# What the commands say and take of policies, of addresses and of groups.

#: takes a policy back
INHERIT = "inherit"
MOST_ATTEMPTS = 32767
MOST_RETENTION_HOURS = 876_000


def retry_policy(text: str) -> str:
    """Parse ``text`` as the store has it; ends the command if that fails."""
    from coordinator.group.policies import RetryInvalid, parse_retry

    try:
        return parse_retry(text).text
    except RetryInvalid as error:
        fail(f"--retry: {error}", 2)


def expiry_policy(text: str, *, inherited: bool = False) -> str:
    """Return the policy as it is stored; ends the command if ``text`` is none. ``inherited``: whether it may be taken
    back.
    """
    if text not in ("drop", "dead-letter"):
        expected = f"drop, dead-letter or {INHERIT}" if inherited else "drop or dead-letter"
        fail(f"--on-expiry: expected {expected}, not {text[:40]!r}", 2)
    return text


def words(changes: Mapping[str, object]) -> str:
    """Format changed columns; None: inherited."""
    return ", ".join(f"{column} {INHERIT if value is None else value}" for column, value in changes.items())


app = typer.Typer(help="Look at consumer groups, and change them.", no_args_is_help=True)

_POLICIES = ("on_expiry", "max_attempts", "retry", "own_policies")

Name = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="As the source of a client names it: orders, the default group of a queue, or orders::billing.",
    ),
]


@app.command("list")
def list_(
    address: Annotated[str | None, typer.Argument(help="Those of this address; all without it.")] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List the consumer groups with their messages counted, and their policies: their own, or the address's."""
    from coordinator import answers
    from store import addresses

    lines = asked(answers.all_groups, config, database_url, data_dir, work="counting", address=address)
    if as_json:
        print_json(lines)
    else:
        print_table(
            [{**line, "group": line["group"] or "(default)", "moved": _moved(line["seek"])} for line in lines],
            (*("address", "group", "volatile"), *addresses.STATES, *_POLICIES, "moved"),
        )


def _moved(seek: dict[str, Any] | None) -> str | None:
    """Return where the group was moved to last, and how many messages that concerned."""
    from store.ids import moment_of

    if seek is None:
        return None
    place = moment_of(seek["to_id"]).isoformat(sep=" ", timespec="seconds")
    state = "" if seek["ended_at"] else " (not finished)"
    return f"{'back' if seek['back'] else 'forth'} to {place}: {seek['moved']}{state}"


@app.command("set")
def set_(
    name: Name,
    on_expiry: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="For a message whose ttl runs out: drop or dead-letter."),
    ] = None,
    max_attempts: Annotated[
        str | None,
        typer.Option(metavar="N", help="Failed deliveries, then a message moves to the dead letters."),
    ] = None,
    retry: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="How long a failed delivery waits before the next: immediate, ladder, 'ladder 1s 10s 5m', or "
            "'exponential 1s 2 10m', as for an address.",
        ),
    ] = None,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Give a group policies of its own, while the service runs; inherit takes one back to that of the address."""
    from coordinator import answers
    from coordinator.address.addresses import shown
    from store import addresses

    given = {"on_expiry": on_expiry, "max_attempts": max_attempts, "retry": retry}
    changes: dict[str, object] = {}
    for column, value in given.items():
        if value is not None:
            changes[column] = None if value == INHERIT else _checked(column, value)
    if not changes:
        fail("give at least one of --on-expiry, --max-attempts and --retry", 2)
    with store(config, database_url, data_dir, reason) as connection:
        address, group = answers.group_of(connection, name)
        if not addresses.change_group(connection, address, group, changes):
            fail(f"the group {shown(name)} was removed meanwhile")
    typer.echo(f"{shown(name)}: {words(changes)}")


def _checked(column: str, value: str) -> str | int:
    """Return the value as it is stored."""
    if column == "on_expiry":
        return expiry_policy(value, inherited=True)
    if column == "max_attempts":
        if not (value.isascii() and value.isdecimal() and len(value) < 6 and 1 <= int(value) <= MOST_ATTEMPTS):
            fail(f"--max-attempts: expected a number from 1 to {MOST_ATTEMPTS} or {INHERIT}, not {value[:40]!r}", 2)
        return int(value)
    return retry_policy(value)
