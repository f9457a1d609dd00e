"""A timeline is the life of a transaction, or of a message, as a list of events: what ``coordinator transaction show``
and ``message show`` print.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from coordinator.address.addresses import (
    DEAD_LETTER_PREFIX,
    GROUP_SEPARATOR,
    UNANSWERED,
    dead_letter_name,
    keeps_dead_letters,
)
from coordinator.address.dead_letters import mark_of, read_story
from store import history, reasons, retention, traces
from store.archive.reading import Archived
from store.codec.trace_context import read_trace
from store.dead_letters import REPLAYED
from store.ids import declared_at, moment_of
from store.undecided import Outcome, decided_outcome, outcome_of

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from store.history import Decided, Message
    from store.traces import Place, Step


# What happened to a transaction or a message, as events of its life.

#: What becomes of a delivery, in a word.
_BECAME = {
    "commit": "accepted",
    "accept": "accepted",
    "reject": "rejected",
    "modify": "given back",
    "release": "released",
    "expire": "expired",
    "dead-letter": "dead-lettered",
    "purge": "purged",
    "replay": "moved back",
}


@dataclass(frozen=True)
class Event:
    """``at``: by the database's clock, except for declares and posts. ``group``: as a source of a client names it;
    ``archived``: the store has dropped it, and it was read from the archive. ``trace_id``: of a post, the trace that
    its message names, 32 hexadecimal digits.
    """

    at: datetime
    what: str
    message: int | None = None
    group: str | None = None
    detail: str = ""
    txn_id: UUID | None = None
    reason: str | None = None
    instance_id: int | None = None
    archived: bool = False
    trace_id: str | None = None


def posted(message: Message, what: str = "posted", to: str = "to") -> Event:
    trace = read_trace(message.head)
    trace_id = None if trace is None else trace.trace_id
    detail = f"{to} {message.address}, {message.octets} octets{f', trace {trace_id}' if trace_id else ''}"
    told = (detail, message.txn_id, None, None, message.archived, trace_id)
    return Event(message.posted_at, what, message.half_id, None, *told)


def of_step(step: Step, names: dict[int, tuple[str, str]], inside: str | None = None) -> Event:
    what, parts = _BECAME[step.decision], []
    if step.decision == "accept" and step.reason == REPLAYED:
        address, group = names.get(step.group_id, ("", ""))
        what = "replayed" if keeps_dead_letters(address) and not group else "left out"
    elif step.decision == "accept" and step.reason is not None:
        what = "left out"
    elif step.decision == "purge" and step.reason == "skipped":
        what = "skipped"
    if step.reason is not None:
        parts.append(step.reason)
    if inside is not None:
        parts.append(inside)
    elif step.txn_id is not None:
        parts.append(f"in transaction {step.txn_id}")
    parts.append("by a command" if step.instance_id is None else f"at instance {step.instance_id}")
    told = (", ".join(parts), step.txn_id, step.reason, step.instance_id, step.archived)
    return Event(step.decided_at, what, step.half_id, group_name(names, step.group_id), *told)


def of_place(place: Place, now: datetime, group: str) -> Event:
    parts = [] if not place.failures else [f"{place.failures} failed deliveries"]
    if place.attempts > place.failures:
        parts.append(f"{place.attempts} attempts in all")
    if place.failed is not None:
        parts.append(f"on its way to the dead letters: {place.failed}")
    if place.available_at is not None and place.state == "scheduled":
        parts.append(f"due at {as_utc(place.available_at)}")
    if place.held_by is not None:
        parts.append(f"retired in the undecided transaction {place.held_by}")
    elif place.instance_id is not None:
        parts.append(f"at instance {place.instance_id}")
    if place.expires_at is not None:
        parts.append(f"expires at {as_utc(place.expires_at)}")
    told = (", ".join(parts), place.held_by, place.failed, place.instance_id)
    return Event(now, f"now {place.state}", place.half_id, group, *told)


def group_name(names: dict[int, tuple[str, str]], group: int) -> str:
    """Return ``orders`` or ``orders::billing``; of a group that is not known any more, its number."""
    address, name = names.get(group, ("", ""))
    return f"{address or f'#{group}'}{GROUP_SEPARATOR if name else ''}{name}"


def as_utc(moment: datetime) -> str:
    """Return a time as the timeline has it: UTC, milliseconds."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def lines(events: Iterable[Event]) -> Iterator[dict[str, object]]:
    """Yield the events as rows of a table."""
    for event in events:
        told = {"at": as_utc(event.at), "message": event.message or "", "group": event.group or ""}
        # first: a table cuts what is long
        yield {**vars(event), **told, "detail": f"{'[archive] ' if event.archived else ''}{event.detail}"}


#: Letters, and replays of letters, that are followed from one message.
_LONGEST_CHAIN = 20

#: Why a transaction was decided, where the reason in the store is a word of ours.
_WHY = {
    None: "discharged by a client",
    reasons.DISCHARGED: "discharged by a client",
    reasons.CHECKED: "a checker of its producer group said so",
    reasons.EXHAUSTED: "no checker answered, however often one was asked",
    reasons.ASKED: "another connection asked for its outcome before it was discharged",
    reasons.TIMEOUT: "its time was over",
    reasons.LINK_LOST: "its control link was lost",
    reasons.PARTIAL_DELIVERY: "discharged while a delivery was still partial",
    reasons.STORE_REFUSED: "the store refused its commit",
    reasons.INSTANCE_LOST: "its instance was lost",
    reasons.ADDRESS_REMOVED: "an address that it posted to was removed",
    reasons.APPLICATION: "discharged in the SQL transaction of an application",
}


@dataclass(kw_only=True)
class Timeline:
    """``outcome``: ``commit``, ``rollback`` or ``undecided``; of a message outside transactions ``commit``. ``notes``:
    what the events cannot say, such as what is not kept any more.
    """

    txn_id: UUID | None
    outcome: str
    #: of a transaction that was asked for by its id
    summary: Outcome | None = None
    #: it is undecided, and operators can commit it, and have it checked
    checkable: bool = False
    now: datetime
    archive: Archived
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sorted(self) -> list[Event]:
        """Return the events in order of time; what is true now comes last."""
        return sorted(self.events, key=lambda event: event.at)

    def plain(self) -> dict[str, Any]:
        """Return the values of the JSON form: of a :class:`Life`, or a :class:`TransactionLife`."""
        events = [{**vars(event), "at": event.at.astimezone(UTC)} for event in self.sorted()]
        head = {"txn_id": self.txn_id, "outcome": self.outcome} if self.summary is None else asdict(self.summary)
        return {**head, "events": events, "notes": self.notes}


@dataclass(frozen=True, kw_only=True)
class Life:
    """The life of a message. ``txn_id``: null, where it was posted outside transactions."""

    txn_id: UUID | None
    outcome: str
    events: list[Event]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class TransactionLife(Outcome):
    """The life of a transaction."""

    events: list[Event]
    notes: list[str]


def head(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines above the events in a terminal, of the values of the JSON form."""
    above = {name: value for name, value in plain.items() if name not in ("events", "notes")}
    if "declared_at" not in above:
        return {"transaction": above["txn_id"] or "none: posted outside transactions", "outcome": above["outcome"]}
    # the store writes no reason where a client has discharged it
    why = reasons.DISCHARGED if above["decided_at"] and above["reason"] is None else above["reason"]
    return {**above, "reason": why}


def of_transaction(connection: Connection, txn_id: UUID, most: int, root: Path | None = None) -> Timeline | None:
    """Return the life of a transaction and of its first ``most`` messages; None: nothing is known of it. ``root``: the
    folder of the archive; without one the timeline notes the days that it does not have.

    :raises ArchiveUnusable: a copy that may have a part of it is missing, or was changed.
    """
    now = history.begin(connection)
    archive = Archived(connection, root)
    decided = history.decision(connection, txn_id, archive)
    row = None if decided is not None else history.undecided(connection, txn_id)
    if decided is None and row is None:
        return None
    outcome = "undecided" if decided is None else decided.decision
    line = Timeline(txn_id=txn_id, outcome=outcome, now=now, archive=archive)
    line.checkable = row is not None and row["producer_group"] is not None
    line.summary = outcome_of(connection, txn_id)
    if line.summary is None and decided is not None:  # the events have the names of its addresses
        line.summary = decided_outcome(txn_id, decided, len(decided.retired))
    _add_transaction(connection, line, txn_id, decided, row)
    if decided is not None:
        _add_retired(connection, line, txn_id, decided, most)
    elif row is not None and row["producer_group"] is not None:
        _add_held(connection, line, txn_id, most)
    messages = history.posted(connection, txn_id, decided, most, archive)
    _note_messages(connection, line, txn_id, decided, row, len(messages), most)
    _add_messages(connection, line, messages, decided)
    _add_set_aside(connection, line, decided, txn_id.bytes, most)
    _note_archive(line)
    return line


def of_message(connection: Connection, half_id: int, root: Path | None = None) -> Timeline | None:
    """Return the life of a message and of the transaction that it was posted in; None: nothing is known of it.
    ``root``, and what it raises: as of :func:`of_transaction`.
    """
    now = history.begin(connection)
    archive = Archived(connection, root)
    message = history.message(connection, half_id, archive)
    line = (
        _of_gone(connection, half_id, now, archive) if message is None else _of_kept(connection, message, now, archive)
    )
    if line is not None:
        _note_archive(line)
    return line


def _of_kept(connection: Connection, message: Message, now: datetime, archive: Archived) -> Timeline:
    if message.txn_id is None:
        line = Timeline(txn_id=None, outcome="commit", now=now, archive=archive)
        _add_messages(connection, line, [message], None)
        return line
    decided = history.decision(connection, message.txn_id, archive)
    row = None if decided is not None else history.undecided(connection, message.txn_id)
    outcome = "undecided" if decided is None else decided.decision
    line = Timeline(txn_id=message.txn_id, outcome=outcome, now=now, archive=archive)
    if decided is None and row is None:
        line.outcome = "unknown"
        line.notes.append("the store has neither a decision about its transaction nor the transaction as undecided")
    _add_transaction(connection, line, message.txn_id, decided, row)
    _add_messages(connection, line, [message], decided)
    _add_set_aside(connection, line, decided, mark_of(message.half_id), 1)
    return line


def _of_gone(connection: Connection, half_id: int, now: datetime, archive: Archived) -> Timeline | None:
    """Return what is left of a message that retention has dropped: the ops of its deliveries."""
    kept = retention.messages_kept_since(connection)
    if kept is None or moment_of(half_id) >= kept:
        return None
    line = Timeline(txn_id=None, outcome="commit", now=now, archive=archive)
    found = traces.deliveries(connection, {half_id: None}, moment_of(half_id), now, archive)
    _add_deliveries(line, found)
    if not line.events:
        return None
    line.notes.append(
        f"the message itself is not kept any more: messages are kept since {as_utc(kept)}, unless they wait; "
        "nor is it known which transaction posted it"
    )
    return line


def _add_transaction(
    connection: Connection, line: Timeline, txn_id: UUID, decided: Decided | None, row: dict[str, Any] | None
) -> None:
    owner = "" if row is None else f"by {row['owner']} at instance {row['instance_id']}"
    line.events.append(Event(declared_at(txn_id.bytes), "declared", detail=owner, txn_id=txn_id))
    if decided is not None:
        _add_decision(connection, line, txn_id, decided)
    elif row is not None:
        _add_undecided(line, txn_id, row)


def _add_decision(connection: Connection, line: Timeline, txn_id: UUID, decided: Decided) -> None:
    reason, maker = decided.reason, f" (instance {decided.instance_id})"
    why = _WHY.get(reason, reason or "")
    if decided.instance_id is None and reason in reasons.OF_NO_INSTANCE:
        maker = ""
    elif decided.instance_id is None:
        maker = ", by an operator or a statement in SQL"
        why = "discharged in SQL" if reason is None else reason
    counts = f"{decided.posted} posted, {len(decided.retired)} accepted"
    detail = f"{counts}: {why}{maker}"
    at = decided.decided_at
    what = "committed" if decided.decision == "commit" else "rolled back"
    line.events.append(Event(at, what, None, None, detail, txn_id, reason, decided.instance_id, decided.archived))
    if reason in (reasons.CHECKED, reasons.EXHAUSTED):
        line.notes.append("how often it was checked, and when, is not kept once it is decided")


def _add_retired(connection: Connection, line: Timeline, txn_id: UUID, decided: Decided, most: int) -> None:
    """Add the outcomes that the transaction gave to deliveries, ``most`` of each kind."""
    at = decided.decided_at
    accepted = decided.retired[:most]
    names = traces.group_names(connection, [group for _, group in accepted], line.archive)
    for half_id, group in accepted:
        told = (half_id, group_name(names, group), "retired in this transaction", txn_id)
        line.events.append(Event(at, "accepted", *told, archived=decided.archived))
    others = history.retired_in(connection, txn_id, at, line.archive)
    left = len(decided.retired) - len(accepted) + max(0, len(others) - most)
    names |= traces.group_names(connection, [step.group_id for step in others[:most]], line.archive)
    line.events += [of_step(step, names, "in this transaction") for step in others[:most]]
    if left:
        line.notes.append(f"it retired {left} more deliveries; --limit N shows more")


def _add_undecided(line: Timeline, txn_id: UUID, row: dict[str, Any]) -> None:
    checks, most, due = row["checks"], row["most_checks"], row["next_check_at"]
    if row["producer_group"] is not None and checks and due is not None:
        last = due - timedelta(milliseconds=row["check_interval_ms"])
        line.events.append(Event(last, "checked", detail=f"check {checks} of {most}, sent to a checker", txn_id=txn_id))
    told = (txn_id, None, row["instance_id"])
    line.events.append(Event(line.now, "now undecided", None, None, why_undecided(txn_id, row, line.now), *told))


def why_undecided(txn_id: UUID, row: Mapping[str, Any], now: datetime) -> str:
    """Return what an undecided transaction waits for. ``row``: of the table ``txn``, or as a list of them has it."""
    if row["producer_group"] is None:
        return (
            f"{row['posted']} posted, {row['retired']} retired, in the memory of instance {row['instance_id']}; "
            f"rolls back at {as_utc(row['timeout_at'])} unless it is discharged before"
        )
    checks, most, due = row["checks"], row["most_checks"], row["next_check_at"]
    if due is None:
        waits = f"its client has it, until {as_utc(row['timeout_at'])}; no check before"
    elif checks >= most:
        waits = (
            f"no answer to {checks} of {most} checks; rolls back at {as_utc(due)}, or is checked anew by: coordinator "
            f"transaction resume {txn_id}"
        )
    elif due <= now:
        waits = f"{checks} of {most} checks sent; the next waits since {as_utc(due)} for a checker with credit"
    else:
        waits = f"{checks} of {most} checks sent; the next at {as_utc(due)}"
    return f"producer group {row['producer_group']}: {waits}"


def _add_held(connection: Connection, line: Timeline, txn_id: UUID, most: int) -> None:
    """Add the first ``most`` deliveries that the undecided transaction has retired."""
    held = history.holds(connection, txn_id, most)
    names = traces.group_names(connection, [group for _, group, _ in held], line.archive)
    for half_id, group, outcome in held:
        detail = f"retired in this transaction: {outcome}, if it commits"
        line.events.append(Event(line.now, "now held", half_id, group_name(names, group), detail, txn_id))
    if len(held) == most:
        line.notes.append(f"the first {most} deliveries that it retired are shown; --limit N shows more")


def _note_messages(
    connection: Connection,
    line: Timeline,
    txn_id: UUID,
    decided: Decided | None,
    row: dict[str, Any] | None,
    found: int,
    most: int,
) -> None:
    """Say which messages of a transaction are not among the events."""
    if decided is None:
        if row is not None and row["producer_group"] is not None and found == most:
            line.notes.append(f"the first {most} messages are shown; --limit N shows more")
        return
    missing = decided.posted - found
    if missing <= 0:
        return
    if found >= most:
        line.notes.append(f"{missing} more messages; --limit N shows more")
        return
    kept = retention.messages_kept_since(connection)
    if decided.decision == "rollback" and not found:
        line.notes.append("of its messages none is in the store: those of a plain transaction come with its commit")
    elif kept is not None and declared_at(txn_id.bytes) < kept:
        line.notes.append(f"{missing} messages are not kept any more: messages are kept since {as_utc(kept)}")
    else:
        line.notes.append(f"{missing} messages are nowhere: run coordinator reconcile")


def _note_archive(line: Timeline) -> None:
    line.notes += unread(line.archive)


def unread(archive: Archived) -> list[str]:
    """Return a note, if the archive was asked for days and is not read."""
    named = ", ".join(day.isoformat() for day in sorted(archive.unread))
    return [f"not all that there is: the archive was not read, and has dropped days: {named}"] if named else []


def _add_messages(connection: Connection, line: Timeline, messages: Sequence[Message], decided: Decided | None) -> None:
    committed = [message for message in messages if message.txn_id is None or line.outcome == "commit"]
    line.events += [posted(message) for message in messages]
    if committed:
        at = decided.decided_at if decided is not None else committed[0].posted_at
        _Chain(connection, line).follow(committed, at)


def _add_set_aside(connection: Connection, line: Timeline, decided: Decided | None, mark: bytes, most: int) -> None:
    """Add the first ``most`` messages with ``mark`` that were copied after the last check, and their outcomes."""
    if decided is None or decided.reason != reasons.EXHAUSTED or not decided.posted:
        return
    copies = history.set_aside(connection, mark, decided.decided_at, UNANSWERED, most, line.archive)
    _Chain(connection, line).set_aside(copies, decided.decided_at)
    if not copies:
        line.notes.append(f"what was copied to {UNANSWERED} is not there any more")


class _Chain:
    """The deliveries of messages; of those that became dead letters also the letters', and of letters that were
    replayed what came of that.
    """

    def __init__(self, connection: Connection, line: Timeline) -> None:
        self._connection = connection
        self._line = line
        #: by letter or replay that was followed: the message that it comes from; and of these, how many were found
        self._roots: dict[int, int] = {}
        self._found: Counter[int] = Counter()

    def follow(self, messages: Sequence[Message], committed_at: datetime, original_id: int | None = None) -> None:
        """``original_id``: of the message whose letter this is."""
        addresses = {message.half_id: message.address_id for message in messages}
        line = self._line
        found = traces.deliveries(self._connection, addresses, committed_at, line.now, line.archive)
        _add_deliveries(line, found)
        for step in found.steps:
            if step.decision == "dead-letter":
                address, group = found.names.get(step.group_id, ("", ""))
                origin = address or f"group-{step.group_id}"
                box = origin if origin.startswith(DEAD_LETTER_PREFIX) else dead_letter_name(group or origin)
                self._copies(step.half_id, step, box)
            elif step.reason == REPLAYED and original_id is not None:
                self._copies(original_id, step, None)

    def set_aside(self, copies: Sequence[Message], at: datetime) -> None:
        """Add copies of unanswered messages; the rollback was ``at`` that moment."""
        for copy in copies:
            self._line.events.append(replace(posted(copy, "kept aside", "at"), at=at))
            self.follow([copy], copy.posted_at, read_story(copy.head).original_id)

    def _copies(self, original_id: int, step: Step, box: str | None) -> None:
        root = self._roots.get(step.half_id, step.half_id)
        if self._found[root] > _LONGEST_CHAIN:
            return
        for copy in history.copies(self._connection, mark_of(original_id), step.decided_at, box, self._line.archive):
            if copy.half_id in (step.half_id, original_id) or copy.half_id in self._roots:
                continue
            self._roots[copy.half_id] = root
            self._found[root] += 1
            if self._found[root] > _LONGEST_CHAIN:
                times = f"more than {_LONGEST_CHAIN} times"
                self._line.notes.append(f"message {root} became a dead letter, or was replayed, {times}")
                return
            what = "replayed" if box is None else "letter"
            self._line.events.append(posted(copy, what, "as a message at" if box is None else "at"))
            self.follow([copy], copy.posted_at, None if box is None else original_id)


def _add_deliveries(line: Timeline, found: traces.Deliveries) -> None:
    line.events += [of_step(step, found.names) for step in found.steps]
    line.events += [of_place(place, line.now, group_name(found.names, place.group_id)) for place in found.places]
