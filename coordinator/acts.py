"""Acts are what operators change in the store, the same by commands and by HTTP. Each returns what it has done, as
values that :func:`coordinator.answers.plain` makes JSON of, and is noted in the audit, as done by the actor of its
connection.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, Field

from coordinator import repairs
from coordinator.address.addresses import (
    DEAD_LETTER_PREFIX,
    GROUP_SEPARATOR,
    UNANSWERED,
    AddressInvalid,
    check_name,
    dead_letter_name,
    shown,
)
from coordinator.address.dead_letters import read_story
from coordinator.address.enqueue import terms_again, terms_of
from coordinator.answers import (
    Answer,
    InTheWay,
    Malformed,
    Unknown,
    box_of,
    connection_id_of,
    group_of,
    half_id_of,
    head_of,
    letter,
    message,
    txn_id_of,
)
from coordinator.heads import whole_head
from coordinator.repairs import LeftByHand, Repaired
from coordinator.timeline import as_utc
from coordinator.version import VERSION
from store import connections, dead_letters, reasons, retirement, seeks, undecided
from store import purge as purging
from store.codec.encoding import DecodeError
from store.codec.message import examine_head
from store.errors import Contended
from store.ids import moment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from store.commit.terms import DeliveryTerms
    from store.dead_letters import Goal, Stored
    from store.seeks import Group, Head

#: letters that a request names
_MOST_NAMED = 1000
#: findings that one request repairs
_MOST_REPAIRED = 1000
#: digits of an id of a message
_LONGEST_ID = 19


def resolve(connection: Connection, *, txn_id: str, decision: Literal["commit", "rollback"], reason: str) -> Answer:
    """Decide an undecided transaction; the first decision wins. Returns its outcome.

    :raises Malformed: ``txn_id`` or ``reason`` is none.
    :raises AlreadyDecided: another decision was first; it stands.
    :raises NotUndecided: no such transaction is known.
    :raises CannotCommit: its client alone can commit it.
    :raises Locked: another decides it now.
    """
    wanted = txn_id_of(txn_id)
    if reason in reasons.WORDS or reason.startswith(f"{reasons.ROLLBACK_ONLY}: "):
        words, its = ", ".join(reasons.WORDS), "a word of the service's own for why a transaction is decided"
        raise Malformed(f"{reason} is {its}; these are {words}", "reason")
    return asdict((undecided.commit if decision == "commit" else undecided.roll_back)(connection, wanted, reason))


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A transaction whose checkers are asked again. ``due``: now; else once its client has left it."""

    txn_id: UUID
    due: bool


def resume(connection: Connection, *, txn_id: str) -> Answer:
    """Ask checkers about an undecided transaction again, from the first check on. ``due``: now; else once its client
    has left it, or its time is over.

    :raises Malformed: ``txn_id`` is none.
    :raises CannotCheck: it is a plain transaction.
    :raises AlreadyDecided: with the decision.
    :raises NotUndecided: no such transaction is known.
    :raises Locked: another decides it now.
    """
    wanted = txn_id_of(txn_id)
    return asdict(Resumed(txn_id=wanted, due=undecided.resume(connection, wanted)))


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A connection that is closed."""

    connection: str
    closed: bool


def close(connection: Connection, *, connection_id: str, reason: str | None = None) -> Answer:
    """Close a connection of a client, which is told the reason, and wait until it is closed.

    :raises Malformed: ``connection_id`` is none.
    :raises NoSuchConnection: there is none.
    :raises ClosedAlready: it has ended.
    :raises NotClosed: its instance has not closed it in time; the request stays.
    """
    wanted = connection_id_of(connection_id)
    connections.ask_to_close(connection, wanted, reason)
    connections.wait_until_closed(connection, wanted)
    return asdict(Closed(connection=str(wanted), closed=True))


def purge(
    connection: Connection,
    *,
    name: str,
    until: Annotated[int | None, Field(ge=0, lt=1 << 63)] = None,
    seconds: float | None = None,
) -> Answer:
    """Throw away the messages that wait at an address, in all its groups; those that consumers hold stay, and those
    posted after it has begun.

    ``seconds``: no piece begins later; None: no limit. ``finished``: else the same act goes on with the ``until`` that
    ``next`` has.

    :raises Unknown: there is no such address.
    """
    done = purging.purge(connection, name, until=until, seconds=seconds)
    if done is None:
        raise Unknown(f"there is no address {shown(name)}")
    return asdict(done)


# Dead letters are posted anew.


def replay(
    connection: Connection,
    *,
    name: str,
    ids: Annotated[list[int] | None, Field(max_length=_MOST_NAMED)] = None,
    all: bool = False,
    to: str | None = None,
    like: Annotated[int | None, Field(ge=1, lt=1 << 63)] = None,
    after: Annotated[int, Field(ge=0, lt=1 << 63)] = 0,
    until: Annotated[int | None, Field(ge=0, lt=1 << 63)] = None,
    seconds: float | None = None,
) -> Answer:
    """Post dead letters anew: those of ``ids``, or all that are there now; to the group that they came from, or to all
    groups of the address ``to``. ``like``: of all those alone that came from the same address as this letter, with the
    same error.

    ``seconds``: no piece begins later; None: no limit. Returns the ``ids`` of those replayed, those ``left`` with the
    reason of each, and ``next``: None, or the ``after`` and ``until`` with which the same act goes on.

    :raises Malformed: it is not said which, or ``to`` is no address.
    :raises Unknown: there are no dead letters of that name, or there is no message ``like``.
    """
    if bool(ids) == all or (like is not None and not all):
        raise Malformed("give letters by ID, or --all")
    group, goals = goals_of(connection, name, to, like)
    told = {} if like is None else {"like": like}
    return asdict(
        dead_letters.replay(
            connection, group, ids or None, goals.decide, after=after, until=until, seconds=seconds, told=told
        )
    )


def goals_of(connection: Connection, name: str, to: str | None, like: int | None) -> tuple[int, Goals]:
    """Return the group of the letters of that name, and what finds where they go; as :func:`replay`."""
    try:
        if to is not None:
            check_name(to)
    except AddressInvalid as error:
        raise Malformed(str(error), "to") from None
    group, box = box_of(connection, name)
    return group, Goals(connection, box, to, None if like is None else _kind(letter(connection, like)))


def _kind(told: Mapping[str, Any]) -> tuple[object, object]:
    """Return what letters have in common that an operator sees as one group."""
    return told["original_address"], told["last_error"]


class Goals:
    """Finds where letters go; it looks each origin up once. ``alike``: of letters of this kind alone."""

    def __init__(
        self, connection: Connection, box: str, to: str | None, alike: tuple[object, object] | None = None
    ) -> None:
        self._connection = connection
        self._box = box
        self._to = to
        self._alike = alike
        #: by the names of their addresses
        self._known: dict[str, Goal | str] = {}

    def name_of(self, goal: Goal) -> str:
        """Return the address of a goal that was decided for."""
        return next(name for name, each in self._known.items() if each == goal)

    def decide(self, stored: Stored) -> tuple[Goal, DeliveryTerms] | str | None:
        if self._alike is None:
            return self._decide(stored)
        its = _kind(vars(read_story(head_of(self._connection, stored))))
        return self._decide(stored) if its == self._alike else None

    def _decide(self, stored: Stored) -> tuple[Goal, DeliveryTerms] | str:
        if self._to is None and self._box == UNANSWERED:
            return "its transaction was rolled back, as no checker has answered; give --to ADDRESS"
        head = head_of(self._connection, stored)
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


# What a reconciliation has found is repaired.


@dataclass(frozen=True, kw_only=True)
class RepairRest:
    """The findings that a repair has not looked at: those of the run as of ``seen_at`` behind the number ``after``."""

    after: int
    seen_at: datetime


@dataclass(frozen=True, kw_only=True)
class Repairs:
    """What was done about the findings of a run as of ``seen_at``, or, where it was not ``applied``, what would be."""

    seen_at: datetime
    applied: bool
    repairs: list[Repaired]
    by_hand: list[LeftByHand]
    next: RepairRest | None


def repair(
    connection: Connection,
    *,
    run: str,
    finding: Annotated[int | None, Field(ge=1, lt=1 << 31)] = None,
    apply: bool = False,
    after: Annotated[int, Field(ge=0, lt=1 << 31)] = 0,
    seen_at: AwareDatetime | None = None,
    seconds: float | None = None,
) -> Answer:
    """Say what the store can do about the findings of a stored run, and do it, with ``apply``; the first decision wins,
    and nothing is done twice. ``finding``: about that of this number alone. ``seen_at``: of the run that was looked at:
    one that was stored again meanwhile has other findings by the same numbers, and is refused.

    ``seconds``: no piece begins later; None: no limit. ``next``: None, or the ``after`` and ``seen_at`` with which the
    same act goes on.

    :raises Malformed: ``run`` is no number.
    :raises Unknown: there is no such run, or it has no such finding.
    :raises Superseded: the run was stored again, since ``seen_at`` or meanwhile.
    """
    found = repairs.of_run(connection, run, finding=finding, after=after, seen_at=seen_at)
    lines: list[Repaired] = []
    by_hand = repairs.ByHand()
    rest: RepairRest | None = None
    end = inf if seconds is None else time.monotonic() + seconds
    for piece in repairs.pieces(connection, found, apply=apply):
        lines += piece.lines
        by_hand.add(piece.by_hand)
        if piece.through is not None and (len(lines) >= _MOST_REPAIRED or time.monotonic() > end):
            rest = RepairRest(after=piece.through, seen_at=found.seen_at)
            break
    return asdict(Repairs(seen_at=found.seen_at, applied=apply, repairs=lines, by_hand=by_hand.told(), next=rest))


# One message is retired by hand.


@dataclass(frozen=True, kw_only=True)
class Retired:
    """A message that was taken out of a group. ``was``: in which state it waited; ``done``: it does not any more."""

    half_id: int
    group: str
    outcome: str
    was: str
    done: bool


def retire(
    connection: Connection,
    *,
    half_id: str,
    group: str,
    outcome: Literal["accepted", "dead-letter"],
    dry_run: bool = False,
    reason: str | None = None,
) -> Answer:
    """Take one message out of one consumer group: as ``accepted``, for what it asks for was done by hand, or to the
    dead letters. One that is to be delivered later is cancelled so.

    ``dry_run``: it is only looked whether that can be done. ``was``: in which state the message waited; ``done``: it
    does not any more.

    :raises Malformed: ``half_id`` is no number of a message, or the reason is missing.
    :raises Unknown: there is no such group, or no such message of it.
    :raises InTheWay: it is a consumer's, a transaction's, or has come to its end; the first decision stands.
    :raises Contended: another has it just now.
    """
    if reason is None and not dry_run:
        raise Malformed("expected why, which is kept in the audit", "reason")
    if outcome == "dead-letter" and group.startswith(DEAD_LETTER_PREFIX):
        raise InTheWay(f"what is in {shown(group)} is a dead letter already")
    wanted, group_id, found = retirable(connection, half_id, group)
    if not dry_run:
        failed = None if outcome == "accepted" else f"retired by hand: {reason}"
        try:
            retirement.retire(connection, group_id, wanted, found, failed=failed, named=group)
        except Contended:
            retirable(connection, half_id, group)  # which says who was first
            raise
    return asdict(Retired(half_id=wanted, group=group, outcome=outcome, was=found.state, done=not dry_run))


def retirable(connection: Connection, half_id: str, group: str) -> tuple[int, int, retirement.Waiting]:
    """Return a message that can be retired by hand, its group, and how it waits there; as :func:`retire`."""
    wanted = half_id_of(half_id)
    _, group_id = group_of(connection, group)
    found = retirement.waiting(connection, group_id, wanted)
    its = f"message {wanted} of {shown(group)}"
    if found is None:
        raise _not_there(connection, wanted, group.removesuffix(GROUP_SEPARATOR))
    if found.held_by is not None:
        raise InTheWay(f"{its} is retired in the undecided transaction {found.held_by}; decide that")
    if found.state == "failed":
        raise InTheWay(f"{its} is on its way to the dead letters")
    if found.state not in retirement.FREE:
        raise InTheWay(
            f"{its} is in the hands of a consumer, or read for one: close its connection, or pause the group"
        )
    return wanted, group_id, found


def _not_there(connection: Connection, wanted: int, group: str) -> InTheWay | Unknown:
    """Return why a message does not wait in a group."""
    life = message(connection, wanted)
    ends = [event for event in life.sorted() if (event.message, event.group) == (wanted, group)]
    if ends:
        last = f"{ends[-1].what} at {as_utc(ends[-1].at)}, {ends[-1].detail}"
        return InTheWay(f"message {wanted} does not wait in {shown(group)} any more: {last}")
    if life.outcome == "undecided":
        return InTheWay(f"message {wanted} is of the transaction {life.txn_id}, which is undecided; decide that")
    return Unknown(f"message {wanted} is none of {shown(group)}")


# A consumer group is moved to another place.


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One way of a seek: ``moved`` messages are delivered again (``back``), or skipped; ``expired`` ones are left."""

    back: bool
    to_id: int
    moved: int
    expired: int


def seek(
    connection: Connection,
    *,
    name: str,
    to: str | None = None,
    back_to: str | None = None,
    forth_to: str | None = None,
    kept: timedelta,
) -> list[Answer]:
    """Move a consumer group back or forth, while its consumers run: one of the three says where to, a time with its
    zone or the id of a message. ``kept``: the setting retention.hours.

    Interrupted, it goes on when it is asked for again. Returns what was done, one way or both.

    :raises Malformed: it is not said where to, or that is no place.
    :raises Unknown: there is no such group or message, or messages of that time are not kept any more.
    :raises Contended: another seek of the group is under way.
    """
    option, place = way_of(to, back_to, forth_to)
    moved, to_id = moved_to(connection, name, option, place, kept)
    done = []
    # One that was interrupted on its way back has skipped what waited.
    if option == "forth_to" or (option == "to" and not seeks.interrupted(connection, moved, to_id)):
        done.append(seeks.move_forth(connection, moved, to_id, version=VERSION))
    if option != "forth_to":
        done.append(seeks.move_back(connection, moved, to_id, _again(connection, moved), version=VERSION))
    return [asdict(Moved(back=each.back, to_id=each.to_id, moved=each.moved, expired=each.expired)) for each in done]


def way_of(to: str | None, back_to: str | None, forth_to: str | None) -> tuple[str, str]:
    """Return which of the three says where to, and what it says.

    :raises Malformed: it is not one of them.
    """
    given = [
        (option, place)
        for option, place in (("to", to), ("back_to", back_to), ("forth_to", forth_to))
        if place is not None
    ]
    if len(given) != 1:
        raise Malformed("give one of --to, --back-to and --forth-to")
    return given[0]


def moved_to(connection: Connection, name: str, option: str, place: str, kept: timedelta) -> tuple[Group, int]:
    """Return the group of that name, and the id from which on messages count; as :func:`seek`."""
    moved = seeks.group(connection, group_of(connection, name)[1])
    to_id = _place(connection, moved, place, option=option)
    if option != "forth_to":
        _check_kept(connection, moved, to_id, kept, option=option)
    return moved, to_id


def _again(connection: Connection, group: Group) -> Callable[[Head], DeliveryTerms]:
    """Return what has the terms on which messages come again."""

    def terms(found: Head) -> DeliveryTerms:
        head = whole_head(connection, found.half_id, found.head, found.size)
        return terms_again(head, fifo=group.fifo, posted_at=found.posted_at)

    return terms


def _place(connection: Connection, group: Group, text: str, *, option: str) -> int:
    """Return the id from which on messages count."""
    if text.isascii() and text.isdigit():
        number = int(text) if len(text) <= _LONGEST_ID else 0
        if not 0 < number < 1 << 63 or not seeks.has_message(connection, group, number):
            raise Unknown(f"the store has no message {shown(text)} of this address", option)
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = "a time such as 2026-11-22T12:00:00Z, or the id of a message"
        raise Malformed(f"expected {expected}, not {shown(text)}", option) from None
    if moment.tzinfo is None:
        said = f"{shown(text)} has no zone; write {moment.isoformat()}Z for UTC, or the offset"
        raise Malformed(said, option)
    if moment > (now := seeks.now(connection)):
        raise Malformed(f"{shown(text)} is in the future; it is {_as_utc(now)} now", option)
    return seeks.first_id(moment)


def _check_kept(connection: Connection, group: Group, to_id: int, kept: timedelta, *, option: str) -> None:
    oldest = seeks.oldest(connection, group, kept)
    if oldest is not None and moment_of(to_id) < oldest:
        since = f"messages are kept since {_as_utc(oldest)}"
        raise Unknown(f"{since}; the group can be moved back to that time at most", option)


def _as_utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
