"""What clients can make a worker hold is bounded by ``limits.memory_bytes`` (rules S4, S5, F4), and others are served
meanwhile. Memory is the resident set.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from store.embedded.running import running_url
from tests.acceptance import attacks
from tests.acceptance.attacks import MIB, Attack, Memory, attacking, neighbour, serve_beside
from tests.fix_check_back import plant
from tests.fix_service import Service, running_service
from tests.wire.frames import (
    RECEIVER,
    Accepted,
    Declare,
    Declared,
    Disposition,
    Error,
    Modified,
    Source,
    State,
    Target,
    TransactionalState,
)
from tests.wire.links import Delivery, Sender
from tests.wire.messages import Properties, data
from tests.wire.peer import Peer, Session
from tests.wire.queues import condition
from tests.wire.types import Symbol

log = logging.getLogger(__name__)

_MOST = 64 * MIB
_SECONDS = 6.0


@pytest.fixture
def small_service() -> Iterator[Service]:
    settings = {
        "limits.memory_bytes": str(_MOST),
        "limits.spool_bytes": "64 MiB",
        "bounds.addresses_per_connection": "1000000",  # an attack may have many connections
    }
    with running_service(settings) as service:
        yield service


_ATTACKS: tuple[Attack, ...] = (
    attacks.park_posts,
    attacks.leave_transactions_undecided,
    attacks.attach_to_unknown_addresses,
    attacks.declare_without_end,
    attacks.read_nothing,
    attacks.browse_and_settle_nothing,
    attacks.browse_through_a_closed_window,
    attacks.consume_and_settle_nothing,
    attacks.begin_large_messages,
    attacks.fill_windows,
)


def _attack(service: Service, *attacks_on_it: Attack, seconds: float) -> None:
    """Each from four connections; what the worker grows by stays under the bound and a quarter."""
    neighbour(service.port)
    memory = Memory(service)
    with attacking(service, *attacks_on_it, each=4):
        served = serve_beside(service, memory, seconds)
    neighbour(service.port)
    names = ", ".join(attack.__name__ for attack in attacks_on_it)
    log.info("%s: %d to %d MiB, neighbour served %d times", names, memory.before / MIB, memory.peak / MIB, served)
    assert memory.peak - memory.before < 1.25 * _MOST
    assert not [line for line in service.log_lines() if line.get("event") in ("worker ended", "internal error")]


@pytest.mark.rule("S4", "S5", "F4")
@pytest.mark.parametrize("attack", _ATTACKS)
def test_an_attack_on_memory(small_service: Service, attack: Attack) -> None:
    _attack(small_service, attack, seconds=_SECONDS)


@pytest.mark.rule("S4", "S5", "F4")
def test_all_attacks_at_once(small_service: Service) -> None:
    """For a minute with COORDINATOR_TEST_ATTACK_SECONDS=60."""
    seconds = float(os.environ.get("COORDINATOR_TEST_ATTACK_SECONDS", "6"))
    _attack(small_service, *_ATTACKS, seconds=seconds)


@pytest.mark.rule("S4", "T23")
def test_the_largest_transactions_are_refused(small_service: Service) -> None:
    """Beyond their part of the bound; they name the setting, and roll back. A small one beside them is committed."""
    peer = Peer(small_service.port)
    peer.open()
    session = peer.begin()
    control, sender = session.control(), session.sender("many")
    small, large = control.declare(), control.declare()
    answer = sender.outcome(data(b"small"), txn=small)
    assert answer == TransactionalState(txn_id=small, outcome=Accepted())
    for _ in range(16):
        answer = sender.outcome(data(bytes(MIB - 100)), txn=large)
        if answer.outcome != Accepted():
            break
    assert condition(answer.outcome) == "amqp:resource-limit-exceeded"
    assert "limits.memory_bytes" in answer.outcome.error.description
    control.commit(small)
    refused = control.discharge(large)
    assert condition(refused) == "amqp:transaction:rollback"
    assert "limits.memory_bytes" in refused.error.description
    # what it held is let go: another has room for as much
    other = control.declare()
    for _ in range(8):
        assert sender.outcome(data(bytes(MIB - 100)), txn=other).outcome == Accepted()
    control.roll_back(other)
    assert session.receiver("many").bodies() == [b"small"]
    peer.close_socket()


@pytest.mark.rule("S5")
def test_a_peer_that_reads_nothing_is_closed() -> None:
    """It is closed when it has left too much unread for the idle time; one that reads again in time is served on."""
    with running_service({"bounds.unread_bytes": "65536", "limits.idle_timeout_seconds": "5"}) as service:
        with attacking(service, attacks.read_nothing):
            service.wait_for(lambda line: line.get("reason") == "client-reads-nothing")
        peer = Peer(service.port)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.open(idle_time_out=None)
        session = peer.begin()
        control = session.control()
        numbers = [control.request(Declare(), delivery_tag=b"%d" % each) for each in range(900)]
        for number in numbers:
            assert isinstance(control.answer_to(number).state, Declared)
        peer.close_socket()


def _begin_large(session: Session, address: str, octets: int) -> Sender:
    """A message of which so much is sent, and the rest is not."""
    sender = session.sender(address)
    number = session.next_delivery_id()
    first = {"delivery_id": number, "delivery_tag": b"%d" % number, "message_format": 0}
    for at in range(0, octets, 60_000):
        if sender.detached is not None:
            break
        sender.transfer(bytes(min(60_000, octets - at)), **(first if not at else {}), more=True)
    session.sync()
    return sender


@pytest.mark.rule("S4")
def test_files_of_large_messages_have_a_total(small_service: Service) -> None:
    """Beyond it they are refused by the setting's name; when others are done, there is room again."""
    peer = Peer(small_service.port)
    peer.open()
    session = peer.begin()
    began = [_begin_large(session, "large", 25 * MIB) for _ in range(3)]
    error = _refusal_of(began)
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "limits.spool_bytes" in (error.description or "")
    peer.close_socket()
    other = Peer(small_service.port)
    other.open()
    assert other.begin().sender("large").outcome(data(bytes(40 * MIB))) == Accepted()
    other.close_socket()


def _refusal_of(began: list[Sender]) -> Error:
    (refused,) = [sender for sender in began if sender.detached is not None]
    error = refused.wait_detached().error
    assert error is not None
    return error


@pytest.mark.rule("S4", "F4")
def test_large_messages_that_are_not_completed_give_way_to_others(small_service: Service) -> None:
    """Those of the connection that has the most in files; what it has besides goes on."""
    hoarder, little = Peer(small_service.port), Peer(small_service.port)
    for each in (hoarder, little):
        each.open()
    hoarding, other = hoarder.begin(), little.begin()
    hoard = [_begin_large(hoarding, "hoard", 20 * MIB) for _ in range(3)]
    begun = _begin_large(other, "begun", 2 * MIB)
    assert other.sender("large").outcome(data(bytes(15 * MIB))) == Accepted()
    hoarding.sync()
    error = _refusal_of(hoard)
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "limits.spool_bytes" in (error.description or "")
    begun.transfer(b"", more=False)
    other.sync()
    assert begun.detached is None
    assert hoarding.sender("hoard").outcome(data(b"small")) == Accepted()
    for each in (hoarder, little):
        each.close_socket()


@pytest.mark.rule("S4", "F4")
def test_addresses_that_were_used_are_forgotten(small_service: Service) -> None:
    """Addresses and their queues stay in memory only while there is room; used again, they are as they were."""
    peer = Peer(small_service.port)
    peer.open()
    relay = peer.begin().sender(Target())
    names = [f"used-{number}" for number in range(6500)]

    def use(some: list[str]) -> None:
        for start in range(0, len(some), 100):
            posts = [Properties(to=name).encoded() + data(b"x") for name in some[start : start + 100]]
            for number in [relay.post(post) for post in posts]:
                assert relay.answer_to(number).state == Accepted()

    use(names[:4500])  # from here on each new one takes the place of another
    memory = Memory(small_service)
    use(names[4500:])
    memory.look()
    log.info("%.2f KiB for each of 2,000 further addresses", (memory.peak - memory.before) / 2000 / 1024)
    assert memory.peak - memory.before < 6 * MIB
    for name in (names[0], names[-1]):
        assert relay.session.receiver(name).bodies() == [b"x"]
    peer.close_socket()


_EMPTY_PAIRS = {Symbol(f"x-opt-{number}"): None for number in range(2000)}
_LONG_PAIRS = {Symbol(f"x-opt-{number}"): "y" * 100 for number in range(500)}


def _with_deliveries(service: Service, source: str | Source, count: int) -> tuple[Session, list[Delivery]]:
    """So many messages of one octet, delivered and not settled."""
    peer = Peer(service.port)
    peer.open()
    session = peer.begin()
    sender = session.sender(source if isinstance(source, str) else source.address)
    receiver = session.receiver(source, credit=count)
    for _ in range(count):
        sender.post(data(b"x"), settled=True)
    return session, receiver.take_many(count)


def _settle_each(service: Service, session: Session, deliveries: list[Delivery], state: State) -> None:
    """The connection is closed before what the engine keeps of the states takes more than 16 MiB."""
    memory = Memory(service)
    with suppress(OSError):
        for each in deliveries:
            session.send(Disposition(role=RECEIVER, first=each.id, settled=True, state=state))
    error = session.peer.closed()
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "limits.memory_bytes" in (error.description or "")
    memory.look()
    assert memory.peak - memory.before < 16 * MIB
    neighbour(service.port)


@pytest.mark.rule("S4", "F4")
@pytest.mark.parametrize("in_txn", [False, True])
def test_large_states_of_many_deliveries(small_service: Service, in_txn: bool) -> None:
    """The engine keeps what it has read of a state for the next delivery in the same place, settled or not."""
    session, deliveries = _with_deliveries(small_service, "q", 100)
    state: State = Modified(message_annotations=_EMPTY_PAIRS)
    if in_txn:
        state = TransactionalState(txn_id=session.control().declare(), outcome=state)
    _settle_each(small_service, session, deliveries, state)


@pytest.mark.rule("S4", "F4")
def test_large_states_of_browsed_deliveries(small_service: Service) -> None:
    """A browser settles them all, and the engine keeps their states as well."""
    browsed = Source(address="browsed", distribution_mode="copy")
    session, deliveries = _with_deliveries(small_service, browsed, 1000)
    _settle_each(small_service, session, deliveries, Modified(message_annotations=_LONG_PAIRS))


@pytest.mark.rule("H8", "S4", "F4")
def test_large_states_of_checks(small_service: Service) -> None:
    with psycopg.connect(running_url(small_service.data_dir)) as store:
        for _ in range(100):
            plant(store, "group", "q", [data(b"x")])
    peer = Peer(small_service.port)
    peer.open()
    session = peer.begin()
    checks = session.receiver("$check/group", credit=100).take_many(100)
    _settle_each(small_service, session, checks, Modified(message_annotations=_EMPTY_PAIRS))


@pytest.mark.rule("S4", "F4")
def test_large_states_of_deliveries_whose_link_was_closed(small_service: Service) -> None:
    """The service has closed the link, and the peer has not: the engine still takes what it says of its deliveries."""
    session, deliveries = _with_deliveries(small_service, "q", 1000)
    unknown = TransactionalState(txn_id=b"unknown", outcome=Accepted())
    session.send(Disposition(role=RECEIVER, first=deliveries[0].id, settled=False, state=unknown))
    _settle_each(small_service, session, deliveries[1:], Modified(message_annotations=_LONG_PAIRS))


@pytest.mark.rule("S4", "F4")
def test_a_state_of_a_few_hundred_octets_and_many_values_of_many_deliveries(small_service: Service) -> None:
    """One frame of 900 octets: each value takes 80 in the engine, for each delivery."""
    session, deliveries = _with_deliveries(small_service, "valued", 600)
    state = TransactionalState(
        txn_id=session.control().declare(), outcome=Modified(message_annotations={Symbol("why"): [None] * 850})
    )
    deliveries[0].disposition(state, settled=False, last=deliveries[-1])
    assert session.peer.closed().condition == "amqp:resource-limit-exceeded"
    neighbour(small_service.port)
