"""``coordinator dead-letters list | show | export | replay``."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
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
    print_rows,
    store,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from store.commit.terms import DeliveryTerms
    from store.dead_letters import Goal, Stored

app = typer.Typer(help="Look at dead letters, and replay them.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="The queue or group whose messages they were (orders, billing or orders::billing; groups of one name "
        "share them), or their address: %DLQ%..., or TRANS_CHECK_MAX_TIME_TOPIC.",
    ),
]
_COLUMNS = ("id", "since", "original_address", "original_id", "delivery_count", "last_error")
_UNANSWERED_COLUMNS = ("id", "since", "original_address", "producer_group", "txn_id", "check_count")


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List the addresses of dead letters, with how many they have."""
    from coordinator import answers

    with store(config, database_url, data_dir, work="counting") as connection:
        lines = answers.all_dead_letters(connection)
    print_rows(lines, ("name", "letters", "oldest"), as_json=as_json)


@app.command()
def show(
    name: Name,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="The oldest so many.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show dead letters, the oldest first: where each came from, and why it is one."""
    from coordinator.address.addresses import UNANSWERED

    with store(config, database_url, data_dir) as connection:
        group, box = _group(connection, name)
        lines = [_line(connection, stored) for stored in islice(_all(connection, group), limit)]
    print_rows(lines, _UNANSWERED_COLUMNS if box == UNANSWERED else _COLUMNS, as_json=as_json)


@app.command()
def export(name: Name, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None) -> None:
    """Write dead letters to the standard output, a line of JSON each; "message" is the whole AMQP message in base64."""
    from store import dead_letters

    with store(config, database_url, data_dir, work="long") as connection:
        group, _ = _group(connection, name)
        for stored in _all(connection, group):
            message = dead_letters.message(connection, stored.half_id)
            line = {**_line(connection, stored), "message": base64.b64encode(message).decode()}
            typer.echo(json.dumps(line, default=str, ensure_ascii=True))


@app.command()
def replay(
    name: Name,
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Letters, as show lists them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are there now.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="ADDRESS", help="Post them to all groups of this address, not to the group they came from."
        ),
    ] = None,
    as_json: Json = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Post dead letters anew to the group that failed them, with no failed attempts.

    A message is as it came. One that has expired is delivered all the same, and a client that looks at its
    absolute-expiry-time may drop it (Qpid JMS does, unless its URL says jms.localMessageExpiry=false).

    Exit status: 0 all were replayed, 1 some stay (the last lines say why).
    """
    from coordinator.address.addresses import AddressInvalid, check_name
    from store import dead_letters

    if bool(ids) == every:
        fail("give letters by ID, or --all", 2)
    try:
        if to is not None:
            check_name(to)
    except AddressInvalid as error:
        fail(f"--to: {error}", 2)
    with store(config, database_url, data_dir, reason, work="long") as connection:
        group, box = _group(connection, name)
        goals = _Goals(connection, box, to)
        done = dead_letters.replay(connection, group, ids or None, goals.decide)
    if as_json:
        print_json(asdict(done))
    else:
        typer.echo(f"replayed {len(done.ids)}, left {len(done.left)}")
        for number, why in done.left:
            typer.echo(f"left: {number}: {why}")
    if done.left:
        raise typer.Exit(1)


class _Goals:
    """Finds where letters go; it looks each origin up once."""

    def __init__(self, connection: Connection, box: str, to: str | None) -> None:
        self._connection = connection
        self._box = box
        self._to = to
        self._known: dict[str, Goal | str] = {}

    def decide(self, stored: Stored) -> tuple[Goal, DeliveryTerms] | str:
        from coordinator.address.addresses import UNANSWERED
        from coordinator.address.dead_letters import read_story
        from coordinator.address.enqueue import terms_of
        from store.codec.encoding import DecodeError
        from store.codec.message import examine_head

        if self._to is None and self._box == UNANSWERED:
            return "its transaction was rolled back, as no checker has answered; give --to ADDRESS"
        head = _head(self._connection, stored)
        name = self._to or read_story(head).original_address
        if name is None:
            return "it does not say where it came from; give --to ADDRESS"
        goal = self._known.get(name)
        if goal is None:
            goal = self._known[name] = self._find(name)
        if isinstance(goal, str):
            return goal
        try:
            return goal, terms_of(examine_head(head), fifo=goal.fifo)
        except DecodeError as error:
            return f"it cannot be read: {error}"

    def _find(self, name: str) -> Goal | str:
        from coordinator.address.addresses import dead_letter_name, shown
        from store import dead_letters

        group = None
        names = dead_letters.group_names(self._connection, name)
        if self._to is None:
            groups = [each for each in names if dead_letter_name(each or name) == self._box]
            if len(groups) > 1:  # the queue itself, and a group of its name
                return f"two groups of the address {shown(name)} have these dead letters; give --to ADDRESS"
            group = groups[0] if groups else None
            if names and group is None:
                return f"the address {shown(name)} has no such group any more; give --to ADDRESS"
        elif not names:
            return f"there is no address {shown(name)} with a consumer group"
        found = dead_letters.goal(self._connection, name, group)
        return found or f"there is no address {shown(name)}; give --to ADDRESS"


def _group(connection: Connection, name: str) -> tuple[int, str]:
    """Return the consumer group of the letters, and the name of their address."""
    from coordinator.address.addresses import GROUP_SEPARATOR, dead_letter_name, keeps_dead_letters, shown
    from store import dead_letters

    _, _, of_address = name.partition(GROUP_SEPARATOR)
    boxes = [name] if keeps_dead_letters(name) else [dead_letter_name(each) for each in (name, of_address) if each]
    found = [(group, box) for box in boxes if (group := dead_letters.group_of(connection, box)) is not None]
    if not found:
        fail(f"there are no dead letters of {shown(name)}")
    return found[0]


def _all(connection: Connection, group: int) -> Iterator[Stored]:
    """Yield the letters in pieces, as there may be many."""
    from store import dead_letters

    above = 0
    while found := dead_letters.letters(connection, group, above=above):
        yield from found
        above = found[-1].id


def _line(connection: Connection, stored: Stored) -> dict[str, object]:
    from coordinator.address.dead_letters import read_story

    story = read_story(_head(connection, stored))
    return {"id": stored.half_id, "since": stored.since, "size": stored.size, **story._asdict()}


def _head(connection: Connection, stored: Stored) -> bytes:
    from coordinator.commands.heads import whole_head

    return whole_head(connection, stored.half_id, stored.head, stored.size)
