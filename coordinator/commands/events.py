"""What happened to a transaction or a message, as events of its life."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from coordinator.address.addresses import GROUP_SEPARATOR, keeps_dead_letters
from store.dead_letters import REPLAYED

if TYPE_CHECKING:
    from store.history import Message
    from store.traces import Place, Step

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
    """``at``: by the database's clock, except for declares and posts. ``group``: as a source of a client names it;
    ``archived``: the store has dropped it, and it was read from the archive.
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


def posted(message: Message, what: str = "posted", to: str = "to") -> Event:
    detail = f"{to} {message.address}, {message.octets} octets"
    return Event(message.posted_at, what, message.half_id, None, detail, message.txn_id, archived=message.archived)


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
        parts.append(f"due at {said(place.available_at)}")
    if place.held_by is not None:
        parts.append(f"retired in the undecided transaction {place.held_by}")
    elif place.instance_id is not None:
        parts.append(f"at instance {place.instance_id}")
    if place.expires_at is not None:
        parts.append(f"expires at {said(place.expires_at)}")
    told = (", ".join(parts), place.held_by, place.failed, place.instance_id)
    return Event(now, f"now {place.state}", place.half_id, group, *told)


def group_name(names: dict[int, tuple[str, str]], group: int) -> str:
    """``orders``, ``orders::billing``; the number of a group that is not known any more."""
    address, name = names.get(group, ("", ""))
    return f"{address or f'#{group}'}{GROUP_SEPARATOR if name else ''}{name}"


def said(moment: datetime) -> str:
    """A time as the timeline has it: UTC, milliseconds."""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def lines(events: Iterable[Event]) -> Iterator[dict[str, object]]:
    """The events as a table shows them."""
    for event in events:
        told = {"at": said(event.at), "message": event.message or "", "group": event.group or ""}
        # first: a table cuts what is long
        yield {**event._asdict(), **told, "detail": f"{'[archive] ' if event.archived else ''}{event.detail}"}
