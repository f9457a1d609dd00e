"""Find messages by the message-id that their client gave them. No index has these: all messages of a time are read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from coordinator.answers import Malformed, TakesTooLong, Unknown
from coordinator.heads import whole_head
from coordinator.timeline import as_utc, of_message, unread
from store import history, retention
from store.archive.reading import Archived
from store.codec.encoding import DecodeError, encode_binary
from store.codec.message import PROPERTIES, fields_of, sections

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from coordinator.timeline import Timeline
    from store.history import Message

_Found = TypeVar("_Found")

#: digits of a message-id that is a number
_LONGEST_NUMBER = 20
#: What JMS clients put before a message-id.
_OF_JMS = re.compile(r"ID:AMQP_(UUID|ULONG|BINARY|STRING|NO_PREFIX):")
#: lives of messages with one message-id
_MOST_LIVES = 20


def messages(
    connection: Connection,
    *,
    message_id: str,
    since: datetime,
    until: datetime,
    root: Path | None = None,
    seconds: float = inf,
) -> list[Timeline]:
    """Return the lives of the messages with this message-id that were posted from ``since`` on, and before ``until``;
    the first ones. ``root``: the folder of the archive, which is read for days that the store has dropped; None: it is
    not read. ``seconds``: how long it may take, and at most one statement longer.

    :raises Unknown: there is none; the message says where it was looked for.
    :raises TakesTooLong: the time is over.
    :raises Malformed: it can be no message-id, or the time is none.
    :raises ArchiveUnusable: a copy that may have one is missing, or was changed.
    """
    bare = _OF_JMS.sub("", message_id, count=1)
    if not bare:
        raise Malformed(f"MESSAGE: expected the message-id that a client gave, not {message_id!r}")
    if since >= until:
        raise Malformed(f"{since.isoformat()} is not before {until.isoformat()}", "since")
    end = time.monotonic() + seconds
    history.begin(connection)
    archive = Archived(connection, root)
    candidates = _in_time(history.having(connection, _encodings(bare), since, until, archive), end)
    fitting = (each.half_id for each in candidates if _has_message_id(connection, each, bare))
    halves = list(islice(fitting, _MOST_LIVES + 1))
    lives = (of_message(connection, half_id, root) for half_id in halves[:_MOST_LIVES])
    found = [line for line in _in_time(lives, end) if line is not None]
    if not found:
        raise Unknown(_why_none(connection, archive, message_id, since, until))
    notes = unread(archive)
    if len(halves) > _MOST_LIVES:
        notes.append(f"there are more messages with this message-id than these {_MOST_LIVES}: say a shorter time")
    for line in found:
        line.notes += [note for note in notes if note not in line.notes]
    return found


def _in_time(found: Iterable[_Found], end: float) -> Iterator[_Found]:
    """Yield what is found before ``end``, by the monotonic clock."""
    for each in found:
        if time.monotonic() > end:
            raise TakesTooLong("the messages of that time are too many to be read in time: say a shorter one")
        yield each


def _why_none(connection: Connection, archive: Archived, text: str, since: datetime, until: datetime) -> str:
    why = [f"no message with the message-id {text[:80]!r} was posted from {as_utc(since)} to {as_utc(until)}"]
    kept_since = retention.messages_kept_since(connection)
    if kept_since is not None and kept_since > since:
        why.append(f"messages are kept since {as_utc(kept_since)}")
    if read := archive.messages_read:
        why.append(f"the archive was read, {len(read)} days from {read[0].isoformat()} to {read[-1].isoformat()}")
    return "; ".join(why + unread(archive))


def _encodings(message_id: str) -> list[bytes]:
    """Return how a message-id may be encoded (3.2.4): the text, or the number, UUID or octets that it stands for."""
    text = message_id.encode(errors="surrogateescape")
    found = [b"\xb1" + _number(len(text), 4) + text]
    if len(text) < 256:
        found.append(bytes((0xA1, len(text))) + text)
    for octets in _octets(message_id):
        found += [encode_binary(octets), b"\xb0" + _number(len(octets), 4) + octets]
        found += [b"\x98" + octets] if len(octets) == 16 else []
    if message_id.isascii() and message_id.isdigit() and (number := int(message_id[:_LONGEST_NUMBER])) < 1 << 64:
        found.append(b"\x80" + _number(number, 8))
        found += [bytes((0x53, number)) if number else b"\x44"] if number < 256 else []
    return found


def _number(value: int, octets: int) -> bytes:
    return bytes.fromhex(f"{value:0{2 * octets}x}")


def _octets(message_id: str) -> list[bytes]:
    """Return the octets that a message-id may stand for: of a UUID, or in hexadecimal digits."""
    found: list[bytes] = []
    with suppress(ValueError):
        found.append(UUID(message_id).bytes)
    with suppress(ValueError):
        found.append(bytes.fromhex(message_id.removeprefix("0x")))
    return [each for each in dict.fromkeys(found) if each]


def _has_message_id(connection: Connection, message: Message, message_id: str) -> bool:
    """Return whether the message has this message-id, and not the text elsewhere. Of an archived one only the head is
    examined.
    """
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
        return value in _octets(message_id)
    return value is not None and str(value) == message_id
