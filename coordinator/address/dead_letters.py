"""Dead letters are entries that can never be delivered, moved to the address ``%DLQ%<group>`` (rule D4).

The batch that fails an entry only marks it. This module writes a letter for each marked entry, which says where it came
from and why, and moves it in one SQL transaction. After a crash in between the mark remains, and another instance
continues.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import structlog

from coordinator.address.addresses import DEAD_LETTER_PREFIX, AddressInvalid, check_name, dead_letter_name
from store import dead_letters as questions
from store.codec.encoding import (
    MOST_PAIRS,
    DecodeError,
    decode,
    encode_binary,
    encode_long,
    encode_map,
    encode_string,
    encode_symbol,
    encode_uint,
    pairs,
    skip,
)
from store.codec.message import annotate, data_front, first_annotations, front_of, merge_maps
from store.commit.batch import CopiedHalf
from store.commit.terms import PLAIN
from store.errors import AddressGone, GroupsChanged, StoreError, StoreInTrouble, StoreUnavailable
from store.questions import entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.address.directory import Directory
    from coordinator.address.enqueue import Enqueue
    from coordinator.address.nodes import Address
    from coordinator.errors import Refusal
    from coordinator.group.entries import Entry
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.dead_letters import Failed


# The annotations of a dead letter say where it came from, and why it failed (rule D4).
#
# ``store/sql/messages.sql`` writes them for messages that no checker has answered.

ORIGINAL_ADDRESS = "x-opt-original-address"
#: the id of the half
ORIGINAL_ID = "x-opt-original-id"
DELIVERY_COUNT = "x-opt-delivery-count"
LAST_ERROR = "x-opt-last-error"
#: the txn-id: 16 octets, like in a check
TXN_ID = "x-opt-txn-id"
#: of a message whose transaction no checker has answered
PRODUCER_GROUP, CHECK_COUNT = "x-opt-producer-group", "x-opt-check-count"

_FACTS = (ORIGINAL_ADDRESS, ORIGINAL_ID, DELIVERY_COUNT, LAST_ERROR, TXN_ID, PRODUCER_GROUP, CHECK_COUNT)
#: how many characters of an error are read: twice as many as a consumer's error may have
_LONGEST_ERROR = 2000
#: octets of the descriptor of a letter's message annotations
_SECTION_BEGIN = 3


@dataclass(frozen=True, kw_only=True)
class Story:
    """The decoded annotations of a dead letter; None: absent or unreadable. Clients may have written them: an original
    address is checked, and an error is cut.
    """

    original_address: str | None = None
    original_id: int | None = None
    delivery_count: int | None = None
    last_error: str | None = None
    txn_id: UUID | None = None
    producer_group: str | None = None
    check_count: int | None = None


def read_story(head: bytes) -> Story:
    """Decode a dead letter's annotations. ``head``: the letter, or its beginning with all sections before
    properties.
    """
    section = b""
    with suppress(DecodeError):
        section = front_of(head).annotations
    told: dict[str, object] = {}
    with suppress(DecodeError):  # up to a pair that cannot be decoded
        for key, pair in pairs(section, _SECTION_BEGIN) if section else ():
            if key in _FACTS:
                told[str(key)], _ = decode(pair, skip(pair, 0))
    address, number, count, error, txn_id, group, checks = (told.get(name) for name in _FACTS)
    return Story(
        original_address=address if isinstance(address, str) and _can_be(address) else None,
        original_id=number if type(number) is int else None,
        delivery_count=count if type(count) is int else None,
        last_error=error[:_LONGEST_ERROR] if isinstance(error, str) else None,
        txn_id=UUID(bytes=txn_id) if isinstance(txn_id, bytes) and len(txn_id) == 16 else None,
        producer_group=group[:_LONGEST_ERROR] if isinstance(group, str) else None,
        check_count=checks if type(checks) is int else None,
    )


def _can_be(address: str) -> bool:
    try:
        check_name(address)
    except AddressInvalid:
        return False
    return True


def mark_of(half_id: int) -> bytes:
    """Return the octets that only letters made of this message have in their annotations."""
    return encode_symbol(ORIGINAL_ID) + encode_long(half_id)


class Letter(NamedTuple):
    """A dead letter: ``prefix``, then the stored message from octet ``start`` on."""

    prefix: bytes
    start: int


def story_of(failed: Failed, origin: str) -> list[bytes]:
    """Return the encoded annotations that say where a dead letter came from, and why it failed."""
    story = [
        encode_symbol(ORIGINAL_ADDRESS) + encode_string(origin),
        mark_of(failed.half_id),
        encode_symbol(DELIVERY_COUNT) + encode_uint(failed.failures),
        encode_symbol(LAST_ERROR) + encode_string(failed.failed),
    ]
    if failed.txn_id is not None:
        story.append(encode_symbol(TXN_ID) + encode_binary(failed.txn_id))
    return story


def letter(head: bytes, annotations: bytes, story: list[bytes], whole: int = 0) -> Letter:
    """Make the letter: the message with annotations of its outcomes and its origin; header and bare message are
    unchanged.

    ``head``: the message, or the beginning of one of ``whole`` octets. If there are too many annotations for one map,
    those of outcomes are left out, then the last of the message's own. A message that cannot be decoded is the body of
    its letter.
    """
    try:
        front = front_of(head)
    except DecodeError:
        return Letter(annotate(b"", encode_map(story)) + data_front(whole or len(head)), 0)
    section = front.annotations
    for added in (annotations, b""):
        with suppress(DecodeError):
            section = annotate(section, merge_maps(added, encode_map(story)))
            break
    else:
        section = annotate(first_annotations(section, MOST_PAIRS - len(story)), encode_map(story))
    return Letter(head[: front.before] + section, front.rest)


log = structlog.get_logger(__name__)

PREFIX = DEAD_LETTER_PREFIX
#: seconds before entries that could not be moved are retried; and before a retry while entries are under way
_AGAIN_SECONDS = 30.0
_BUSY_SECONDS = 0.1
#: the most octets before the bare message of a large one; a message with more becomes the body of its letter
_LONGEST_FRONT = 1 << 22


class DeadLetters:
    """Moves marked entries to the dead letters; ``wake()`` starts it when there may be some."""

    def __init__(self, instance: Instance, directory: Directory, enqueue: Enqueue) -> None:
        self._instance = instance
        self.directory = directory
        self.enqueue = enqueue
        self._asking = False
        self._again = False
        self._moving = 0
        #: whether some entries could not be moved, or the query for them failed
        self._left = False

    def wake(self) -> None:
        if self._asking or self._moving:
            self._again = True
            return
        self._asking = True
        self._again = False
        questions.lease_failed(self._instance.queries, self._instance.instance_id, self._leased)

    def _leased(self, found: list[Failed] | StoreError) -> None:
        self._asking = False
        if isinstance(found, StoreError):
            # The query may have leased entries: return them first. A new connection may succeed at once.
            lost = isinstance(found, StoreUnavailable) and not isinstance(found, StoreInTrouble)
            self._later(_BUSY_SECONDS if lost else _AGAIN_SECONDS)
            return
        for failed in found:
            self._moving += 1
            self.take_up(failed)
        if not found and self._again:
            self.wake()

    def take_up(self, failed: Failed) -> None:
        address = failed.address or f"group-{failed.group}"
        # a dead letter that cannot be delivered becomes the body of a readable one, at the same address
        name = address if address.startswith(PREFIX) else dead_letter_name(failed.group_name or address)
        self.directory.resolve(name, lambda found: self._move(failed, address, found), origin="dead-letter")

    def _move(self, failed: Failed, origin: str, address: Address | Refusal) -> None:
        if isinstance(address, Exception):
            log.error("no address for a dead letter", origin=origin, error=str(address))
            self.not_moved()
        else:
            self._bury(failed, origin, address, failed.message or b"")

    def _bury(self, failed: Failed, origin: str, address: Address, head: bytes) -> None:
        """Add the move to the group commit. ``head``: the message, or the beginning of a large one up to its bare
        message.
        """
        if len(head) < min(failed.whole, _LONGEST_FRONT):
            try:
                front_of(head)
            except DecodeError:
                self._load_head(failed, origin, address, 2 * len(head))
                return
        told = letter(head, failed.annotations or b"", story_of(failed, origin), failed.whole)
        self._instance.commit.add(Burial(self._instance, self, failed, origin, address, told, head))

    def _load_head(self, failed: Failed, origin: str, address: Address, size: int) -> None:
        def answered(head: bytes | None) -> None:
            if head:
                self._bury(failed, origin, address, head)
            else:
                self.not_moved()

        entries.piece(self._instance.queries, failed.half_id, 0, size, answered)

    def not_moved(self) -> None:
        """Keep the entry leased, so that it is not retried at once."""
        self._later(_AGAIN_SECONDS)
        self.moved()

    def _later(self, seconds: float) -> None:
        """Schedule the return and retry of all leased entries."""
        if not self._left:
            self._left = True
            self._instance.loop.call_later(seconds, self._try_again)

    def _try_again(self) -> None:
        if self._asking or self._moving:
            self._instance.loop.call_later(_BUSY_SECONDS, self._try_again)
            return
        self._left = False
        self._asking = True

        def given_back(error: StoreError | None) -> None:
            self._asking = False
            if error is not None:
                self._later(_AGAIN_SECONDS)
            self.wake()

        questions.give_back_failed(self._instance.queries, self._instance.instance_id, given_back)

    def moved(self) -> None:
        self._moving -= 1
        if not self._moving:
            self._again = False
            self.wake()  # until no marked entry is left


class Burial:
    """Unit: deletes the entry, posts its letter, and writes an op with the reason."""

    __slots__ = ("_address", "_entry", "_failed", "_head", "_id", "_instance", "_letter", "_letters", "_origin")

    owner: object = None

    def __init__(
        self,
        instance: Instance,
        letters: DeadLetters,
        failed: Failed,
        origin: str,
        address: Address,
        told: Letter,
        head: bytes,
    ) -> None:
        """``head``: the stored message, or the beginning of a large one."""
        self._instance = instance
        self._letters = letters
        self._letter = told
        self._head = head
        self._failed = failed
        self._origin = origin
        self._address = address
        self._entry: Entry | None = None
        self._id = 0

    def write(self, batch: Batch) -> None:
        failed = self._failed
        enqueue = self._letters.enqueue
        enqueue.unposted(self._entry)  # already written in a batch that the store refused because of another unit
        prefix, start = self._letter
        batch.gone(failed.group, failed.id)
        new_id = self._id = self._instance.ids.next()
        message = None
        if failed.whole:
            batch.copied_half(CopiedHalf(new_id, bytes(16), self._address.id, prefix, failed.half_id, start))
        else:
            message = prefix + self._head[start:]
            batch.half(new_id, bytes(16), self._address.id, message)
        self._entry = enqueue.write_entry(batch, self._address, new_id, message, PLAIN)
        covers: Sequence[tuple[int, int]] = ((failed.half_id, failed.group),)
        batch.op(self._instance.uuids.next(), b"dead-letter", reason=failed.failed, covers=covers)

    def durable(self) -> None:
        self._letters.enqueue.posted(self._address, self._entry, self._id, PLAIN)
        self._letters.moved()

    def refused(self, error: StoreError) -> None:
        if isinstance(error, GroupsChanged):
            self._address.fans = True
            self._instance.commit.add(self)
            return
        if isinstance(error, AddressGone):  # the address is made again
            self._letters.enqueue.unposted(self._entry)
            self._letters.directory.removed(self._address)
            self._letters.take_up(self._failed)
            return
        log.error("a dead letter was refused", origin=self._origin, error=str(error))
        self._letters.enqueue.unposted(self._entry)
        self._letters.not_moved()
