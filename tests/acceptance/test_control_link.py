"""The control link frame by frame: declare and discharge (part 4, sections 4.1 to 4.3; rules T1 to T15)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fix_service import Service
from tests.fix_wire import Ask, Begin, Dial, decided
from tests.wire.frames import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Source,
    TransactionalState,
)
from tests.wire.messages import SEQUENCE, VALUE, Header, Properties, data, section
from tests.wire.queues import condition
from tests.wire.types import Described, Raw, Symbol, UInt, ULong, encode

CAPABILITIES = {"amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"}


# -- attaching


@pytest.mark.rule("T1")
def test_a_coordinator_target_is_answered_with_what_there_is(begin: Begin) -> None:
    """Part 4, sections 4.1 and 4.5.1: the answer's target is the coordinator, with its true capabilities."""
    control = begin().control()
    target = control.answer.target
    assert isinstance(target, Coordinator)
    assert set(target.capabilities or ()) == CAPABILITIES


@pytest.mark.rule("T1")
@pytest.mark.parametrize(
    "desired",
    [(), ("amqp:local-transactions",), ("amqp:distributed-transactions", "amqp:promotable-transactions", "no-such")],
)
def test_capabilities_are_no_echo_of_what_is_desired(begin: Begin, desired: tuple[str, ...]) -> None:
    """Part 4, section 4.5.1: a peer that requires what is not there gets the true list, and decides for itself."""
    control = begin().control(target=Coordinator(capabilities=desired or None))
    target = control.answer.target
    assert isinstance(target, Coordinator)
    assert set(target.capabilities or ()) == CAPABILITIES
    assert control.declare()


@pytest.mark.rule("T2")
def test_open_says_what_is_offered(dial: Dial, ask: Ask) -> None:
    """Part 2, section 2.7.1: offered capabilities, and properties that name product, version and the store."""
    answer = dial().open()
    more = {"ANONYMOUS-RELAY", "SHARED-SUBS", "DELAYED_DELIVERY"}
    assert set(answer.offered_capabilities or ()) == {*CAPABILITIES, *more}
    properties = answer.properties or {}
    ((store_id,),) = ask("select id from coordinator.store_identity")
    assert properties["product"] == "amqp-transaction-coordinator"
    assert properties["version"]
    assert properties["store-id"] == store_id
    assert all(type(key) is Symbol for key in properties)


@pytest.mark.rule("T3")
def test_credit_never_ends(begin: Begin) -> None:
    """Part 4, section 4.1: credit on the control link is topped up for ever."""
    control = begin().control()
    given = control.link_credit
    assert given > 0
    for _ in range(3 * given // 100):
        requests = [control.request(Declare()) for _ in range(100)]
        assert all(isinstance(control.answer_to(request).state, Declared) for request in requests)
    control.session.sync()
    assert control.link_credit >= given // 2


@pytest.mark.rule("T3")
def test_a_control_link_is_not_resumed(begin: Begin, address: str) -> None:
    """Part 4, section 4.1: a detach without close ends it, and its transactions, all the same."""
    session = begin()
    control = session.control(name="control")
    txn = control.declare()
    assert isinstance(session.sender(address).outcome(data(b"x"), txn=txn), TransactionalState)
    assert control.detach(closed=False).closed is True
    again = session.control(name="control")
    assert not again.answer.unsettled
    assert condition(again.discharge(txn)) == "amqp:transaction:rollback"


# -- bodies


@pytest.mark.rule("T4", "T7", "T9")
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_both_descriptors_and_all_encodings_are_read(begin: Begin, symbolic: bool, large: bool) -> None:
    """Part 4, sections 4.5.2 and 4.5.3: ``amqp:declare:list`` or 0x31, ``amqp:discharge:list`` or 0x32."""
    control = begin().control()
    declared = control.reply(section(VALUE, Declare().described(symbolic=symbolic), large=large))
    assert isinstance(declared, Declared)
    discharge = Discharge(txn_id=declared.txn_id, fail=False).described(symbolic=symbolic)
    assert control.reply(section(VALUE, discharge, large=large)) == Accepted()


@pytest.mark.rule("T4")
def test_other_sections_are_ignored(begin: Begin) -> None:
    """Part 4, section 4.2: only the amqp-value counts; headers, properties and annotations may be there."""
    control = begin().control()
    message = b"".join(
        (
            Header(durable=True).encoded(),
            section(0x72, {Symbol("x-opt"): UInt(1)}),
            Properties(message_id="m", to="anything").encoded(),
            section(0x74, {"key": "value"}),
            section(VALUE, Declare().described()),
            section(0x78, {Symbol("footer"): b"x"}),
        )
    )
    assert isinstance(control.reply(message), Declared)


@pytest.mark.rule("T4")
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(data(b"declare"), id="data"),
        pytest.param(section(SEQUENCE, [Declare().described()]), id="sequence"),
        pytest.param(section(VALUE, "declare"), id="string"),
        pytest.param(section(VALUE, None), id="null"),
        pytest.param(section(VALUE, Described(ULong(0x99), [])), id="unknown descriptor"),
        pytest.param(section(VALUE, Described(Symbol("amqp:promote:list"), [])), id="unknown symbol"),
        pytest.param(Header(durable=True).encoded(), id="header only"),
    ],
)
def test_another_body_is_not_implemented(begin: Begin, message: bytes) -> None:
    """Part 4, section 4.2: rejected with amqp:not-implemented, and the link lives on."""
    control = begin().control()
    assert condition(control.reply(message)) == "amqp:not-implemented"
    assert control.declare()


@pytest.mark.rule("T4")
@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x00\x53\x77", id="no value"),
        pytest.param(b"\x00\x53\x77\x00\x53\x31", id="no list"),
        pytest.param(b"\x00\x53\x77\x00\x53\x31\xc0\x05\x01", id="cut off"),
        pytest.param(b"\xff\xff\xff", id="no section"),
        pytest.param(section(VALUE, Described(ULong(0x31), {})), id="a map"),
        pytest.param(section(VALUE, Described(ULong(0x32), [])), id="no txn-id"),
        pytest.param(section(VALUE, Described(ULong(0x32), ["text", False])), id="txn-id a string"),
        pytest.param(section(VALUE, Described(ULong(0x32), [b"x" * 16, "no"])), id="fail a string"),
        pytest.param(section(VALUE, Described(ULong(0x32), [b"x" * 16, UInt(0)])), id="fail a number"),
    ],
)
def test_what_cannot_be_decoded_is_a_decode_error(begin: Begin, message: bytes) -> None:
    """Part 2, section 2.8.15: rejected with amqp:decode-error, and the connection lives on."""
    control = begin().control()
    assert condition(control.reply(message)) == "amqp:decode-error"
    assert control.declare()


@pytest.mark.rule("T5")
def test_a_settled_declare_is_an_illegal_state(begin: Begin) -> None:
    """Part 4, section 4.2: the answer of a declare is its outcome, so that it must be sent unsettled."""
    session = begin()
    control = session.control()
    assert control.declare()
    control.request(Declare(), settled=True)
    assert control.error == "amqp:illegal-state"
    assert session.control().declare()


@pytest.mark.rule("T5")
@pytest.mark.parametrize("fail", [False, True])
def test_a_settled_discharge_is_an_illegal_state_and_decides_nothing(
    begin: Begin, address: str, ask: Ask, fail: bool
) -> None:
    """Part 4, section 4.3: nothing is committed; the transaction goes with its link (T13)."""
    session = begin()
    control = session.control()
    txn = control.declare()
    session.sender(address).outcome(data(b"x"), txn=txn)
    control.request(Discharge(txn_id=txn, fail=fail), settled=True)
    assert control.error == "amqp:illegal-state"
    assert decided(ask, txn) == ("rollback", "link-lost")
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T6")
@pytest.mark.parametrize("global_id", [b"global", "global", Described(ULong(1), b"x")])
def test_a_global_id_is_not_implemented(begin: Begin, global_id: Any) -> None:
    """Part 4, section 4.5.2: distributed transactions are not offered."""
    control = begin().control()
    assert condition(control.reply(Declare(global_id=global_id))) == "amqp:not-implemented"
    assert isinstance(control.reply(Declare(global_id=None)), Declared)


# -- txn-ids


@pytest.mark.rule("T7")
def test_a_txn_id_is_16_octets_settled_by_us(begin: Begin) -> None:
    """Part 4, section 4.5.5: declared(txn-id); ours is a UUIDv7 (RFC 9562, section 5.7)."""
    control = begin().control()
    answer = control.answer_to(control.request(Declare()))
    assert answer.settled is True
    assert isinstance(answer.state, Declared)
    txn = answer.state.txn_id
    assert len(txn) == 16
    assert txn[6] >> 4 == 7
    assert txn[8] >> 6 == 0b10


@pytest.mark.rule("T7")
def test_txn_ids_are_unique_over_restarts(begin: Begin, service: Service) -> None:
    """Part 4, section 4.5.5, and more than it asks: an id is never used again."""
    seen: set[bytes] = set()
    for _ in range(2):
        controls = [begin().control() for _ in range(2)]
        for control in controls:
            requests = [control.request(Declare()) for _ in range(300)]
            seen.update(control.answer_to(request).state.txn_id for request in requests)  # type: ignore[union-attr]
        service.kill()
        service.restart()
    assert len(seen) == 1200


# -- discharge


@pytest.mark.rule("T8")
def test_accepted_is_durable(begin: Begin, service: Service, address: str) -> None:
    """Part 4, section 4.3: killed right after the answer, the service still has the message, and the decision."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"kept"), txn=txn)
    undecided = control.declare()
    sender.outcome(data(b"gone"), txn=undecided)
    control.commit(txn)
    service.kill()
    service.restart()
    session = begin()
    assert session.receiver(address).bodies() == [b"kept"]
    control = session.control()
    assert control.discharge(txn) == Accepted()
    assert condition(control.discharge(undecided)) in ("amqp:transaction:rollback", "amqp:transaction:unknown-id")


@pytest.mark.rule("T8", "T22")
def test_a_commit_that_fails_is_rejected_or_detached(begin: Begin, address: str) -> None:
    """Part 4, section 4.3: rejected(rollback) with the reason; a source without rejected is detached with the same."""
    session = begin()
    sender = session.sender(address)
    broken = b"\x00\x53\x75\xb0\x00\x00\x00\xff"
    control = session.control()
    txn = control.declare()
    sender.post(broken, txn=txn, settled=True)
    state = control.discharge(txn)
    assert condition(state) == "amqp:transaction:rollback"
    assert "amqp:decode-error" in state.error.description

    control = session.control(source=Source(outcomes=("amqp:accepted:list", "amqp:declared:list")))
    txn = control.declare()
    sender.post(broken, txn=txn, settled=True)
    control.request(Discharge(txn_id=txn, fail=False))
    assert control.error == "amqp:transaction:rollback"


@pytest.mark.rule("T9")
@pytest.mark.parametrize(("fail", "bodies"), [(None, [b"x"]), (False, [b"x"]), (True, [])])
def test_fail_decides(begin: Begin, address: str, fail: bool | None, bodies: list[bytes]) -> None:
    """Part 4, section 4.5.3: ``fail`` absent means false; ``fail=true`` always succeeds."""
    session = begin()
    control = session.control()
    txn = control.declare()
    session.sender(address).outcome(data(b"x"), txn=txn)
    assert control.discharge(txn, fail=fail) == Accepted()
    assert session.receiver(address).bodies() == bodies


@pytest.mark.rule("T9")
def test_a_transaction_that_can_only_roll_back_does(begin: Begin, address: str) -> None:
    """Part 4, section 4.3: ``fail=true`` is accepted after a post was refused."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    sender.post(b"\xff", txn=txn, settled=True)
    control.roll_back(txn)
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T10")
@pytest.mark.parametrize("txn", [b"", b"x", bytes(16), b"never-was-never-", b"x" * 300])
@pytest.mark.parametrize("fail", [False, True])
def test_an_unknown_txn_id_is_rejected(begin: Begin, txn: bytes, fail: bool) -> None:
    """Part 4, sections 4.3 and 4.5.8."""
    control = begin().control()
    assert condition(control.discharge(txn, fail=fail)) == "amqp:transaction:unknown-id"
    assert control.declare()


@pytest.mark.rule("T7", "T10")
@pytest.mark.parametrize("octet", range(16))
def test_a_txn_id_that_was_not_given_out_is_unknown_and_leaves_nothing(begin: Begin, ask: Ask, octet: int) -> None:
    """However near it is to one that was: it is checked with the store's secret."""
    control = begin().control()
    txn = bytearray(control.declare())
    txn[octet] ^= 1
    refused = control.discharge(bytes(txn))
    assert condition(refused) == "amqp:transaction:unknown-id"
    assert "never gave out" in refused.error.description
    assert ask("select 1 from coordinator.op where id = %s", bytes(txn).hex()) == []


@pytest.mark.rule("T10")
def test_an_unknown_txn_id_detaches_where_rejected_is_not_known(begin: Begin) -> None:
    """Part 4, section 4.3: the source's outcomes say what the peer can take."""
    control = begin().control(source=Source(outcomes=("amqp:accepted:list",)))
    control.request(Discharge(txn_id=b"never-was-never-", fail=False))
    assert control.error == "amqp:transaction:unknown-id"


@pytest.mark.rule("T11")
def test_the_first_decision_wins_and_is_remembered(begin: Begin, service: Service, address: str) -> None:
    """A client that lost the reply asks again: on the same link, a new connection, and after a restart."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    committed, rolled_back = control.declare(), control.declare()
    for txn in (committed, rolled_back):
        sender.outcome(data(b"x"), txn=txn)
    control.commit(committed)
    control.roll_back(rolled_back)

    def ask_again(control: Any) -> None:
        assert control.discharge(committed) == Accepted()
        assert condition(control.discharge(committed, fail=True)) == "amqp:illegal-state"
        assert control.discharge(rolled_back, fail=True) == Accepted()
        assert condition(control.discharge(rolled_back)) == "amqp:transaction:rollback"

    ask_again(control)
    ask_again(begin().control())
    service.kill()
    service.restart()
    session = begin()
    ask_again(session.control())
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T11")
def test_a_discharge_repeated_at_once_has_one_answer(begin: Begin, address: str) -> None:
    """Two discharges in one write: the first decides; the other hears the same, or that one is under way."""
    session = begin()
    control = session.control()
    txn = control.declare()
    session.sender(address).outcome(data(b"x"), txn=txn)
    first = control.request(Discharge(txn_id=txn, fail=False))
    second = control.request(Discharge(txn_id=txn, fail=True))
    assert control.answer_to(first).state == Accepted()
    assert condition(control.answer_to(second).state) == "amqp:illegal-state"
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T12")
def test_a_transaction_belongs_to_its_connection(begin: Begin, address: str) -> None:
    """Part 4, section 4.1: work of another connection names an unknown transaction; its discharge is a question for the
    outcome, and decides it (T11).
    """
    session, other = begin(), begin()
    control = session.control()
    txn = control.declare()
    assert isinstance(session.sender(address).outcome(data(b"mine"), txn=txn), TransactionalState)
    assert condition(other.sender(address).outcome(data(b"theirs"), txn=txn)) == "amqp:transaction:unknown-id"
    refused = other.control().discharge(txn)
    assert condition(refused) == "amqp:transaction:rollback"
    assert "another connection asked" in refused.error.description
    assert other.control().discharge(txn, fail=True) == Accepted()
    assert condition(session.sender(address).outcome(data(b"late"), txn=txn)) == "amqp:transaction:unknown-id"
    refused = control.discharge(txn)
    assert condition(refused) == "amqp:transaction:rollback"
    assert "another connection asked" in refused.error.description
    assert other.receiver(address).bodies() == []


@pytest.mark.rule("T12")
def test_a_transaction_is_good_on_every_session_of_its_connection(begin: Begin, address: str) -> None:
    """Part 4, section 4.1: declared on one session, worked in on a second, discharged on a third."""
    session = begin()
    first = session.control()
    txn = first.declare()
    assert isinstance(session.peer.begin().sender(address).outcome(data(b"x"), txn=txn), TransactionalState)
    session.peer.begin().control().commit(txn)
    first.detach()
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T13")
@pytest.mark.parametrize("how", ["detach", "end", "close", "socket"])
def test_a_lost_control_link_rolls_back(begin: Begin, address: str, ask: Ask, how: str) -> None:
    """Part 4, section 4.1: undecided transactions roll back with their control link, at once."""
    session = begin()
    working = session.peer.begin()
    control = session.control()
    txn, decided_before = control.declare(), control.declare()
    sender = working.sender(address)
    sender.outcome(data(b"gone"), txn=txn)
    sender.outcome(data(b"kept"), txn=decided_before)
    control.commit(decided_before)
    if how == "detach":
        control.detach()
        assert condition(sender.outcome(data(b"late"), txn=txn)) == "amqp:transaction:unknown-id"
    elif how == "end":
        session.end()
    elif how == "close":
        session.peer.close()
    else:
        session.peer.close_socket()
    assert decided(ask, txn) == ("rollback", "link-lost")
    assert begin().receiver(address).bodies() == [b"kept"]


@pytest.mark.rule("T14")
def test_a_transaction_that_is_too_old_rolls_back(begin: Begin, address: str, ask: Ask) -> None:
    """Part 4, section 4.5.8: amqp:transaction:timeout with the limit, and the connection stays open."""
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(300)})
    sender = session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"gone"), txn=txn)
    assert decided(ask, txn) == ("rollback", "timeout")
    refused = sender.outcome(data(b"late"), txn=txn)
    assert condition(refused) == "amqp:transaction:timeout"
    assert "0.3 s" in refused.error.description
    refused = control.discharge(txn)
    assert condition(refused) == "amqp:transaction:timeout"
    assert "0.3 s" in refused.error.description
    assert control.discharge(txn, fail=True) == Accepted()
    again = control.declare()
    sender.outcome(data(b"kept"), txn=again)
    control.commit(again)
    assert session.receiver(address).bodies() == [b"kept"]


@pytest.mark.rule("T14", "T35")
def test_a_transaction_without_work_lives_with_its_control_link(begin: Begin, address: str) -> None:
    """Clients declare the next with each discharge: its time runs from the first work."""
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(2000)})
    sender = session.sender(address)
    posting, retiring = control.declare(), control.declare()
    assert sender.outcome(data(b"before")) == Accepted()
    receiver = session.receiver(address, credit=1)
    delivery = receiver.take()
    time.sleep(3)
    assert isinstance(sender.outcome(data(b"x"), txn=posting), TransactionalState)
    control.commit(posting)
    delivery.retire(retiring, Accepted())
    control.commit(retiring)
    assert begin().receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T14")
def test_the_first_frame_of_a_delivery_is_work(begin: Begin, address: str) -> None:
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(300)})
    sender = session.sender(address)
    txn = control.declare()
    number = session.next_delivery_id()
    state = TransactionalState(txn_id=txn)
    sender.transfer(b"\x00\x53\x75", delivery_id=number, delivery_tag=b"part", state=state, more=True)
    time.sleep(2)
    assert condition(control.discharge(txn)) == "amqp:transaction:timeout"


@pytest.mark.rule("T14")
@pytest.mark.parametrize("limit", [UInt(0), ULong(1 << 40), "soon", True])
def test_an_impossible_timeout_is_refused(begin: Begin, limit: Any) -> None:
    """Part 2, section 2.8.15: amqp:invalid-field, naming the property."""
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): limit})
    assert not control.accepted
    found = control.wait_detached().error
    assert found is not None
    assert found.condition == "amqp:invalid-field"
    assert "coordinator:timeout-ms" in str(found.description)
    assert session.control().declare()


@pytest.mark.rule("T15")
def test_discharged_while_a_delivery_is_partial(begin: Begin, address: str, ask: Ask) -> None:
    """Part 4, section 4.4.1: frames are still to come: the control link is detached, the transaction rolls back."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"whole"), txn=txn)
    number = session.next_delivery_id()
    state = TransactionalState(txn_id=txn)
    sender.transfer(b"\x00\x53\x75", delivery_id=number, delivery_tag=b"part", state=state, more=True)
    control.request(Discharge(txn_id=txn, fail=False))
    assert control.error == "amqp:transaction:rollback"
    assert decided(ask, txn)[0] == "rollback"
    sender.transfer(b"\xa0\x01x", delivery_id=number)
    assert condition(sender.answer_to(number).state) == "amqp:transaction:unknown-id"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T15")
def test_discharged_when_the_last_frame_has_come(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.1: the right use; all frames are there before the discharge."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    number = session.next_delivery_id()
    state = TransactionalState(txn_id=txn)
    sender.transfer(b"\x00\x53\x75", delivery_id=number, delivery_tag=b"part", state=state, more=True)
    sender.transfer(b"\xa0\x01x", delivery_id=number)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T4")
def test_raw_kit_sends_what_no_encoder_would(begin: Begin) -> None:
    """A described list with a descriptor of the wrong width is still the same descriptor (part 1, section 1.6)."""
    control = begin().control()
    body = encode(Described(Raw(b"\x80" + (0x31).to_bytes(8, "big")), []))
    assert isinstance(control.reply(b"\x00\x80" + (0x77).to_bytes(8, "big") + body), Declared)
