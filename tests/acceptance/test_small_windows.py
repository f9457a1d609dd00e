"""Queues whose windows a few messages fill: what lies in the store comes in its place (rules P16, P18, D5)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from store.embedded.running import running_url
from tests.acceptance.fifo import message, numbers, post_each, settle
from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin
from tests.wire.frames import Accepted, Released
from tests.wire.messages import Properties, data
from tests.wire.queues import select

#: two of them fill a window
LARGE = b"x" * 600_000


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    patterns = '[{"match": "fifo-*", "kind": "fifo"}, {"match": "*"}]'
    with running_service({"bounds.window_bytes": str(1 << 20), "addresses.patterns": patterns}) as service:
        yield service


@pytest.mark.rule("P18")
def test_a_message_group_is_read_on_beyond_the_octets_of_the_window(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(f"fifo-{address}")
    sent = [sender.post(Properties(group_id="a").encoded() + data(b"%d" % each + LARGE)) for each in range(6)]
    for number in sent:
        assert sender.answer_to(number).state == Accepted()
    receiver = session.receiver(f"fifo-{address}", credit=6)
    got = receiver.take_many(6)
    assert [each.body[:1] for each in got] == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.rule("P16", "D5")
def test_one_that_chooses_gets_what_is_in_the_store_before_what_is_in_the_window(begin: Begin, address: str) -> None:
    """What came back without its body, for which there was no room, lies in the store, and is older."""
    session = begin()
    sender = session.sender(address)
    for body in (b"1" + LARGE, b"2" + LARGE, b"3", b"4"):
        assert sender.outcome(data(body)) == Accepted()
    held = session.receiver(address, credit=3).take_many(3)
    choosing = select(session, address, "true = true")
    settle(Accepted(), held[0])
    settle(Released(), held[1])
    choosing.credit(2)
    assert [each.body[:1] for each in choosing.take_many(2)] == [b"2", b"4"]


@pytest.mark.rule("P18")
def test_a_claim_whose_answer_fails_takes_no_other_away(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """The store refuses to claim any group but the one that a consumer has: it is asked again, and the claim stays."""
    session = begin()
    name = f"fifo-{address}"
    sender, receiver = session.sender(name), session.receiver(name, credit=2)
    post_each(sender, message(1, "a"))
    held = receiver.take()
    claims = (
        "select m.key from coordinator.message_group m join coordinator.consumer_group g on g.id = m.group_id "
        "join coordinator.address a on a.id = g.address_id where a.name = %s"
    )
    before = ask(claims, name)
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as store:
        check = f"check (key = {before[0][0]}) not valid"
        store.execute(f"alter table coordinator.message_group add constraint refusing {check}".encode())
        since = len(service.log_lines())
        post_each(sender, message(2, "b"))
        while not any(line.get("level") == "error" for line in service.log_lines()[since:]):
            time.sleep(0.05)
        store.execute("alter table coordinator.message_group drop constraint refusing")
    assert numbers([held, receiver.take()]) == [1, 2]
    assert set(before) < set(ask(claims, name))
