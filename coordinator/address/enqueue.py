"""Enqueue turns a message into entries: it computes the terms of a post, writes the rows that make a half deliverable,
and creates the entries that are born leased to this instance.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from coordinator.address.addresses import shown
from coordinator.errors import Condition, Refusal
from coordinator.group.entries import POSTGRES_EPOCH, Entry, now_micros
from coordinator.group.lanes import message_group
from store.codec.encoding import DecodeError
from store.codec.message import DELIVERY_DELAY, DELIVERY_TIME, NO_FACTS, examine_head
from store.commit.terms import ALONE, BEFORE, DEFAULT, INFINITY, LATEST, PLAIN, DeliveryTerms, key_of
from store.spool import LARGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.address.nodes import Address
    from coordinator.group.schedule import Schedule
    from coordinator.instance import Instance
    from store.codec.message import Facts
    from store.commit.batch import Batch
    from store.spool import Octets


#: the reason of the op for subscriptions with no-local on the posting connection (P16)
NO_LOCAL = "no-local"


class Enqueue:
    """Computes the terms of posts, and makes their entries. Raises Refusal if a message cannot be taken."""

    #: the refusal of posts, and of discharges of transactions with posts, while the disk is nearly full
    disk_refusal = Refusal(
        Condition.RESOURCE_LIMIT_EXCEEDED,
        "the disk of the database is nearly full (limits.disk_free_bytes): make room; retirements go on",
    )

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self._instance = instance
        self._schedule = schedule

    def terms(self, facts: Facts, address: Address) -> DeliveryTerms:
        """Return the terms of a message posted now: when it expires (rule P12), when it may be delivered (D7), its
        priority (P17) or, on a fifo address, its group (P18).
        """
        if self._instance.disk_low:
            raise self.disk_refusal
        fifo = address.fifo
        if address.transactional or address.delayed:
            _check_delay(facts, address)
        if facts is NO_FACTS and not fifo:
            return PLAIN
        ends, begins = INFINITY, BEFORE
        if facts.ttl_ms:
            ends = now_micros() + facts.ttl_ms * 1000
        if facts.absolute_expiry_ms:
            ends = min(ends, _micros(facts.absolute_expiry_ms))
        if facts.delivery_time_ms is not None:
            begins = _micros(facts.delivery_time_ms)
        if facts.delivery_delay_ms:
            begins = max(begins, now_micros() + facts.delivery_delay_ms * 1000)
        if begins <= now_micros():
            begins = BEFORE
        priority = DEFAULT if facts.priority is None or fifo else facts.priority
        group = 0 if not fifo else ALONE if facts.group_id is None else message_group(facts.group_id)
        terms = DeliveryTerms(INFINITY if ends > LATEST else ends, min(begins, LATEST), priority, group)
        return PLAIN if terms == PLAIN else terms

    def write_entry(
        self,
        batch: Batch,
        address: Address,
        half_id: int,
        message: Octets | None,
        terms: DeliveryTerms,
        poster: object = None,
    ) -> Entry | None:
        """Write the rows that make a half deliverable; return the entry if it is born leased to this instance.

        ``message``: None if it is in the store only.

        ``poster``: the connection it came on, for subscriptions with no-local.
        """
        queue = address.queue
        if queue is None or address.fans:
            without = [queue.group_id for queue in address.subscriptions if queue.not_from is poster is not None]
            batch.fan(address.id, half_id, terms, address.groups, without)
            if without:  # the op is the record: without it the message would count as lost for these groups
                covers = [(half_id, group_id) for group_id in without]
                batch.op(self._instance.uuids.next(), b"accept", reason=NO_LOCAL, covers=covers)
            if self._instance.peers and terms.available == BEFORE:
                self._wake(batch, -address.id, half_id, terms)
            return None
        now = terms is PLAIN or terms.available == BEFORE
        if now and queue.consumers and isinstance(message, bytes) and queue.reserve(len(message), terms.priority):
            batch.entry(address.id, queue.group_id, half_id, self._instance.instance_id, terms)
            expires = 0 if terms.expires == INFINITY else terms.expires
            return Entry(queue, half_id, half_id, message, 0, expires, b"", False, terms.priority)
        batch.entry(address.id, queue.group_id, half_id, 0, terms)
        if now and queue.is_shared:
            self._wake(batch, queue.group_id, half_id, terms)
        return None

    def write_columns(
        self,
        batch: Batch,
        posts: Sequence[tuple[Address, Octets, DeliveryTerms]],
        half_ids: Sequence[int],
        txn_id: bytes,
    ) -> bool:
        """Write the halves of a transaction with the rows of :meth:`write_entry`, all at once; whether they were
        written. False: some are not plain, or are large, or not for one queue without a consumer here.
        """
        only = posts[0][0]
        queue = only.queue
        if queue is None or only.fans or queue.consumers:
            return False
        messages: list[Octets] = []
        for address, message, terms in posts:
            if address is not only or terms is not PLAIN or len(message) > LARGE:
                return False
            messages.append(message)
        batch.columns(half_ids, txn_id, only.id, messages, queue.group_id)
        if queue.is_shared:
            self._wake(batch, queue.group_id, half_ids[0], PLAIN)
        return True

    def wake(self, batch: Batch, address: Address, entry_id: int, terms: DeliveryTerms) -> None:
        """Notify other instances, if any, of an entry that the store makes of one of its halves."""
        if terms.available == BEFORE:
            queue = address.queue
            if queue is None or address.fans:
                self._wake(batch, -address.id, entry_id, terms)
            elif queue.is_shared:
                self._wake(batch, queue.group_id, entry_id, terms)

    def _wake(self, batch: Batch, group_id: int, half_id: int, terms: DeliveryTerms) -> None:
        if terms.message_group:
            batch.wake_keys.add((group_id, key_of(terms, half_id)))
        else:
            batch.notify(group_id, half_id)

    def posted(self, address: Address, entry: Entry | None, half_id: int, terms: DeliveryTerms) -> None:
        """Pass on an entry whose rows of :meth:`write_entry` are durable."""
        if entry is not None:
            entry.queue.arrived(entry)
            return
        if terms.available != BEFORE:
            self._schedule.due(terms.available)
            return
        if address.queue is not None:
            address.queue.posted(half_id, terms)
        for queue in address.subscriptions:
            queue.posted(half_id, terms)

    def unposted(self, entry: Entry | None) -> None:
        """Undo the reservation of an entry whose rows were refused, or are written again."""
        if entry is not None:
            entry.queue.unreserve(entry)


def _check_delay(facts: Facts, address: Address) -> None:
    """Check the message's delivery time against the kind of the address (H1, H14); raise a refusal if they do not
    fit.
    """
    name = shown(address.name)
    if facts.delivery_time_ms is not None or facts.delivery_delay_ms:
        if address.transactional:
            text = f"the address {name} is of kind transaction: its messages cannot be delivered later"
            raise Refusal(Condition.PRECONDITION_FAILED, text)
    elif address.delayed:
        text = f"the address {name} is of kind delay, and the message came without {DELIVERY_TIME} "
        text += f"or a {DELIVERY_DELAY} above 0"
        raise Refusal(Condition.PRECONDITION_FAILED, text)


def _micros(unix_ms: int) -> int:
    """Convert Unix milliseconds to PostgreSQL's microseconds since 2000."""
    return unix_ms * 1000 - POSTGRES_EPOCH * 1_000_000


# The terms of a stored message that is delivered again: by a seek of its group, or as the replay of a dead letter.

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


def terms_again(head: bytes, *, fifo: bool, posted_at: datetime) -> DeliveryTerms:
    """Return the terms of a message that is delivered again. ``head``: the message, or its beginning with all sections
    before the body. Its time to live counts from ``posted_at``; its delivery time has passed. A message that cannot be
    decoded is delivered as a plain one, and then set aside.
    """
    try:
        facts = examine_head(head)
    except DecodeError:
        return DeliveryTerms(message_group=ALONE) if fifo else PLAIN
    return terms_of(facts, fifo=fifo)._replace(expires=_expires(facts, posted_at))


def terms_of(facts: Facts, *, fifo: bool) -> DeliveryTerms:
    """Return terms with the message's priority or, on an address of kind fifo, its message group."""
    if fifo:
        return DeliveryTerms(message_group=ALONE if facts.group_id is None else message_group(facts.group_id))
    return DeliveryTerms(priority=DEFAULT if facts.priority is None else facts.priority)


def _expires(facts: Facts, posted_at: datetime) -> int:
    """Return when the message expires, in microseconds since 2000, counted from its post (P12)."""
    ends = INFINITY
    if facts.ttl_ms:
        ends = (posted_at - _EPOCH) // _MICRO + facts.ttl_ms * 1000
    if facts.absolute_expiry_ms:
        ends = min(ends, facts.absolute_expiry_ms * 1000 - POSTGRES_EPOCH * 1_000_000)
    return INFINITY if ends > LATEST else ends
