"""What can never be delivered goes to the address ``%DLQ%<group>`` (rule D4).

The batch that fails an entry only marks it; here marked entries are taken up, one by one given a letter that says
where they came from and why, and moved in one SQL transaction. A crash in between leaves the mark, and the next
instance goes on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from coordinator.encoding import (
    MOST_PAIRS,
    DecodeError,
    encode_long,
    encode_map,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_uuid,
)
from coordinator.message import annotate, first_annotations, front_of, merge_maps
from store import queries
from store.commit.terms import PLAIN
from store.errors import AddressGone, GroupsChanged, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.directory import Address
    from coordinator.entries import Entry
    from coordinator.errors import Refusal
    from coordinator.service import Service
    from store.asking import Row
    from store.commit.batch import Batch

log = structlog.get_logger(__name__)

PREFIX = "%DLQ%"


class DeadLetters:
    """Moves marked entries; ``wake()`` when there may be some."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asking = False
        self._again = False
        self._moving = 0

    def wake(self) -> None:
        if self._asking or self._moving:
            self._again = True
            return
        self._asking = True
        self._again = False
        service = self._service
        service.queries.ask(queries.LEASE_FAILED, [service.lease_octets], self._leased)

    def _leased(self, rows: list[Row] | StoreError) -> None:
        self._asking = False
        if not isinstance(rows, list):  # what was leased, nobody remembers: give it back first
            service = self._service
            service.queries.ask(queries.YIELD_FAILED, [service.lease_octets], lambda _: self.wake())
            return
        for row in rows:
            self._moving += 1
            self.take_up(row)
        if not rows and self._again:
            self.wake()

    def take_up(self, row: Row) -> None:
        address = row[8] or f"group-{row[0]}"
        # a dead letter that cannot be delivered is put into a readable one, at the same address
        name = address if address.startswith(PREFIX) else PREFIX + (row[9] or address)
        self._service.resolve_dead_letters(name, lambda found: self._move(row, address, found))

    def _move(self, row: Row, origin: str, address: Address | Refusal) -> None:
        if isinstance(address, Exception):
            log.error("no address for a dead letter", origin=origin, error=str(address))
            self.moved()
            return
        self._service.commit.add(Burial(self._service, row, origin, address))

    def moved(self) -> None:
        self._moving -= 1
        if not self._moving:
            self._again = False
            self.wake()  # until none is left


class Burial:
    """Unit: the entry goes, its letter is posted, the op says why."""

    __slots__ = ("_address", "_entry", "_id", "_letter", "_origin", "_row", "_service")

    def __init__(self, service: Service, row: Row, origin: str, address: Address) -> None:
        self._service = service
        self._row = row
        self._origin = origin
        self._address = address
        self._entry: Entry | None = None
        self._id = 0
        _, _, half_id, attempts, failed, annotations, message, txn_id, _, _ = row
        self._letter = letter(message or b"", annotations or b"", _story(origin, half_id, attempts, failed, txn_id))

    def write(self, batch: Batch) -> None:
        group, entry_id, half_id, _, failed, _, _, _, _, _ = self._row
        service = self._service
        service.unposted(self._entry)  # written before, in a batch refused for another unit
        message = self._letter
        batch.gone(group, entry_id)
        new_id = self._id = service.ids.next()
        batch.half(new_id, bytes(16), self._address.id, message)
        self._entry = service.write_entry(batch, self._address, new_id, message, PLAIN)
        covers: Sequence[tuple[int, int]] = ((half_id, group),)
        batch.op(service.uuids.next(), b"dead-letter", reason=failed, covers=covers)

    def durable(self) -> None:
        self._service.posted(self._address, self._entry, self._id, PLAIN)
        self._service.dead_letters.moved()

    def refused(self, error: StoreError) -> None:
        if isinstance(error, GroupsChanged):
            self._address.fans = True
            self._service.commit.add(self)
            return
        if isinstance(error, AddressGone):  # it is made again
            self._service.unposted(self._entry)
            self._service.directory.removed(self._address)
            self._service.dead_letters.take_up(self._row)
            return
        log.error("a dead letter was refused", origin=self._origin, error=str(error))
        self._service.unposted(self._entry)
        self._service.dead_letters.moved()


def _story(origin: str, half_id: int, attempts: int, failed: str, txn_id: bytes | None) -> list[bytes]:
    """The annotations that say where a dead letter came from, and why."""
    story = [
        encode_symbol("x-opt-original-address") + encode_string(origin),
        encode_symbol("x-opt-original-id") + encode_long(half_id),
        encode_symbol("x-opt-delivery-count") + encode_uint(attempts),
        encode_symbol("x-opt-last-error") + encode_string(failed),
    ]
    if txn_id is not None:
        story.append(encode_symbol("x-opt-txn-id") + encode_uuid(txn_id))
    return story


def letter(message: bytes, annotations: bytes, story: list[bytes]) -> bytes:
    """``message`` with the annotations of its outcomes and of its story; header and bare message as they were.

    Of annotations that are too many for one map those of outcomes are left out, then the last of the message's own. A
    message that cannot be read is the body of its letter.
    """
    try:
        front = front_of(message)
    except DecodeError:
        return annotate(b"", encode_map(story)) + b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message
    section = front.annotations
    for added in (annotations, b""):
        with suppress(DecodeError):
            section = annotate(section, merge_maps(added, encode_map(story)))
            break
    else:
        section = annotate(first_annotations(section, MOST_PAIRS - len(story)), encode_map(story))
    return message[: front.before] + section + message[front.rest :]
