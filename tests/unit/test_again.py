"""On which terms a stored message is delivered once more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from coordinator.address.enqueue import terms_again
from coordinator.group.lanes import message_group
from store.commit.terms import ALONE, PLAIN, DeliveryTerms
from tests.tables import all_cases
from tests.wire.messages import MESSAGE_ANNOTATIONS, Header, Properties, data, section
from tests.wire.types import Symbol, Timestamp, UInt

pytestmark = pytest.mark.rule("H17")

POSTED = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
_MICROS = int((POSTED - datetime(2000, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


def _header(**fields: object) -> bytes:
    return section(Header.CODE, Header(**fields).described().value)  # type: ignore[arg-type]


_EXPIRY = Properties(absolute_expiry_time=Timestamp(int(POSTED.timestamp() * 1000) + 5000)).encoded()
_LATER = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-delay"): UInt(3_600_000)})


@all_cases(
    ("message", "fifo", "terms"),
    [
        (data(b"x"), False, PLAIN),
        (_header(priority=7) + data(b"x"), False, DeliveryTerms(priority=7)),
        (_header(priority=7) + data(b"x"), True, DeliveryTerms(message_group=ALONE)),
        (Properties(group_id="a").encoded() + data(b"x"), True, DeliveryTerms(message_group=message_group("a"))),
        (Properties(group_id="a").encoded() + data(b"x"), False, PLAIN),
        # its time to live counts from when it was posted
        (_header(ttl=9000) + data(b"x"), False, DeliveryTerms(expires=_MICROS + 9_000_000)),
        (_header(ttl=9000) + _EXPIRY + data(b"x"), False, DeliveryTerms(expires=_MICROS + 5_000_000)),
        # it was delivered at its time
        (_LATER + data(b"x"), False, PLAIN),
        # set aside where it is delivered
        (b"\x00\x53\x75\xb0\x00", False, PLAIN),
        (b"\x00\x53\x70\xff", True, DeliveryTerms(message_group=ALONE)),
    ],
)
def test_its_terms_are_those_of_the_message(message: bytes, fifo: bool, terms: DeliveryTerms) -> None:
    assert terms_again(message, fifo=fifo, posted_at=POSTED) == terms


def test_a_time_that_no_program_can_say_is_never() -> None:
    far = Properties(absolute_expiry_time=Timestamp(1 << 60)).encoded() + data(b"x")
    assert terms_again(far, fifo=False, posted_at=POSTED) == PLAIN
