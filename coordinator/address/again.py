"""On which terms a stored message is delivered once more: to a group that is moved back, or as a letter's replay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from coordinator.group.entries import POSTGRES_EPOCH
from coordinator.group.message_groups import message_group
from store import priorities
from store.codec.encoding import DecodeError
from store.codec.message import examine_head
from store.commit.terms import ALONE, INFINITY, LATEST, PLAIN, Terms

if TYPE_CHECKING:
    from store.codec.message import Facts

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


def terms_again(head: bytes, *, fifo: bool, posted_at: datetime) -> Terms:
    """``head``: the message, or its beginning with all sections before its body. Its time to live counts from
    ``posted_at``; its delivery time is over. A message that cannot be read is delivered as a plain one, and set aside.
    """
    try:
        facts = examine_head(head)
    except DecodeError:
        return Terms(message_group=ALONE) if fifo else PLAIN
    return terms_of(facts, fifo=fifo)._replace(expires=_expires(facts, posted_at))


def terms_of(facts: Facts, *, fifo: bool) -> Terms:
    """Its priority or, on an address of kind fifo, its message group."""
    if fifo:
        return Terms(message_group=ALONE if facts.group_id is None else message_group(facts.group_id))
    return Terms(priority=priorities.DEFAULT if facts.priority is None else facts.priority)


def _expires(facts: Facts, posted_at: datetime) -> int:
    """Microseconds since 2000, as when it was posted (P12)."""
    ends = INFINITY
    if facts.ttl_ms:
        ends = (posted_at - _EPOCH) // _MICRO + facts.ttl_ms * 1000
    if facts.absolute_expiry_ms:
        ends = min(ends, facts.absolute_expiry_ms * 1000 - POSTGRES_EPOCH * 1_000_000)
    return INFINITY if ends > LATEST else ends
