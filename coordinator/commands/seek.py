"""``coordinator group seek``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import Config, DatabaseUrl, DataDir, Json, Reason, asked, print_json
from coordinator.commands.group import Name

if TYPE_CHECKING:
    from coordinator.answers import Answer


def seek(
    name: Name,
    to: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Both: the group gets the messages posted from there on, and no others."),
    ] = None,
    back_to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Deliver again what the group had, of the messages posted from there on.",
        ),
    ] = None,
    forth_to: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Skip what waits, of the messages posted before; they are thrown away."),
    ] = None,
    as_json: Json = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Move a consumer group back or forth, while its consumers run.

    PLACE is a time with its zone (2026-11-22T12:00:00Z) or the id of a message (column half_id of the view messages).
    A seek that was interrupted goes on when the same command is run again.
    """
    from coordinator import acts

    at = (config, database_url, data_dir, reason)
    done = asked(acts.seek, *at, work="long", name=name, to=to, back_to=back_to, forth_to=forth_to)
    if as_json:
        print_json(done if to is not None else done[0])
        return
    for each in done:
        _report(each)


def _report(done: Answer) -> None:
    if done["back"]:
        stay = f"; {done['expired']} stay, as their time is over" if done["expired"] else ""
        typer.echo(f"moved back: {done['moved']} messages are delivered again{stay}")
    else:
        typer.echo(f"moved forth: {done['moved']} messages are skipped")
