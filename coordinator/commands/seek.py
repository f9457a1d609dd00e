"""``coordinator group seek``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    fail,
    print_json,
    settings,
    store,
)
from coordinator.commands.group import Name, find

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from store.commit.terms import DeliveryTerms
    from store.seeks import Group, Head, Seek

_OPTIONS = ("--to", "--back-to", "--forth-to")
#: digits
_LONGEST_ID = 19


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
    from coordinator.version import VERSION
    from store import seeks

    places_given = zip(_OPTIONS, (to, back_to, forth_to), strict=True)
    given = [(option, place) for option, place in places_given if place is not None]
    if len(given) != 1:
        fail("give one of --to, --back-to and --forth-to", 2)
    ((option, place),) = given
    kept = timedelta(hours=settings(config).retention.hours)
    with store(config, database_url, data_dir, reason, work="long") as connection:
        moved = seeks.group(connection, find(connection, name)[1])
        to_id = _place(connection, moved, place, option=option)
        if option != "--forth-to":
            _check_kept(connection, moved, to_id, kept, option=option)
        done = []
        # One that was interrupted on its way back has skipped what waited.
        if option == "--forth-to" or (option == "--to" and not seeks.interrupted(connection, moved, to_id)):
            done.append(seeks.move_forth(connection, moved, to_id, version=VERSION))
        if option != "--forth-to":
            again = _Again(connection, moved).terms
            done.append(seeks.move_back(connection, moved, to_id, again, version=VERSION))
    if as_json:
        rows = [{name: getattr(each, name) for name in ("back", "to_id", "moved", "expired")} for each in done]
        print_json(rows if option == "--to" else rows[0])
        return
    for each in done:
        _report(each)


def _report(done: Seek) -> None:
    if done.back:
        stay = f"; {done.expired} stay, as their time is over" if done.expired else ""
        typer.echo(f"moved back: {done.moved} messages are delivered again{stay}")
    else:
        typer.echo(f"moved forth: {done.moved} messages are skipped")


class _Again:
    """Has the terms on which messages come again."""

    def __init__(self, connection: Connection, group: Group) -> None:
        self._connection = connection
        self._group = group

    def terms(self, found: Head) -> DeliveryTerms:
        from coordinator.address.enqueue import terms_again
        from coordinator.commands.heads import whole_head

        head = whole_head(self._connection, found.half_id, found.head, found.size)
        return terms_again(head, fifo=self._group.fifo, posted_at=found.posted_at)


def _place(connection: Connection, group: Group, text: str, *, option: str) -> int:
    """Return the id from which on messages count."""
    from coordinator.address.addresses import shown
    from store import seeks

    if text.isascii() and text.isdigit():
        number = int(text) if len(text) <= _LONGEST_ID else 0
        if not 0 < number < 1 << 63 or not seeks.has_message(connection, group, number):
            fail(f"{option}: the store has no message {shown(text)} of this address")
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option}: expected a time such as 2026-11-22T12:00:00Z, or the id of a message, not {shown(text)}", 2)
    if moment.tzinfo is None:
        fail(f"{option}: {shown(text)} has no zone; write {moment.isoformat()}Z for UTC, or the offset", 2)
    if moment > (now := seeks.now(connection)):
        fail(f"{option}: {shown(text)} is in the future; it is {_as_utc(now)} now", 2)
    return seeks.first_id(moment)


def _check_kept(connection: Connection, group: Group, to_id: int, kept: timedelta, *, option: str) -> None:
    from store import seeks
    from store.ids import moment_of

    oldest = seeks.oldest(connection, group, kept)
    if oldest is not None and moment_of(to_id) < oldest:
        fail(f"{option}: messages are kept since {_as_utc(oldest)}; the group can be moved back to that time at most")


def _as_utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
