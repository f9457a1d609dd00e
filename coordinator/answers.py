"""Answers are what operators are told of the store, the same by commands (``--json``) and by HTTP: values that
:func:`plain` makes JSON of, or an error whose message says why there is none.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from coordinator.address.addresses import GROUP_SEPARATOR, dead_letter_name, keeps_dead_letters, shown
from coordinator.address.dead_letters import Story, read_story
from coordinator.address.permissions import ANYTHING, Rights
from coordinator.contents import contents
from coordinator.heads import whole_head
from coordinator.login import verifiers
from coordinator.timeline import Timeline, as_utc, of_message, of_transaction
from store import (
    addresses,
    audit,
    connections,
    dead_letters,
    health,
    history,
    permissions,
    retention,
    runs,
    undecided,
    users,
)
from store import scheduled as schedules
from store.archive import days
from store.health import Health
from store.ids import declared_at, moment_of
from store.tables import ANONYMOUS

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from store.connections import ConnectionId
    from store.dead_letters import Stored

Answer = dict[str, Any]

_AGO = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: digits of an id of a message in the store
_LONGEST_ID = 19
#: digits of a number in an id of a connection
_DIGITS = 9
#: octets of messages that are returned at one time, beside the first
_MOST_OCTETS = 1 << 22


class _Refused(Exception):
    """``option``: the name of the argument that is wrong, as the API has it; None: it is in the message, or is none.
    ``flag``: its name in the command line, where that is another.
    """

    def __init__(self, said: str, option: str | None = None, *, flag: str | None = None) -> None:
        super().__init__(said if option is None else f"{option}: {said}")
        #: the message of the command line
        self.by_option = said if option is None else f"--{flag or option.replace('_', '-')}: {said}"


class Unknown(_Refused):
    """The store does not have what was asked for."""


class TakesTooLong(_Refused):
    """There is more to read than the time allows."""


class InTheWay(_Refused):
    """The store has what stands in the way of what was asked for."""


class Malformed(_Refused):
    """What was asked for cannot be there: its name or number is none."""


def check_reason(reason: str | None) -> None:
    """:raises Malformed: this can be no reason in the audit."""
    if reason is not None and not (0 < len(reason) <= audit.LONGEST_REASON and reason.strip() and reason.isprintable()):
        raise Malformed(f"expected 1 to {audit.LONGEST_REASON} characters of printable text", "reason")


def plain(value: object) -> str:
    """Return a value that JSON has no form for as text: times in ISO 8601."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(type(value).__name__)


def about(more: int | None, digits: str = "d") -> str | None:
    """Say how many messages there are beyond those that are counted (:class:`store.counts.Counts`). ``digits``: the
    format of the number.
    """
    return None if more is None else f"about {more:{digits}}" if more else "some"


def moment(text: str, now: datetime) -> datetime:
    """Parse ``2026-03-01``, ``2026-03-01T12:00``, with or without a zone (then UTC), or ``24h``: that long before
    ``now``.

    :raises Malformed: anything else.
    """
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            return now - timedelta(**{_UNITS[ago.group(2)]: int(ago.group(1))})
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Malformed(f"{text!r} is no time; expected 2026-03-01, 2026-03-01T12:00Z or 24h (ago)") from None


# Of lists, `after` is the key of the last one that is known already, and `most` the longest list; None: all.


def all_addresses(connection: Connection, *, after: str | None = None, most: int | None = None) -> list[Answer]:
    """Return the addresses by name, with their messages counted. The key is the name."""
    return [asdict(line) for line in addresses.all_addresses(connection, after=after, most=most)]


def one_address(connection: Connection, name: str) -> Answer:
    """Return an address with its policies and consumer groups.

    :raises Unknown: there is none of that name.
    """
    found = addresses.one_address(connection, name)
    if found is None:
        raise Unknown(f"there is no address {shown(name)}")
    return asdict(found)


def all_groups(
    connection: Connection, address: str | None = None, *, after: str | None = None, most: int | None = None
) -> list[Answer]:
    """Return the consumer groups, or those of ``address``, with their messages counted, and their policies. The key is
    their name, as :func:`group_key` makes it.

    :raises Unknown: there is no such address.
    """
    if address is not None and addresses.kind_of(connection, address) is None:
        raise Unknown(f"there is no address {shown(address)}")
    above = None
    if after is not None:
        of, _, name = after.partition(GROUP_SEPARATOR)
        above = of, name
    return [asdict(group) for group in addresses.all_groups(connection, address, after=above, most=most)]


def group_key(line: Mapping[str, Any]) -> str:
    """Return the name of a group as a client's source has it."""
    return f"{line['address']}{GROUP_SEPARATOR if line['group'] else ''}{line['group']}"


def group_of(connection: Connection, name: str) -> tuple[str, int]:
    """Return the address of the group ``name``, and the group's id.

    :raises Unknown: there is none.
    """
    address, _, group = name.partition(GROUP_SEPARATOR)
    place = addresses.find_group(connection, address, group)
    if place is None:
        raise Unknown(f"there is no address {shown(address)}")
    if place.group is None and not group:
        raise Unknown(f"{shown(address)} is a topic, which has no default group: name a subscription, {address}::GROUP")
    if place.group is None:
        raise Unknown(f"the address {shown(address)} has no group {shown(group)} (coordinator group list has them)")
    return address, place.group


def all_undecided(connection: Connection, *, after: UUID | None = None, most: int | None = None) -> list[Answer]:
    """Return the undecided transactions, oldest first. The key is the txn-id."""
    return [asdict(line) for line in undecided.all_undecided(connection, after=after, most=most)]


def all_dead_letters(connection: Connection, *, after: str | None = None, most: int | None = None) -> list[Answer]:
    """Return the addresses of dead letters by name, with how many they have. The key is the name."""
    return [asdict(box) for box in dead_letters.boxes(connection, after=after, most=most)]


def letters(
    connection: Connection, name: str, *, after: int = 0, most: int | None = None, whole: bool = False
) -> list[Answer]:
    """Return dead letters of a group or address, the oldest first: where each came from, and why it is one. They are
    read in pieces. The key is ``entry``, of the last one.

    ``whole``: with the encoded message, in base64; then some megabytes of them at most, but one.

    :raises Unknown: there are no dead letters of that name.
    """
    group, _ = box_of(connection, name)
    lines: list[Answer] = []
    octets = 0
    while most is None or len(lines) < most:
        piece = dead_letters.CHUNK if most is None else min(most - len(lines), dead_letters.CHUNK)
        found = dead_letters.letters(connection, group, above=after, most=piece)
        if not found:
            break
        for stored in found:
            octets += stored.size if whole else 0
            if octets > _MOST_OCTETS and lines:
                return lines
            lines.append(_letter(connection, stored, whole=whole))
            after = stored.id
    return lines


def box_of(connection: Connection, name: str) -> tuple[int, str]:
    """Return the consumer group of the letters, and the name of their address.

    :raises Unknown: there are none of that name.
    """
    _, _, of_address = name.partition(GROUP_SEPARATOR)
    boxes = [name] if keeps_dead_letters(name) else [dead_letter_name(each) for each in (name, of_address) if each]
    found = [(group, box) for box in boxes if (group := dead_letters.group_of(connection, box)) is not None]
    if not found:
        raise Unknown(f"there are no dead letters of {shown(name)}")
    return found[0]


@dataclass(frozen=True, kw_only=True)
class Letter(Story):
    """A dead letter: when it became one, its size in octets, and what it says of its origin."""

    id: int
    since: datetime
    size: int


@dataclass(frozen=True, kw_only=True)
class WholeLetter(Letter):
    """A dead letter with its encoded message, in base64."""

    message: str


def _letter(connection: Connection, stored: Stored, *, whole: bool) -> Answer:
    story = vars(read_story(head_of(connection, stored)))
    line = Letter(id=stored.half_id, since=stored.since, size=stored.size, **story)
    if whole:
        octets = base64.b64encode(dead_letters.message(connection, stored.half_id))
        line = WholeLetter(message=octets.decode(), **vars(line))
    return {"entry": stored.id, **asdict(line)}


def head_of(connection: Connection, stored: Stored) -> bytes:
    """Return the sections of a letter before its body."""
    return whole_head(connection, stored.half_id, stored.head, stored.size)


def waiting(connection: Connection, name: str, *, after: int = 0, most: int) -> list[Answer]:
    """Return what a consumer group has still to end, in the order of its entries, without taking it: each message with
    what it says before its body. The key is ``entry``.

    :raises Unknown: there is no such group.
    """
    _, group = group_of(connection, name)
    return [
        {
            "entry": each.id,
            "id": each.half_id,
            "posted_at": each.since,
            "size": each.size,
            "contents": contents(each.head, whole=False)[:-1],
        }
        for each in dead_letters.letters(connection, group, above=after, most=most)
    ]


def all_schedules(connection: Connection, *, after: str | None = None, most: int | None = None) -> list[Answer]:
    """Return the groups that are to get messages later: how many, as far as they are counted, how many of them are
    retries, their octets, and when the first and the last is due. The key is their name, as :func:`group_key` makes it.
    """
    above = None
    if after is not None:
        of, _, name = after.partition(GROUP_SEPARATOR)
        above = of, name
    return [asdict(each) for each in schedules.groups(connection, after=above, most=most)]


def scheduled(connection: Connection, name: str, *, after: str | None = None, most: int | None = None) -> list[Answer]:
    """Return what a group is to get later, the next one first. The key is :func:`due_key`.

    :raises Unknown: there is no such group.
    :raises Malformed: ``after`` is no key.
    """
    _, group = group_of(connection, name)
    above = None
    if after is not None:
        at, _, entry = after.partition(" ")
        above = moment(at, datetime.now(UTC)), half_id_of(entry)
    return [asdict(each) for each in schedules.messages(connection, group, after=above, most=most)]


def due_key(line: Mapping[str, Any]) -> str:
    """Return the key of a message that is to be delivered later."""
    return f"{line['due'].astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {line['entry']}"


def contents_of(connection: Connection, half_id: int) -> list[tuple[str, str]]:
    """Return the sections of a message by name, as text; none: the store does not have it any more."""
    head = dead_letters.head(connection, half_id)
    return [] if head is None else contents(head, whole=len(head) < dead_letters.HEAD_OCTETS)


def all_instances(connection: Connection, *, most: int) -> list[Answer]:
    """Return the instances, those that have not ended first, then the last that have."""
    return [asdict(each) for each in health.instances(connection, most)]


def all_connections(
    connection: Connection,
    *,
    user: str | None = None,
    closed: bool = False,
    after: str | None = None,
    most: int | None = None,
) -> list[Answer]:
    """Return the connections of clients over all instances, the oldest first; those of ``user``. ``closed``: in place
    of them the last that have ended, the latest first, which have no key. The key is :func:`connection_key`.

    :raises Malformed: ``user`` can be no name, or ``after`` no key.
    """
    name, above = None if user is None else user_name(user), None
    if after is not None:
        at, _, of = after.partition(" ")
        above = moment(at, datetime.now(UTC)), connection_id_of(of)
    lines = connections.all_connections(connection, most, user=name, closed=closed, after=above)
    return [asdict(line) for line in lines]


def connection_key(line: Mapping[str, Any]) -> str:
    """Return the key of an open connection."""
    return f"{line['opened_at'].astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {line['connection']}"


def one_connection(connection: Connection, *, connection_id: str) -> Answer:
    """Return a connection with the first hundred of its links.

    :raises Malformed: ``connection_id`` is none.
    :raises NoSuchConnection: there is none, or its instance has ended.
    """
    return asdict(connections.one(connection, connection_id_of(connection_id)))


def connection_id_of(text: str) -> ConnectionId:
    """Return the id of a connection that an operator has written.

    :raises Malformed: it is none.
    """
    parts = text.split("-")
    if len(parts) != 2 or not all(each.isascii() and each.isdecimal() and len(each) <= _DIGITS for each in parts):
        listed = "as in 12-345 (coordinator connection list)"
        raise Malformed(f"CONNECTION: expected two numbers, {listed}, not {text[:80]!r}")
    return connections.ConnectionId(instance=int(parts[0]), number=int(parts[1]))


def user_name(text: str, kind: str = "user") -> str:
    """Return the name of a user, or of a role, as it is stored.

    :raises Malformed: it can be none.
    """
    try:
        return verifiers.prepared_name(text)
    except verifiers.NotPrepared as error:
        raise Malformed(f"this can be no name of a {kind}: {error}") from None


def all_users(connection: Connection, *, after: str | None = None, most: int | None = None) -> list[Answer]:
    """Return the users by name, with their roles, and since when each is disabled. The key is the name."""
    return [asdict(each) for each in users.list_all(connection, after=after, most=most)]


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Who may do what was asked for: a user, or a role that no user has, by a permission with this pattern."""

    user: str | None
    role: str | None
    pattern: str


def all_permissions(connection: Connection, *, verb: str | None = None, name: str | None = None) -> list[Answer]:
    """Return the permissions. With ``verb`` and ``name``: in place of them, who may do this to an address, user by
    user, each with the permission that says so; a role that no user has, such as anonymous, has a line of its own.

    :raises Malformed: ``verb`` is none, or one of the two is missing.
    """
    if verb is None and name is None:
        return [asdict(each) for each in permissions.list_all(connection)]
    if verb is None or name is None:
        raise Malformed("verb, name: expected both, or none")
    if verb not in set(permissions.Verb):
        raise Malformed("expected one of " + ", ".join(permissions.Verb), "verb", flag="who")
    lines: list[Allowed] = []
    if permissions.none_counts(connection):
        lines.append(Allowed(user=None, role=ANONYMOUS, pattern=ANYTHING))
    for each in permissions.list_all(connection):
        if each.verb == verb and Rights(frozenset({(each.verb, each.pattern)})).may(permissions.Verb(verb), name):
            having: list[str | None] = [each.user]
            if each.role is not None:
                having = [*permissions.users_of(connection, each.role)] or [None]
            lines += [Allowed(user=user, role=each.role, pattern=each.pattern) for user in having]
    return [asdict(line) for line in lines]


def all_runs(connection: Connection) -> list[Answer]:
    """Return the runs of reconciliations in the store, the last first: as of when each read it, over which period, and
    what it has found.
    """
    return [_run(each) for each in runs.runs(connection)]


def one_run(connection: Connection, *, run: int) -> Answer:
    """Return a run.

    :raises Unknown: there is none of that number.
    """
    return _run(run_of(connection, run))


def findings(
    connection: Connection, *, run: int, kind: Sequence[str] = (), after: int = 0, most: int | None = None
) -> list[Answer]:
    """Return the findings of a run, in the order of its report; ``kind``: of these alone. The key is their number.

    :raises Unknown: there is no such run.
    """
    found = runs.findings(connection, run_of(connection, run), kinds=kind, above=after)
    return [asdict(each) for each in islice(found, most)]


def run_of(connection: Connection, number: int) -> runs.Stored:
    """Return the run of this number.

    :raises Unknown: there is none.
    """
    found = runs.run_of(connection, number) if 0 < number < 1 << 31 else None
    if found is None:
        raise Unknown(f"there is no run {number}: coordinator findings list has those that are stored")
    return found


def report(connection: Connection, *, run: int) -> bytes:
    """Return the report of a run, HTML packed by gzip.

    :raises Unknown: there is no such run, or it has none.
    """
    found = runs.report_of(connection, run_of(connection, run).id)
    if found is None:
        raise Unknown(f"run {run} has no report: coordinator watch writes none")
    return found


@dataclass(frozen=True, kw_only=True)
class RunLine(runs.Run):
    """A stored run of a reconciliation. ``watch``: it is of ``coordinator watch``; ``findings``: how many it has;
    ``kinds``: how many of each kind.
    """

    run: int
    watch: bool
    stored_at: datetime
    findings: int
    kinds: dict[str, int]


def _kinds(found: runs.Stored) -> dict[str, int]:
    """Return how many findings of each kind a run has."""
    counted: dict[str, int] = {}
    for (kind, _), count in found.counts.items():
        counted[kind] = counted.get(kind, 0) + count
    return counted


def _run(found: runs.Stored) -> Answer:
    line = RunLine(
        run=found.id,
        seen_at=found.seen_at,
        since=found.since,
        until=found.until,
        books=found.books,
        watch=found.watch_id is not None,
        stored_at=found.stored_at,
        version=found.version,
        findings=found.findings,
        kinds=_kinds(found),
    )
    return asdict(line)


def audited(
    connection: Connection,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    who: str | None = None,
    what: audit.Action | None = None,
    before: int | None = None,
    most: int,
) -> list[Answer]:
    """Return the last ``most`` rows of the audit, the oldest first: of a time, by or as a user, of an action, and
    before the row of an id. The key is the id.
    """
    wanted = audit.Wanted(since=since, until=until, who=who, action=what, before=before)
    return [asdict(line) for line in audit.read(connection, wanted, most)]


def links_of(connection: Connection, address: str, most: int) -> list[Answer]:
    """Return the links of open connections to an address and its groups, each with its ``connection``."""
    return [{"connection": of, **vars(link)} for of, link in connections.links_of(connection, address, most)]


def letter(connection: Connection, half_id: int) -> Answer:
    """Return what a message says as a dead letter; None for each that it does not say.

    :raises Unknown: the store has no such message.
    """
    head = dead_letters.head(connection, half_id)
    if head is None:
        raise Unknown(f"the store has no message {half_id}")
    return {"id": half_id, "since": moment_of(half_id), **vars(read_story(head))}


@dataclass(frozen=True, kw_only=True)
class Checked(Health):
    """The state of the store, and a sentence for each thing that needs an operator."""

    wrong: list[str]


def checked(found: Health, *, fewest_free: int, least_bytes: int) -> Answer:
    """Return the state of the store, and under ``wrong`` a sentence for each thing that needs an operator."""
    wrong = health.wrong(found, fewest_free=fewest_free, least_bytes=least_bytes)
    return asdict(Checked(**vars(found), wrong=wrong))


# What became of a transaction or of a message. `root`: the folder of the archive, which is read for days that the store
# has dropped; None: it is not read.


def txn_id_of(text: str) -> UUID:
    """Return the txn-id that an operator has written.

    :raises Malformed: it is none.
    """
    # Clients print binary ids in many ways: AMQP 1.0 tools with a 0x, Java with colons.
    digits = text.removeprefix("0x").replace("-", "").replace(":", "")
    try:
        if len(digits) != 32:
            raise ValueError
        return UUID(bytes=bytes.fromhex(digits))
    except ValueError:
        raise Malformed(f"TXN-ID: expected 32 hexadecimal digits, not {text[:80]!r}") from None


def half_id_of(text: str) -> int:
    """Return the number of a message in the store that an operator has written.

    :raises Malformed: it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_ID and int(text) < 1 << 63):
        raise Malformed(f"MESSAGE: expected the number of a message (--since finds a message-id), not {text[:80]!r}")
    return int(text)


def transaction(connection: Connection, txn_id: UUID, most: int, root: Path | None = None) -> Timeline:
    """Return the life of a transaction, and of the first ``most`` messages that it posted or retired.

    :raises Unknown: nothing is known of it; the message says why.
    :raises ArchiveUnusable: a copy that may have a part of it is missing, or was changed.
    """
    found = of_transaction(connection, txn_id, most, root)
    if found is None:
        raise Unknown(f"transaction {txn_id} {_why_unknown(connection, root, txn_id)}")
    return found


def message(connection: Connection, half_id: int, root: Path | None = None) -> Timeline:
    """Return the life of a message.

    :raises Unknown: nothing is known of it; the message says why.
    :raises ArchiveUnusable: a copy that may have a part of it is missing, or was changed.
    """
    found = of_message(connection, half_id, root)
    if found is None:
        kept_since = retention.messages_kept_since(connection)
        if kept_since is not None and (at := moment_of(half_id)) < kept_since:
            why = f"messages are kept since {as_utc(kept_since)}{_archived(connection, root, 'half', at)}"
            raise Unknown(f"message {half_id} is not known any more, if it ever was: {why}")
        raise Unknown(f"the store has no message {half_id}")
    return found


def _why_unknown(connection: Connection, root: Path | None, txn_id: UUID) -> str:
    genuine = history.genuine(connection, txn_id)
    if genuine is False:
        return "is not known: its id was not made by this store, or for a user that was removed"
    at, kept_since = declared_at(txn_id.bytes), retention.decisions_kept_since(connection)
    declared = as_utc(at)
    if kept_since is not None and declared < as_utc(kept_since):
        why = f"it was declared at {declared}, and decisions are kept since {as_utc(kept_since)}"
        known_once = "" if genuine else ", if it ever was"
        return f"is not known any more{known_once}: {why}{_archived(connection, root, 'op', at)}"
    if genuine is None:
        return "is not known; this role of the database may not look whether its id was made by this store"
    return (
        f"was declared here at {declared}, and nothing else is known of it: it did no work, "
        "or is undecided and younger than a moment"
    )


def _archived(connection: Connection, root: Path | None, table: str, moment: datetime) -> str:
    """Return a hint at the archive, if it has the day of ``moment``."""
    day = days.dropped(connection, table, moment)
    if day is None:
        return ""
    if root is not None:
        return f"; the archive's copy of {day.isoformat()} does not have it either"
    return f"; that day is archived: --archive FOLDER reads it there, coordinator archive restore {day.isoformat()}"
