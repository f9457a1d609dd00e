"""``coordinator group list | set | pause | resume``; :mod:`coordinator.commands.seek` has ``seek``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    asked,
    print_counted,
    print_json,
)

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
    from coordinator import answers, changes
    from store.counts import STATES

    lines = asked(answers.all_groups, config, database_url, data_dir, address=address)
    if as_json:
        print_json(lines)
    else:
        print_counted(
            [
                {
                    **line,
                    "group": line["group"] or "(default)",
                    "moved": _moved(line["seek"]),
                    "paused": None if line["paused_at"] is None else changes.since(line),
                }
                for line in lines
            ],
            ("address", "group", "volatile", *STATES),
            (*_POLICIES, "moved", "paused"),
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
    from coordinator import changes
    from coordinator.address.addresses import shown

    policies = {"on_expiry": on_expiry, "max_attempts": max_attempts, "retry": retry}
    done = asked(changes.set_group, config, database_url, data_dir, reason, name=name, **policies)  # type: ignore[arg-type]
    typer.echo(f"{shown(name)}: {changes.words(done)}")


@app.command()
def pause(
    name: Name, reason: Reason = None, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """Pause a group, in all services at once: its consumers keep their links, and get nothing new.

    Posts go on, browsers see what waits, and what was delivered can be settled. group list says since when it is
    paused, by whom, and why.
    """
    from coordinator import changes
    from coordinator.address.addresses import shown

    asked(changes.pause_group, config, database_url, data_dir, reason, name=name)
    typer.echo(f"{shown(name)} is paused")


@app.command()
def resume(
    name: Name, reason: Reason = None, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """End the pause of a group: its consumers get what waits, in order."""
    from coordinator import changes
    from coordinator.address.addresses import shown

    done = asked(changes.resume_group, config, database_url, data_dir, reason, name=name)
    typer.echo(f"{shown(name)} goes on; it was paused {changes.since(done)}")
