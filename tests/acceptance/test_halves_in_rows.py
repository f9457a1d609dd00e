"""Halves in the row of their checkable transaction, beside those with rows of their own (H2, H4, H8)."""

from __future__ import annotations

import pytest

from store.commit.checkable import MOST_IN_ROW
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import accept, in_group, pending
from tests.wire.frames import Accepted, Discharge, Target, TransactionalState
from tests.wire.links import Control, Sender
from tests.wire.messages import Header, data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import Symbol, UInt

TOPIC = (Symbol("topic"),)
ROLLBACK = "amqp:transaction:rollback"
URGENT = Header(priority=9).encoded()
LASTING = Header(ttl=UInt(3_600_000)).encoded()


def in_row(ask: Ask, txn: bytes) -> int:
    ((count,),) = ask("select cardinality(half_ids) from coordinator.txn where id = encode(%s, 'hex')::uuid", txn)
    return int(count or 0)


def post_at_once(session: Session, control: Control, sender: Sender, *messages: bytes) -> bytes:
    """In one write; the transaction, whose posts are all accepted."""
    txn = control.declare()
    with session.peer.at_once():
        posts = [sender.post(message, txn=txn) for message in messages]
    for number in posts:
        assert sender.answer_to(number).state == TransactionalState(txn_id=txn, outcome=Accepted())
    return txn


@pytest.mark.rule("H2", "H4")
def test_a_transaction_of_many_has_some_in_its_row_and_keeps_their_order(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    control, sender = in_group(session), session.sender(address)
    bodies = [b"%d" % number for number in range(600)]
    txn = post_at_once(session, control, sender, *map(data, bodies))
    assert pending(ask, txn) == len(bodies)
    assert 0 < in_row(ask, txn) <= MOST_IN_ROW
    # as it is: neither compressed, nor moved out of the row
    stored = "select pg_column_size(half_ids), 24 + 8 * cardinality(half_ids) from coordinator.txn where producer_group"
    assert all(size == whole for size, whole in ask(f"{stored} is not null and half_ids is not null"))
    control.commit(txn)
    assert decided(ask, txn) == ("commit", None)
    assert pending(ask, txn) == 0
    assert session.receiver(address, credit=len(bodies)).bodies() == bodies


@pytest.mark.rule("H2", "H4")
def test_a_commit_beside_a_rollback_in_one_write_keeps_the_order_of_its_messages(begin: Begin, address: str) -> None:
    """Some are in its row, some have rows of their own."""
    session = begin()
    control, sender = in_group(session), session.sender(address)
    bodies = [b"%d" % number for number in range(6)]
    kept = [(LASTING if number % 2 else b"") + data(body) for number, body in enumerate(bodies)]
    txn = post_at_once(session, control, sender, *kept)
    other = post_at_once(session, control, sender, data(b"other"))
    with session.peer.at_once():
        ended = [control.request(Discharge(txn_id=of, fail=of == other)) for of in (other, txn)]
    assert [control.answer_to(number).state for number in ended] == [Accepted(), Accepted()]
    assert session.receiver(address, credit=len(bodies)).bodies() == bodies


@pytest.mark.rule("H2", "H4")
def test_messages_for_two_queues_in_one_write_go_to_their_own(begin: Begin, address: str) -> None:
    session = begin()
    control = in_group(session)
    one, other = session.sender(address), session.sender(f"{address}-other")
    txn = control.declare()
    with session.peer.at_once():
        posts = [(one, one.post(data(b"1"), txn=txn)), (other, other.post(data(b"2"), txn=txn))]
    for sender, number in posts:
        assert sender.answer_to(number).state == TransactionalState(txn_id=txn, outcome=Accepted())
    control.commit(txn)
    assert session.receiver(address, credit=2).bodies() == [b"1"]
    assert session.receiver(f"{address}-other", credit=2).bodies() == [b"2"]


@pytest.mark.rule("H2", "H4", "H8")
@pytest.mark.parametrize("how", ["by its owner", "by a checker"])
def test_messages_with_terms_of_their_own_have_rows_of_their_own(
    begin: Begin, address: str, ask: Ask, how: str
) -> None:
    """The first half, which a checker is shown, is the first posted, wherever it is."""
    session = begin()
    control, sender = in_group(session, address, check_immunity_ms=UInt(0)), session.sender(address)
    txn = post_at_once(session, control, sender, URGENT + data(b"1"), data(b"2"), data(b"3"))
    assert (pending(ask, txn), in_row(ask, txn)) == (3, 2)
    if how == "by its owner":
        control.commit(txn)
    else:
        control.detach()
        check = session.receiver(f"$check/{address}", credit=10).take()
        assert check.message.body == b"1"
        assert check.message.delivery_annotations["x-opt-half-count"] == 3
        check.disposition(Accepted(), settled=False)
        check.settlement()
    assert pending(ask, txn) == 0
    assert ask("select posted from coordinator.op where id = encode(%s, 'hex')::uuid", txn) == [(3,)]
    consumer = session.receiver(address, credit=3)
    assert sorted(consumer.take().body for _ in range(3)) == [b"1", b"2", b"3"]


@pytest.mark.rule("H4", "D1")
def test_a_group_that_is_made_meanwhile_gets_what_is_committed(begin: Begin, address: str, ask: Ask) -> None:
    """Another service makes it, and this one does not know it."""
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    assert in_row(ask, txn) == 1
    made = "insert into coordinator.consumer_group (address_id, name) select id, 'audit' from coordinator.address"
    ask(f"{made} where name = %s returning id", address)
    control.commit(txn)
    assert decided(ask, txn) == ("commit", None)
    groups = "select consumer_group, ready + inflight from coordinator.groups where address = %s order by 1"
    assert ask(groups, address) == [("", 1), ("audit", 1)]


@pytest.mark.rule("H4", "T9")
@pytest.mark.parametrize(("capabilities", "rows"), [((), 1), (TOPIC, 0)], ids=["in the row", "in its own"])
def test_the_address_of_a_half_was_removed(
    begin: Begin, address: str, ask: Ask, capabilities: tuple[Symbol, ...], rows: int
) -> None:
    """It cannot be committed, and is rolled back."""
    session = begin()
    control, sender = in_group(session), session.sender(Target(address=address, capabilities=capabilities))
    txn = control.declare()
    accept(sender, b"1", txn)
    assert in_row(ask, txn) == rows
    ask("delete from coordinator.address where name = %s returning id", address)
    assert condition(control.discharge(txn, fail=False)) == ROLLBACK
    assert decided(ask, txn) == ("rollback", "store-refused")
    assert pending(ask, txn) == 0
