"""``coordinator transaction show`` and ``message show``: what became of one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

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
    from coordinator.timeline import Timeline
    from store.archive.reading import Archived
    from store.history import Message

#: digits of a message-id that is a number
_LONGEST_NUMBER = 20
#: What JMS clients put before a message-id.
_OF_JMS = re.compile(r"ID:AMQP_(UUID|ULONG|BINARY|STRING|NO_PREFIX):")
#: Lives of messages with one message-id.
_MOST_LIVES = 20
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
    from coordinator import answers

    if since is None and until is not None:
        fail("--until: give --since, too; together they say where to look for a client's message-id", 2)
    bounds = None if since is None else _bounds(since, until)
    half_id = 0 if bounds is not None else _half_id(message)
    work: Work = "brief" if bounds is None else "long"
    told = (
        None
        if bounds is not None or archive
        else by_api(answers.message, config, database_url, data_dir, status=2, half_id=half_id)
    )
    found: list[Any] = [told]
    if told is None:
        with (
            store(config, database_url, data_dir, work=work, status=2) as connection,
            _root(connection, archive, no_archive) as root,
        ):
            if bounds is None:
                found = [answers.message(connection, half_id, root).plain()]
            else:
                found = [each.plain() for each in _by_message_id(connection, root, message, *bounds)]
    if as_json:
        print_json(found if bounds is not None else found[0])
        return
    for number, line in enumerate(found):
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


def _bounds(since: str, until: str | None) -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    first, last = given_moment("--since", since, now, now), given_moment("--until", until, now, now)
    if first >= last:
        fail(f"--since, --until: {first.isoformat()} is not before {last.isoformat()}", 2)
    return first, last


def _by_message_id(
    connection: Connection, root: Path | None, text: str, since: datetime, until: datetime
) -> list[Timeline]:
    from coordinator.timeline import of_message, unread
    from store import history as known
    from store.archive.reading import Archived

    bare = _OF_JMS.sub("", text, count=1)
    if not bare:
        fail(f"MESSAGE: expected the message-id that a client gave, not {text!r}", 2)
    known.begin(connection)
    archive = Archived(connection, root)
    candidates = known.having(connection, _octets(bare), since, until, archive)
    fitting = (each.half_id for each in candidates if _has_message_id(connection, each, bare))
    halves = list(islice(fitting, _MOST_LIVES))
    found = [line for half_id in halves if (line := of_message(connection, half_id, root)) is not None]
    if not found:
        fail(_why_none(connection, archive, text, since, until))
    for line in found:
        line.notes += [note for note in unread(archive) if note not in line.notes]
    return found


def _why_none(connection: Connection, archive: Archived, text: str, since: datetime, until: datetime) -> str:
    from coordinator.timeline import as_utc, unread
    from store import retention

    why = [f"no message with the message-id {text[:80]!r} was posted from {as_utc(since)} to {as_utc(until)}"]
    kept_since = retention.messages_kept_since(connection)
    if kept_since is not None and kept_since > since:
        why.append(f"messages are kept since {as_utc(kept_since)}")
    if read := archive.messages_read:
        why.append(f"the archive was read, {len(read)} days from {read[0].isoformat()} to {read[-1].isoformat()}")
    return "; ".join(why + unread(archive))


def _octets(message_id: str) -> list[bytes]:
    """Return the possible forms of a message-id (3.2.4): the text, or the number, UUID or octets it stands for."""
    found = [message_id.encode(errors="surrogateescape")]
    with suppress(ValueError):
        found.append(UUID(message_id).bytes)
    with suppress(ValueError):
        found.append(bytes.fromhex(message_id.removeprefix("0x")))
    if message_id.isascii() and message_id.isdigit() and (number := int(message_id[:_LONGEST_NUMBER])) < 1 << 64:
        found.append(bytes.fromhex(f"{number:016x}") if number > 255 else bytes((0x53, number)) if number else b"\x44")
    return [each for each in found if each]


def _has_message_id(connection: Connection, message: Message, message_id: str) -> bool:
    """Return whether the message has this message-id, and not the text elsewhere. Of an archived one only the head is
    examined.
    """
    from coordinator.heads import whole_head
    from store.codec.encoding import DecodeError
    from store.codec.message import PROPERTIES, fields_of, sections

    with suppress(DecodeError):
        whole = message.head
        if not message.archived:
            whole = whole_head(connection, message.half_id, whole, message.octets)
        for code, _, value, _ in sections(whole, PROPERTIES):
            if code == PROPERTIES:
                (first, *_) = fields_of(whole, value, PROPERTIES) or [None]
                return _written(first, message_id)
    return False


def _written(value: object, message_id: str) -> bool:
    if isinstance(value, bytes):
        return value in _octets(message_id)[1:]
    return value is not None and str(value) == message_id


def _print(plain: Answer) -> None:
    from coordinator.timeline import Event, head, lines

    print_pairs(head(plain))
    typer.echo("")
    print_table(list(lines(Event(**each) for each in plain["events"])), _COLUMNS)
    for note in plain["notes"]:
        typer.echo(f"note: {note}")
