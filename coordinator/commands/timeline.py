"""The life of a transaction, or of a message, as a list of events: what ``coordinator history`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from coordinator.address.addresses import DEAD_LETTER_PREFIX, GROUP_SEPARATOR, dead_letter_name
from coordinator.address.letters import ORIGINAL_ID, TXN_ID
from coordinator.checks import CHECKED
from coordinator.codec.encoding import encode_long, encode_symbol, encode_uuid
from coordinator.exhaustion import ADDRESS as EXHAUSTED_ADDRESS
from store import history, retention, traces
from store.application.enlistment import REASON as APPLICATION
from store.dead_letters import REPLAYED
from store.ids import declared_at, moment_of
from store.recovery import INSTANCE_LOST
from store.removal import ADDRESS_REMOVED
from store.tables import ASKED, EXHAUSTED

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from store.history import Decided, Message
    from store.traces import Place, Step

#: Letters, and replays of letters, that are followed from one message.
_LONGEST_CHAIN = 20

#: Why a transaction was decided, where the reason in the store is a word of ours.
_WHY = {
    None: "discharged by a client",
    "discharged": "discharged by a client",
    CHECKED: "a checker of its producer group said so",
    EXHAUSTED: "no checker answered, however often one was asked",
    ASKED: "another connection asked for its outcome before it was discharged",
    "timeout": "its time was over",
    "link-lost": "its control link was lost",
    "partial-delivery": "discharged while a delivery was still partial",
    "store-refused": "the store refused its commit",
    INSTANCE_LOST: "its instance was lost",
    ADDRESS_REMOVED: "an address that it posted to was removed",
    APPLICATION: "discharged in the SQL transaction of an application",
}
#: Of these no instance is the maker, and no operator either.
_BY_THE_STORE = (INSTANCE_LOST, ADDRESS_REMOVED, APPLICATION)

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


class Event(NamedTuple):
    """``at``: by the database's clock, except for declares and posts. ``group``: as a source of a client names it."""

    at: datetime
    what: str
    message: int | None = None
    group: str | None = None
    detail: str = ""
    txn_id: UUID | None = None
    reason: str | None = None
    instance_id: int | None = None


@dataclass(kw_only=True)
class Timeline:
    """``outcome``: ``commit``, ``rollback`` or ``undecided``; of a message outside transactions ``commit``. ``notes``:
    what the events cannot say, such as what is not kept any more.
    """

    txn_id: UUID | None
    outcome: str
    now: datetime
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sorted(self) -> list[Event]:
        """The events in order of time; what is true now comes last."""
        return sorted(self.events, key=lambda event: event.at)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        events = [{**event._asdict(), "at": event.at.astimezone(UTC)} for event in self.sorted()]
        return {"txn_id": self.txn_id, "outcome": self.outcome, "events": events, "notes": self.notes}


def of_transaction(connection: Connection, txn_id: UUID, most: int) -> Timeline | None:
    """The life of a transaction and of its first ``most`` messages; None: the store knows nothing of it."""
    now = history.begin(connection)
    decided = history.decision(connection, txn_id)
    row = None if decided is not None else history.undecided(connection, txn_id)
    if decided is None and row is None:
        return None
    line = Timeline(txn_id=txn_id, outcome="undecided" if decided is None else decided.decision, now=now)
    _add_transaction(connection, line, txn_id, decided, row)
    if decided is not None:
        _add_retired(connection, line, txn_id, decided, most)
    elif row is not None and row["producer_group"] is not None:
        _add_held(connection, line, txn_id, most)
    messages = history.posted(connection, txn_id, decided, most)
    _note_messages(connection, line, txn_id, decided, row, len(messages), most)
    _add_messages(connection, line, messages, decided)
    return line


def of_message(connection: Connection, half_id: int) -> Timeline | None:
    """The life of a message and of the transaction that it was posted in; None: the store knows nothing of it."""
    now = history.begin(connection)
    message = history.message(connection, half_id)
    if message is None:
        return _of_gone(connection, half_id, now)
    if message.txn_id is None:
        line = Timeline(txn_id=None, outcome="commit", now=now)
        _add_messages(connection, line, [message], None)
        return line
    decided = history.decision(connection, message.txn_id)
    row = None if decided is not None else history.undecided(connection, message.txn_id)
    line = Timeline(txn_id=message.txn_id, outcome="undecided" if decided is None else decided.decision, now=now)
    if decided is None and row is None:
        line.outcome = "unknown"
        line.notes.append("the store has neither a decision about its transaction nor the transaction as undecided")
    _add_transaction(connection, line, message.txn_id, decided, row)
    _add_messages(connection, line, [message], decided)
    return line


def _of_gone(connection: Connection, half_id: int, now: datetime) -> Timeline | None:
    """What is left of a message that retention has dropped: the ops of its deliveries."""
    kept = retention.messages_kept_since(connection)
    if kept is None or moment_of(half_id) >= kept:
        return None
    line = Timeline(txn_id=None, outcome="commit", now=now)
    found = traces.deliveries(connection, {half_id: None}, moment_of(half_id), now)
    _add_deliveries(line, found)
    if not line.events:
        return None
    line.notes.append(
        f"the message itself is not kept any more: messages are kept since {said(kept)}, unless they wait; "
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
    if decided.instance_id is None:
        maker = "" if reason in _BY_THE_STORE else ", by an operator or a statement in SQL"
        why = "discharged in SQL" if reason is None else why
    counts = f"{decided.posted} posted, {len(decided.retired)} accepted"
    detail = f"{counts}: {why}{maker}"
    at = decided.decided_at
    what = "committed" if decided.decision == "commit" else "rolled back"
    line.events.append(Event(at, what, None, None, detail, txn_id, reason, decided.instance_id))
    if reason in (CHECKED, EXHAUSTED):
        line.notes.append("how often it was checked, and when, is not kept once it is decided")
    if reason == EXHAUSTED:
        mark = encode_symbol(TXN_ID) + encode_uuid(txn_id.bytes)
        waiting = history.set_aside(connection, mark, at, EXHAUSTED_ADDRESS)
        copies = ", ".join(str(each) for each in waiting) or "none of them waits there now"
        line.notes.append(f"its messages were copied to {EXHAUSTED_ADDRESS}: {copies}")


def _add_retired(connection: Connection, line: Timeline, txn_id: UUID, decided: Decided, most: int) -> None:
    """What the transaction has made of deliveries, ``most`` of each kind."""
    at = decided.decided_at
    accepted = decided.retired[:most]
    names = traces.group_names(connection, [group for _, group in accepted])
    for half_id, group in accepted:
        line.events.append(Event(at, "accepted", half_id, _group(names, group), "retired in this transaction", txn_id))
    others = history.retired_in(connection, txn_id, at)
    left = len(decided.retired) - len(accepted) + max(0, len(others) - most)
    names |= traces.group_names(connection, [step.group_id for step in others[:most]])
    line.events += [_step(step, names, "in this transaction") for step in others[:most]]
    if left:
        line.notes.append(f"it retired {left} more deliveries; --limit N shows more")


def _add_undecided(line: Timeline, txn_id: UUID, row: dict[str, Any]) -> None:
    if row["producer_group"] is None:
        line.events.append(
            Event(
                line.now,
                "now undecided",
                detail=f"{row['posted']} posted, {row['retired']} retired, in the memory of instance "
                f"{row['instance_id']}; rolls back at {said(row['timeout_at'])} unless it is discharged before",
                txn_id=txn_id,
                instance_id=row["instance_id"],
            )
        )
        return
    checks, most, due = row["checks"], row["most_checks"], row["next_check_at"]
    if checks and due is not None:
        last = due - timedelta(milliseconds=row["check_interval_ms"])
        line.events.append(Event(last, "checked", detail=f"check {checks} of {most}, sent to a checker", txn_id=txn_id))
    if due is None:
        waits = f"its client has it, until {said(row['timeout_at'])}; no check before"
    elif checks >= most:
        waits = (
            f"no answer to {checks} of {most} checks; rolls back at {said(due)}, or is checked anew by: coordinator "
        )
        waits += f"resume {txn_id}"
    elif due <= line.now:
        waits = f"{checks} of {most} checks sent; the next waits since {said(due)} for a checker with credit"
    else:
        waits = f"{checks} of {most} checks sent; the next at {said(due)}"
    detail = f"producer group {row['producer_group']}: {waits}"
    line.events.append(Event(line.now, "now undecided", detail=detail, txn_id=txn_id, instance_id=row["instance_id"]))


def _add_held(connection: Connection, line: Timeline, txn_id: UUID, most: int) -> None:
    """The first ``most`` deliveries that it has retired while it is undecided."""
    held = history.holds(connection, txn_id, most)
    names = traces.group_names(connection, [group for _, group, _ in held])
    for half_id, group, outcome in held:
        detail = f"retired in this transaction: {outcome}, if it commits"
        line.events.append(Event(line.now, "now held", half_id, _group(names, group), detail, txn_id))
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
        line.notes.append(f"{missing} messages are not kept any more: messages are kept since {said(kept)}")
    else:
        line.notes.append(f"{missing} messages are nowhere: run coordinator reconcile")


def _add_messages(connection: Connection, line: Timeline, messages: Sequence[Message], decided: Decided | None) -> None:
    committed = [message for message in messages if message.txn_id is None or line.outcome == "commit"]
    line.events += [_posted(message) for message in messages]
    if committed:
        at = decided.decided_at if decided is not None else committed[0].posted_at
        _Chain(connection, line).follow(committed, at)


def _posted(message: Message, what: str = "posted", to: str = "to") -> Event:
    detail = f"{to} {message.address}, {message.octets} octets"
    return Event(message.posted_at, what, message.half_id, None, detail, message.txn_id)


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
        found = traces.deliveries(self._connection, addresses, committed_at, self._line.now)
        _add_deliveries(self._line, found)
        for step in found.steps:
            if step.decision == "dead-letter":
                address, group = found.names.get(step.group_id, ("", ""))
                origin = address or f"group-{step.group_id}"
                box = origin if origin.startswith(DEAD_LETTER_PREFIX) else dead_letter_name(group or origin)
                self._copies(step.half_id, step, box)
            elif step.reason == REPLAYED and original_id is not None:
                self._copies(original_id, step, None)

    def _copies(self, original_id: int, step: Step, box: str | None) -> None:
        root = self._roots.get(step.half_id, step.half_id)
        if self._found[root] > _LONGEST_CHAIN:
            return
        mark = encode_symbol(ORIGINAL_ID) + encode_long(original_id)
        for copy in history.copies(self._connection, mark, step.decided_at, box):
            if copy.half_id in (step.half_id, original_id) or copy.half_id in self._roots:
                continue
            self._roots[copy.half_id] = root
            self._found[root] += 1
            if self._found[root] > _LONGEST_CHAIN:
                times = f"more than {_LONGEST_CHAIN} times"
                self._line.notes.append(f"message {root} became a dead letter, or was replayed, {times}")
                return
            what = "replayed" if box is None else "letter"
            self._line.events.append(_posted(copy, what, "as a message at" if box is None else "at"))
            self.follow([copy], copy.posted_at, None if box is None else original_id)


def _add_deliveries(line: Timeline, found: traces.Deliveries) -> None:
    line.events += [_step(step, found.names) for step in found.steps]
    line.events += [_place(place, line.now, _group(found.names, place.group_id)) for place in found.places]


def _step(step: Step, names: dict[int, tuple[str, str]], inside: str | None = None) -> Event:
    what, parts = _BECAME[step.decision], []
    if step.decision == "accept" and step.reason == REPLAYED:
        what = "replayed" if names.get(step.group_id, ("",))[0].startswith(DEAD_LETTER_PREFIX) else "left out"
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
    told = (", ".join(parts), step.txn_id, step.reason, step.instance_id)
    return Event(step.decided_at, what, step.half_id, _group(names, step.group_id), *told)


def _place(place: Place, now: datetime, group: str) -> Event:
    parts = [] if not place.attempts else [f"{place.attempts} failed deliveries"]
    if place.failed is not None:
        parts.append(f"on its way to the dead letters: {place.failed}")
    if place.available_at is not None and place.state == "scheduled":
        parts.append(f"due at {said(place.available_at)}")
    if place.held_by is not None:
        parts.append(f"retired in the undecided transaction {place.held_by}")
    elif place.instance_id is not None:
        parts.append(f"at instance {place.instance_id}")
    if place.expires_at is not None:
        parts.append(f"expires at {said(place.expires_at)}")
    told = (", ".join(parts), place.held_by, place.failed, place.instance_id)
    return Event(now, f"now {place.state}", place.half_id, group, *told)


def _group(names: dict[int, tuple[str, str]], group: int) -> str:
    """``orders``, ``orders::billing``; the number of a group that is not known any more."""
    address, name = names.get(group, ("", ""))
    return f"{address or f'#{group}'}{GROUP_SEPARATOR if name else ''}{name}"


def said(moment: datetime) -> str:
    """A time as the timeline has it: UTC, milliseconds."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def lines(events: Iterable[Event]) -> Iterator[dict[str, object]]:
    """The events as a table shows them."""
    for event in events:
        yield {**event._asdict(), "at": said(event.at), "message": event.message or "", "group": event.group or ""}
