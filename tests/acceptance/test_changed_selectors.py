"""A lasting subscription that is attached with another selector, or no-local, is another one (JMS; rules D1, P16)."""

from __future__ import annotations

import pytest

from tests.acceptance.selecting import HIGH, LOW, post, subscribed, taken
from tests.fix_wire import Ask, Begin
from tests.wire.frames import Source

pytestmark = pytest.mark.rule("D1", "P16")


@pytest.mark.parametrize(("before", "after"), [(LOW, HIGH), (LOW, ""), ("", LOW)])
def test_another_selector_begins_anew(begin: Begin, address: str, before: str, after: str) -> None:
    """What waited under the one before is gone; what comes from then on is there."""
    poster, session = begin(), begin(container_id=f"shop-{address}")
    subscribed(session, address, before).detach(closed=False)
    post(poster, address, 5, 15)
    receiver = subscribed(session, address, after)
    assert taken(receiver) == []
    receiver.detach(closed=False)
    post(poster, address, 6, 16)
    assert taken(subscribed(session, address, after)) == {HIGH: [b"16"], LOW: [b"6"], "": [b"6", b"16"]}[after]


def test_no_local_is_the_same(begin: Begin, address: str) -> None:
    poster, session = begin(), begin(container_id=f"shop-{address}")
    subscribed(session, address, LOW).detach(closed=False)
    post(poster, address, 5)
    assert taken(subscribed(session, address, LOW, no_local=True)) == []


def test_the_same_selector_keeps_what_waits(begin: Begin, address: str) -> None:
    """Over a new connection, and an attach by the name alone, which has no selector."""
    poster, session = begin(), begin(container_id=f"shop-{address}")
    subscribed(session, address, LOW).detach(closed=False)
    post(poster, address, 5, 15)
    again = begin(container_id=f"shop-{address}")
    again.receiver(Source(), name="sub").detach(closed=False)
    assert taken(subscribed(again, address, LOW)) == [b"5"]


@pytest.mark.rule("F6")
def test_one_of_an_earlier_version_keeps_what_waits(begin: Begin, address: str, ask: Ask) -> None:
    """It has none in the store: that of its next link is its own."""
    poster, session = begin(), begin(container_id=f"shop-{address}")
    subscribed(session, address, LOW).detach(closed=False)
    ask("update coordinator.consumer_group set filters = null where name = %s returning id", f"sub@shop-{address}")
    post(poster, address, 5, 15)
    receiver = subscribed(session, address, HIGH)
    assert taken(receiver) == [b"15"]
    receiver.detach(closed=False)
    post(poster, address, 6, 16)
    assert taken(subscribed(session, address, LOW)) == []


def test_a_transaction_that_holds_a_delivery_of_it(begin: Begin, address: str) -> None:
    """The subscription stays until it is decided; the attach may be tried again."""
    poster, session = begin(), begin(container_id=f"shop-{address}")
    receiver = subscribed(session, address, LOW)
    post(poster, address, 5)
    control = session.control()
    txn = control.declare()
    receiver.take().retire(txn)
    session.sync()
    receiver.detach(closed=False)
    refused = subscribed(session, address, HIGH)
    assert refused.error == "amqp:resource-locked"
    control.commit(txn)
    while (receiver := subscribed(session, address, HIGH)).answer.source is None:
        assert receiver.error == "amqp:resource-locked"
    assert taken(receiver) == []


def test_a_shared_one_has_one_selector_while_it_has_links(begin: Begin, address: str) -> None:
    """Then another one is an error; without links it is a change."""
    poster, session = begin(), begin(container_id=f"shop-{address}")
    first = subscribed(session, address, LOW, "shared", name="sub|1")
    assert subscribed(session, address, HIGH, "shared", name="sub|2").error == "amqp:not-allowed"
    second = subscribed(session, address, LOW, "shared", name="sub|3")
    first.detach(closed=False)
    second.detach(closed=False)
    post(poster, address, 5, 15)
    assert taken(subscribed(session, address, HIGH, "shared", name="sub|4")) == []
