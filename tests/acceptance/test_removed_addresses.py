"""What is posted to an address that is removed is refused, never accepted away (rules P8, P9, D1, T23)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import psycopg
import pytest

from store import removal
from store.database import connected
from store.embedded.running import running_url
from store.ids import id_at
from tests.fix_night import by_night
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, Begin
from tests.wire.checkable import in_group
from tests.wire.frames import Accepted, Modified, Rejected, Source, State, Target
from tests.wire.links import Receiver
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import condition

DELETED = "amqp:resource-deleted"
_ORPHANS = """select count(*) from coordinator.entry e
               where not exists (select from coordinator.consumer_group g where g.id = e.group_id)"""


def _dynamic(session: Session) -> tuple[Receiver, str]:
    owner = session.receiver(Source(dynamic=True))
    assert isinstance(owner.answer.source, Source)
    name = owner.answer.source.address
    assert isinstance(name, str)
    return owner, name


def _wait(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _change(service: Service, *statements: str) -> None:
    """In the store alone: the service gets no notice of it."""
    with psycopg.connect(running_url(service.data_dir)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.rule("P8", "P9")
def test_links_to_a_dynamic_node_end_with_it(begin: Begin, ask: Ask) -> None:
    """Part 2, section 2.8.15: resource-deleted."""
    session, other = begin(), begin()
    owner, name = _dynamic(session)
    sender = other.sender(name)
    consumer = session.receiver(name)
    assert sender.outcome(data(b"x")) == Accepted()
    owner.detach()
    assert sender.error == DELETED
    assert consumer.error == DELETED
    assert sender.detached is not None
    assert sender.detached.error is not None
    assert name in str(sender.detached.error.description)
    _wait(lambda: ask(_ORPHANS) == [(0,)])


@pytest.mark.rule("P9", "T23")
def test_a_transaction_that_posted_to_a_removed_address_is_not_committed(
    begin: Begin, service: Service, ask: Ask, address: str
) -> None:
    session, other = begin(), begin()
    owner, name = _dynamic(session)
    control = other.control()
    senders = other.sender(name), other.sender(address)
    txn = control.declare()
    for sender in senders:
        sender.outcome(data(b"x"), txn=txn)
    owner.detach()
    senders[0].wait_detached()
    _wait(lambda: ask("select from coordinator.address where name = %s", name) == [])
    answer = control.discharge(txn)
    assert isinstance(answer, Rejected)
    assert condition(answer) == "amqp:transaction:rollback"
    assert answer.error is not None
    assert DELETED in str(answer.error.description)
    assert ask("select count(*) from coordinator.half where txn_id = %s", txn.hex()) == [(0,)]
    assert ask("select decision from coordinator.op where id = %s", txn.hex()) == [("rollback",)]
    assert ask(_ORPHANS) == [(0,)]


@pytest.mark.rule("P9")
def test_the_database_decides_whether_an_address_is_there(
    begin: Begin, service: Service, address: str, ask: Ask
) -> None:
    """An instance that was not told yet: only what goes to the removed address is refused."""
    session = begin()
    sender, other = session.sender(address), session.sender(address + "-other")
    assert sender.outcome(data(b"1")) == Accepted()
    _change(service, f"delete from coordinator.address where name = '{address}'")
    posted = [(link, link.post(data(b"2"))) for link in (other, sender, other)]
    outcomes = [link.answer_to(number).state for link, number in posted]
    assert outcomes[0] == outcomes[2] == Accepted()
    assert isinstance(outcomes[1], Rejected)
    assert condition(outcomes[1]) == DELETED
    assert sender.error == DELETED
    # the address's entries belong to no address now; nothing was added
    assert ask(_ORPHANS) == [(1,)]
    _change(
        service,
        "delete from coordinator.entry e where not exists (select from coordinator.consumer_group g"
        " where g.id = e.group_id)",
    )
    assert session.sender(address).outcome(data(b"3")) == Accepted()
    assert session.receiver(address, credit=5).take().body == b"3"


@pytest.mark.rule("P9")
def test_the_relay_goes_on_when_an_address_is_removed(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    relay = session.sender(Target())
    message = Properties(to=address).encoded() + data(b"x")
    assert relay.outcome(message) == Accepted()
    _change(
        service,
        f"delete from coordinator.entry where group_id in (select g.id from coordinator.consumer_group g"
        f" join coordinator.address a on a.id = g.address_id where a.name = '{address}')",
        f"delete from coordinator.address where name = '{address}'",
    )
    refused = relay.outcome(message)
    assert isinstance(refused, Rejected)
    assert condition(refused) == DELETED
    assert relay.outcome(message) == Accepted()
    assert session.receiver(address, credit=5).take().body == b"x"


@pytest.mark.rule("D1")
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_group_that_the_instance_does_not_know_yet_gets_its_messages(
    begin: Begin, service: Service, address: str, ask: Ask, in_transaction: bool
) -> None:
    """The first group of a queue beside the default one, made at another instance whose notice is late."""
    session = begin()
    sender = session.sender(address)
    assert sender.outcome(data(b"before")) == Accepted()
    _change(
        service,
        "insert into coordinator.consumer_group (address_id, name) select id, 'billing' from coordinator.address"
        f" where name = '{address}'",
    )
    if in_transaction:
        control = session.control()
        txn = control.declare()
        sender.outcome(data(b"after"), txn=txn)
        control.commit(txn)
    else:
        assert sender.outcome(data(b"after")) == Accepted()
    counted = """select g.name, count(*) from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
                   join coordinator.address a on a.id = g.address_id where a.name = %s group by 1 order by 1"""
    assert ask(counted, address) == [("", 2), ("billing", 1)]


def _meanwhile(service: Service, statement: str, act: Callable[[], Any]) -> Any:
    """What ``act`` yields where ``statement`` has begun before it and is committed while it waits."""
    found: list[Any] = []
    with psycopg.connect(running_url(service.data_dir)) as connection:
        connection.execute(statement.encode())
        acting = Thread(target=lambda: found.append(act()))
        acting.start()
        with psycopg.connect(running_url(service.data_dir), autocommit=True) as looking:
            waiting = "select count(*) from pg_locks where not granted"
            _wait(lambda: looking.execute(waiting.encode()).fetchone() != (0,) or not acting.is_alive())
        connection.commit()
        acting.join(PATIENCE)
    return found[0]


@pytest.mark.rule("P9")
def test_a_post_beside_the_removal_of_its_address(begin: Begin, service: Service, address: str, ask: Ask) -> None:
    """The batch begins before the address is gone, and must not commit an entry behind it."""
    sender = begin().sender(address)
    removal = f"delete from coordinator.address where name = '{address}'"
    outcome = _meanwhile(service, removal, lambda: sender.outcome(data(b"x")))
    assert isinstance(outcome, Rejected)
    assert condition(outcome) == DELETED
    assert ask(_ORPHANS) == [(0,)]


@pytest.mark.rule("D1")
def test_a_fan_out_beside_the_removal_of_a_group(begin: Begin, service: Service, address: str, ask: Ask) -> None:
    """The group that goes has no entry; the other has."""
    session = begin()
    topic = Target(address=address, capabilities=("topic",))
    for name in ("kept", "removed"):
        session.receiver(Source(address=f"{address}::{name}", capabilities=("topic",))).detach()
    sender = session.sender(topic)
    removal = (
        "delete from coordinator.consumer_group g using coordinator.address a"
        f" where a.id = g.address_id and a.name = '{address}' and g.name = 'removed'"
    )
    assert _meanwhile(service, removal, lambda: sender.outcome(data(b"x"))) == Accepted()
    assert ask(_ORPHANS) == [(0,)]
    assert session.receiver(f"{address}::kept", credit=5).take().body == b"x"


@pytest.mark.rule("D1")
def test_what_an_ended_subscription_had_goes_with_an_op(begin: Begin, service: Service, address: str, ask: Ask) -> None:
    session = begin()
    source = Source(address=address, capabilities=("topic",), expiry_policy="never", durable=1)
    subscriber = session.receiver(source, name="audit")
    (group,) = ask(
        "select g.id from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id"
        " where a.name = %s",
        address,
    )
    first = id_at(datetime.now(UTC))  # and more than go at once
    _change(
        service,
        "insert into coordinator.half (id, address_id, message)"
        f" select {first} + i, 1, '' from generate_series(1, 2500) i",
        "insert into coordinator.entry (group_id, id, half_id)"
        f" select {group[0]}, {first} + i, {first} + i from generate_series(1, 2500) i",
    )
    subscriber.detach(closed=True)
    _wait(lambda: ask("select count(*) from coordinator.entry where group_id = %s", *group) == [(0,)])
    purged = """select count(*), sum(cardinality(half_ids)) from coordinator.op
                 where decision = 'purge' and reason = 'removed' and %s = any(group_ids)"""
    assert ask(purged, *group) == [(3, 2500)]


@pytest.mark.rule("P9", "D1")
def test_removing_an_address(begin: Begin, service: Service, address: str, ask: Ask) -> None:
    """``coordinator address remove``: links end at once; what the address had has an op; its name stays known."""
    session = begin()
    sender, consumer = session.sender(address), session.receiver(address, credit=1)
    for _ in range(3):
        assert sender.outcome(data(b"x")) == Accepted()
    held = consumer.take()
    assert "has messages" in _refused(service, address)
    service.cli("address", "remove", address, "--force")
    assert sender.error == DELETED
    assert consumer.error == DELETED
    assert not held.settled
    assert ask(_ORPHANS) == [(0,)]
    purged = """select sum(cardinality(o.half_ids)) from coordinator.op o join coordinator.removed_group g
                  on g.id = any(o.group_ids) join coordinator.removed_address a on a.id = g.address_id
                 where a.name = %s and o.decision = 'purge' and o.reason = 'removed'"""
    assert ask(purged, address) == [(3,)]
    # the name may be used again, and is another address
    assert session.sender(address).outcome(data(b"new")) == Accepted()
    assert session.receiver(address, credit=5).take().body == b"new"


@pytest.mark.rule("T8", "T31", "D1")
@pytest.mark.parametrize("checkable", [False, True])
@pytest.mark.parametrize("outcome", [Accepted(), by_night(Rejected()), by_night(Modified(delivery_failed=True))])
def test_what_is_retired_from_a_removed_address_is_committed_without_it(
    begin: Begin, service: Service, address: str, ask: Ask, checkable: bool, outcome: State
) -> None:
    """The message went with its address, and an op says so; the rest of the transaction is committed."""
    session = begin()
    target, other = session.sender(f"{address}-2"), session.receiver(f"{address}-3", credit=1)
    for name in (address, f"{address}-3"):
        assert session.sender(name).outcome(data(b"x")) == Accepted()
    consumer, control = session.receiver(address, credit=1), in_group(session) if checkable else session.control()
    txn = control.declare()
    consumer.take().retire(txn, outcome, settled=False)
    other.take().retire(txn, settled=False)
    target.outcome(data(b"y"), txn=txn)
    service.cli("address", "remove", address, "--force")
    assert consumer.error == DELETED
    control.commit(txn)
    assert [each.body for each in session.receiver(f"{address}-2", credit=5).drain()] == [b"y"]
    ops = """select o.decision, count(*)::int from coordinator.op o cross join unnest(o.half_ids) h(id)
               join coordinator.half m on m.id = h.id left join coordinator.removed_address r on r.id = m.address_id
               left join coordinator.address a on a.id = m.address_id
              where %s in (a.name, r.name) group by 1"""
    assert ask(ops, address) == [("purge", 1)]
    assert ask(ops, f"{address}-3") == [("commit", 1)]


@pytest.mark.rule("T8", "T31", "D1")
def test_what_others_have_by_now_is_refused_beside_it(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    control = session.control()
    txn = control.declare()
    for name in (address, f"{address}-2"):
        assert session.sender(name).outcome(data(b"x")) == Accepted()
        session.receiver(name, credit=1).take().retire(txn, settled=False)
    session.sync()
    service.cli("address", "remove", address, "--force")
    taken = "select g.id from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id"
    _change(
        service, f"update coordinator.entry set lease = 1000 where group_id = ({taken} where a.name = '{address}-2')"
    )
    refused = control.discharge(txn)
    assert condition(refused) == "amqp:transaction:rollback"
    assert "no longer this connection's" in refused.error.description


def _refused(service: Service, address: str) -> str:
    done = service.command("address", "remove", address)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.rule("D1")
def test_a_subscription_that_lasts_stands_against_removal(begin: Begin, service: Service, address: str) -> None:
    begin().receiver(f"{address}::audit").detach()
    assert "consumer groups that last: 'audit'" in _refused(service, address)
    service.cli("address", "remove", address, "--force")
    assert "there is no address" in _refused(service, address)


def test_an_address_that_was_removed_as_unused_is_made_again(begin: Begin, service: Service, ask: Ask) -> None:
    """The next client that names it makes it; a link that is attached all the time keeps it."""
    names = ("unused-attached", "unused-alone")
    session = begin()
    links = [session.sender(name) for name in names]
    ids = [ask("select id from coordinator.address where name = %s", name) for name in names]
    links[1].detach()
    _change(service, "update coordinator.address set created_at = created_at - interval '8 days'")
    # what the instance notes from time to time of addresses that have links
    _change(
        service,
        "insert into coordinator.address_use select id from coordinator.address where name = 'unused-attached'",
    )
    with connected(running_url(service.data_dir)) as connection:
        assert removal.remove_unused(connection, timedelta(days=7)) >= 1
    assert ask("select id from coordinator.address where name = %s", names[0]) == ids[0]
    assert links[0].outcome(data(b"1")) == Accepted()
    again = session.sender(names[1])
    assert again.outcome(data(b"2")) == Accepted()
    assert ask("select id from coordinator.address where name = %s", names[1]) not in ([], ids[1])


@pytest.mark.rule("D10", "P9")
def test_what_is_accepted_before_a_dynamic_node_ends_is_in_the_store_before(
    service: Service, begin: Begin, ask: Ask, address: str
) -> None:
    """As a reply is: a batch with its outcome that found it removed would be refused, with what others have in it."""
    session, other = begin(), begin()
    owner, name = _dynamic(session)
    other.sender(name).outcome(data(b"reply"))
    owner.credit(1)
    reply = owner.take()
    sender = other.sender(address)
    before = len(service.log_lines())
    with psycopg.connect(running_url(service.data_dir)) as connection:
        connection.execute(b"lock table coordinator.half in share mode")
        held_up = [sender.post(data(b"x"))]  # a batch is under way, and the next one gathers
        other.flow()
        _wait(lambda: ask("select from pg_locks where not granted and relation = 'coordinator.half'::regclass"))
        reply.disposition(Accepted())
        session.sync()
        owner.detach()
        other.sync()
    assert [sender.answer_to(each).state for each in held_up] == [Accepted()]
    _wait(lambda: not ask("select from coordinator.address where name = %s", name))
    accepted = "select from coordinator.op where decision = 'accept' and half_ids = array[%s::int8]"
    assert ask(accepted, int(reply.tag.split(b":")[1]))
    assert not [line for line in service.log_lines(before) if line["event"] == "unit refused by the store"]
