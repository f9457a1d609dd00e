"""``coordinator.post_octets`` in SQL (X2): which octets it takes for a message."""

from __future__ import annotations

from uuid import uuid4

import pytest
from psycopg import errors

from store.codec.encoding import DecodeError
from store.codec.message import DATA, FOOTER, SEQUENCE, VALUE, examine
from tests.fix_application import Application
from tests.wire.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, Header, Properties, data, section
from tests.wire.queues import BROKEN
from tests.wire.types import Symbol, Timestamp, UInt, ULong

pytestmark = pytest.mark.rule("X2")


@pytest.mark.parametrize("large", [False, True])
def test_octets_are_looked_at_section_by_section(application: Application, large: bool) -> None:
    """As those of a client: what a service takes is taken, and each cut of it that it refuses is refused."""
    parts = [
        (Header.CODE, [True]),
        (MESSAGE_ANNOTATIONS, {Symbol("x"): True}),
        (Properties.CODE, ["id"]),
        (APPLICATION_PROPERTIES, {"x": "y" * 300}),
    ]
    front = [section(code, value, large=large) for code, value in parts]
    bodies = [b"x" * 300, ["1", None], "tea", None, ULong(0), ULong(2**40), Timestamp(1), False, uuid4(), Symbol("s")]
    codes = [DATA, SEQUENCE, *[VALUE] * 8]
    ends = [section(FOOTER, {Symbol("f"): "x"}, large=large), b""]
    for code, value, end in zip(codes, bodies, ends * 5, strict=True):
        message = b"".join([*front, section(code, value, large=large), end])
        assert _first_fault(application, message) is None
        for cut in range(1, len(message), 7):
            try:
                examine(message[:cut])
                taken = True
            except DecodeError:
                taken = False
            assert (_first_fault(application, message[:cut]) is None) == taken, (cut, message)
    tea = section(VALUE, "tea")
    odd = [[True, "urgent"], [True] * 6, [None] * 5 + [True], [UInt(1)]]
    for header in odd:
        assert _first_fault(application, section(Header.CODE, header, large=large) + tea) == 0
    most = Header(durable=True, priority=9, ttl=2**31, first_acquirer=False, delivery_count=300).described().value
    assert _first_fault(application, section(Header.CODE, most, large=large) + tea) is None
    for wrong in (b"tea", BROKEN, tea + tea, tea + front[0], front[1] + front[0] + tea, data(b"1") + tea, front[0] * 2):
        assert _first_fault(application, wrong) is not None
        with pytest.raises(DecodeError):
            examine(wrong)
    with pytest.raises(errors.InvalidParameterValue, match="expected a section of a message at octet 8"):
        application.execute("select coordinator.post_octets('orders', %s)", [tea + tea])


def _first_fault(application: Application, message: bytes) -> int | None:
    row = application.execute("select coordinator.not_a_message_at(%s)", [message]).fetchone()
    assert row is not None
    return None if row[0] is None else int(row[0])
