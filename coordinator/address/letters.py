"""What a dead letter says: annotations that tell where it came from, and why it is one (rule D4).

What no checker has answered says the same, by ``store/set_aside.py``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from coordinator.address.addresses import AddressInvalid, check_name
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

if TYPE_CHECKING:
    from store.questions.dead_letters import Failed

ORIGINAL_ADDRESS = "x-opt-original-address"
#: of the half
ORIGINAL_ID = "x-opt-original-id"
DELIVERY_COUNT = "x-opt-delivery-count"
LAST_ERROR = "x-opt-last-error"
#: 16 octets, as in a check
TXN_ID = "x-opt-txn-id"
#: of what no checker has answered
PRODUCER_GROUP, CHECK_COUNT = "x-opt-producer-group", "x-opt-check-count"

_TOLD = (ORIGINAL_ADDRESS, ORIGINAL_ID, DELIVERY_COUNT, LAST_ERROR, TXN_ID, PRODUCER_GROUP, CHECK_COUNT)
#: characters of an error that are read: twice as many as those of a consumer's
_LONGEST_ERROR = 2000
#: octets of the descriptor of a letter's message annotations
_SECTION_BEGIN = 3


class Story(NamedTuple):
    """What the annotations of a dead letter say; None: nothing that can be read. Clients post to this address, too: an
    original address is one that can be, and an error is cut.
    """

    original_address: str | None = None
    original_id: int | None = None
    delivery_count: int | None = None
    last_error: str | None = None
    txn_id: UUID | None = None
    producer_group: str | None = None
    check_count: int | None = None


def read_story(head: bytes) -> Story:
    """``head``: a dead letter, or its beginning with all sections before its properties."""
    section = b""
    with suppress(DecodeError):
        section = front_of(head).annotations
    told: dict[str, object] = {}
    with suppress(DecodeError):  # up to a pair that cannot be read
        for key, pair in pairs(section, _SECTION_BEGIN) if section else ():
            if key in _TOLD:
                told[str(key)], _ = decode(pair, skip(pair, 0))
    address, number, count, error, txn_id, group, checks = (told.get(name) for name in _TOLD)
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
    """Octets that only what was made of this message has in its annotations."""
    return encode_symbol(ORIGINAL_ID) + encode_long(half_id)


class Letter(NamedTuple):
    """``prefix``, then the stored message from octet ``start`` on."""

    prefix: bytes
    start: int


def story_of(failed: Failed, origin: str) -> list[bytes]:
    """The annotations that say where a dead letter came from, and why."""
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
    """The message with the annotations of its outcomes and of its origin; header and bare message are unchanged.

    ``head``: the message, or the beginning of one of ``whole`` octets. Of annotations that are too many for one map
    those of outcomes are left out, then the last of the message's own. A message that cannot be read is the body of its
    letter.
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
