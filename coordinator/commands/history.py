"""``coordinator transaction show`` and ``message show``: what became of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Work,
    by_api,
    fail,
    named_folder,
    print_json,
    print_pairs,
    print_table,
    store,
)
from coordinator.commands.reconcile import given_moment
from coordinator.commands.transactions import TxnId, read_txn_id

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from coordinator.answers import Answer

_COLUMNS = ("at", "what", "message", "group", "detail")

messages = typer.Typer(help="Look at a message, and retire one by hand.", no_args_is_help=True)


_Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Look for the client's message-id in all messages posted from then on (ISO 8601, or 2h: ago). There is no "
        "index of these: all of that time are read, in the store and, of days that it has dropped, in the archive.",
    ),
]
_Archive = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        parser=named_folder,
        help="Where the archive is, which is read for days that the store has dropped. Default: that of the archive "
        "which is on.",
    ),
]
_NoArchive = Annotated[
    bool, typer.Option("--no-archive", help="Read no archive: what the store itself has, and which days it lacks.")
]


def show_transaction(
    txn_id: TxnId,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=10_000,
            help="So many of the messages that it posted, and of the deliveries that it retired.",
        ),
    ] = 100,
    archive: _Archive = None,
    no_archive: _NoArchive = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Print the outcome of a transaction, and its life and that of its messages, as far as they are kept. Times are
    UTC.

    What the store has dropped comes from the archive. Exit status: 0 found, 1 nothing is known of it (the line says
    why), 2 that is no id, the store cannot be asked, or a copy in the archive that may have a part of it is missing or
    was changed.
    """
    from coordinator import answers

    wanted = read_txn_id(txn_id)
    found = (
        None
        if archive
        else by_api(answers.transaction, config, database_url, data_dir, status=2, txn_id=wanted, most=limit)
    )
    if found is None:
        with (
            store(config, database_url, data_dir, status=2) as connection,
            _root(connection, archive, no_archive) as root,
        ):
            found = answers.transaction(connection, wanted, limit, root).plain()
    if as_json:
        print_json(found)
    else:
        _print(found)


@messages.command("show")
def show_message(
    message: Annotated[
        str,
        typer.Argument(
            metavar="MESSAGE",
            help="The number of a message in the store (half_id in the views, id and original-id of a dead letter); "
            "or, with --since, the message-id that its client gave it.",
        ),
    ],
    since: _Since = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="With --since: posted before then.")] = None,
    archive: _Archive = None,
    no_archive: _NoArchive = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Print what became of a message: its whole life, as far as it is kept. Times are UTC.

    Archive and exit status: as of coordinator transaction show.
    """
    from coordinator import answers, message_ids

    if since is None and until is not None:
        fail("--until: give --since, too; together they say where to look for a client's message-id", 2)
    now = datetime.now(UTC)
    first, last = given_moment("--since", since, now, None), given_moment("--until", until, now, now)
    run: Callable[..., Any]
    wanted: dict[str, Any]
    if first is not None:
        run, wanted = message_ids.messages, {"message_id": message, "since": first, "until": last}
    else:
        run, wanted = answers.message, {"half_id": _half_id(message)}
    found = None if archive else by_api(run, config, database_url, data_dir, status=2, **wanted)
    if found is None:
        work: Work = "brief" if first is None else "long"
        with (
            store(config, database_url, data_dir, work=work, status=2) as connection,
            _root(connection, archive, no_archive) as root,
        ):
            told = run(connection, **wanted, root=root)
            found = [each.plain() for each in told] if isinstance(told, list) else told.plain()
    if as_json:
        print_json(found)
        return
    for number, line in enumerate(found if isinstance(found, list) else [found]):
        typer.echo("\n" if number else "", nl=False)
        _print(line)


def _half_id(text: str) -> int:
    from coordinator import answers

    try:
        return answers.half_id_of(text)
    except answers.Malformed as error:
        fail(str(error), 2)


@contextmanager
def _root(connection: Connection, given: Path | None, off: bool) -> Iterator[Path | None]:
    """Yield the folder of the archive; None: it is not read. What is wrong with the archive ends the command with 2."""
    if given is not None and off:
        fail("--archive, --no-archive: give one of them", 2)
    from store.archive import days
    from store.archive.copies import ArchiveUnusable

    try:
        yield None if off else given or days.folder(connection)
    except ArchiveUnusable as error:
        fail(f"{error}; --no-archive shows what the store itself has", 2)


def _print(plain: Answer) -> None:
    from coordinator.timeline import Event, head, lines

    print_pairs(head(plain))
    typer.echo("")
    print_table(list(lines(Event(**each) for each in plain["events"])), _COLUMNS)
    for note in plain["notes"]:
        typer.echo(f"note: {note}")
