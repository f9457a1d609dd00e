"""The control link frame by frame: attaching, bodies and txn-ids (part 4, sections 4.1, 4.2, 4.5; rules T1 to T7)."""

from __future__ import annotations

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


@pytest.mark.rule("T4")
def test_raw_kit_sends_what_no_encoder_would(begin: Begin) -> None:
    """A described list with a descriptor of the wrong width is still the same descriptor (part 1, section 1.6)."""
    control = begin().control()
    body = encode(Described(Raw(b"\x80" + (0x31).to_bytes(8, "big")), []))
    assert isinstance(control.reply(b"\x00\x80" + (0x77).to_bytes(8, "big") + body), Declared)
