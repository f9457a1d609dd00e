"""SQL transactions of applications that are open for half a minute, each over a post, discharges and a first time:
nothing of the service waits for them (X2, X3).
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_application import Application, post
from tests.fix_night import by_night
from tests.fix_service import Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import accept, in_group, pending
from tests.wire.frames import Accepted, Rejected, TransactionalState
from tests.wire.links import Control, Receiver
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.queues import post as post_over_the_wire
from tests.wire.retirements import ops, retire
from tests.wire.types import Symbol, UInt

pytestmark = pytest.mark.rule("X2", "X3")

TXN_ID = Symbol("x-opt-txn-id")

#: How the SQL transaction ends. What others decide meanwhile agrees with it, or not.
ENDS = ("committed", "rolled back", "refused")
RIVALS = ("owner", "group", "checker", "command")

#: Sessions, of the service or not, that wait for one of these.
WAITING = "select application_name, query from pg_stat_activity where pg_blocking_pids(pid) && %s::int4[]"


class Held(NamedTuple):
    """One SQL transaction, and the transactions of AMQP that it discharges: ``alone`` is left to it, the others are
    decided by rivals. All but that of the checker are their session's.
    """

    end: str
    application: Application
    session: Session
    control: Control
    alone: bytes
    rivals: dict[str, bytes]

    @property
    def fails(self) -> bool:
        """Whether rivals roll back."""
        return self.end != "committed"


@pytest.fixture
def names(service: Service, address: str) -> tuple[str, str]:
    """A queue of kind fifo, and one of which deliveries are retired."""
    service.cli("address", "add", f"{address}-fifo", "--kind", "fifo")
    service.cli("address", "add", f"{address}-orders")
    return f"{address}-fifo", f"{address}-orders"


@pytest.fixture
def held(service: Service, begin: Begin, names: tuple[str, str], address: str) -> Iterator[list[Held]]:
    """One for each end."""
    with ExitStack() as stack:
        url = running_url(service.data_dir)
        with psycopg.connect(url) as setup:
            setup.execute("drop table if exists work")
            setup.execute("create table work (name text)")
        yield [_hold(stack.enter_context(psycopg.connect(url)), begin, names[0], address, end) for end in ENDS]


def _hold(application: Application, begin: Begin, name: str, address: str, end: str) -> Held:
    session, left = begin(), begin()
    control = in_group(session, f"{address}-{end}", check_immunity_ms=UInt(0))
    leaving = in_group(left, f"{address}-{end}", check_immunity_ms=UInt(0))
    alone = control.declare()
    rivals = {each: (leaving if each == "checker" else control).declare() for each in RIVALS}
    for txn in (alone, *rivals.values()):
        accept((left if txn == rivals["checker"] else session).sender(name), end.encode(), txn)
    left.peer.close_socket()
    application.execute("insert into work values (%s)", [end])
    for txn in (alone, *rivals.values()):
        application.execute("select coordinator.discharge(%s)", [uuid.UUID(bytes=txn)])
    post(application, name, f"sql, {end}", group_id="one")
    application.execute("select coordinator.first_time('billing', %s)", [f"{address} {end}"])
    application.execute("set constraints all immediate")
    return Held(end, application, session, control, alone, rivals)


def _rivals_decide(service: Service, begin: Begin, held: Held, address: str) -> None:
    other = begin()
    fail = held.fails
    checker = other.receiver(f"$check/{address}-{held.end}", credit=10)
    assert held.control.discharge(held.rivals["owner"], fail=fail) == Accepted()
    assert in_group(other, f"{address}-{held.end}").discharge(held.rivals["group"], fail=fail) == Accepted()
    check = checker.take()
    assert check.message.delivery_annotations[TXN_ID] == held.rivals["checker"]
    check.disposition(Rejected() if fail else Accepted(), settled=False)
    assert check.settlement().settled
    decision = "--rollback" if fail else "--commit"
    service.cli("transaction", "resolve", str(uuid.UUID(bytes=held.rivals["command"])), decision, "--reason", "x")


def _askers_are_answered(service: Service, begin: Begin, held: Held) -> None:
    """One that may not decide is told so; it is undecided."""
    refused = begin().control().discharge(held.alone)
    assert condition(refused) == "amqp:transaction:unknown-id"
    assert "is undecided" in refused.error.description
    assert "undecided" in service.cli("transaction", "show", str(uuid.UUID(bytes=held.alone)))


class Neighbour:
    """Posts in transactions, to the same queue and message group as the applications, and retires in transactions."""

    def __init__(self, session: Session, name: str) -> None:
        self.control = session.control()
        self.sender = session.sender(name)
        self.consumer: Receiver = session.receiver(name)
        self.posted = 0
        self.taken: list[Any] = []

    def goes_on(self) -> None:
        txn = self.control.declare()
        message = Properties(group_id="one").encoded() + data(b"neighbour")
        assert self.sender.outcome(message, txn=txn) == TransactionalState(txn_id=txn, outcome=Accepted())
        self.control.commit(txn)
        self.posted += 1
        self.take()

    def take(self) -> None:
        delivery = self.consumer.take()
        txn = self.control.declare()
        delivery.retire(txn)
        self.control.commit(txn)
        self.taken.append(delivery.body)


@pytest.mark.parametrize("seconds", [3.0, by_night(30.0)])
def test_the_service_waits_for_none_of_them(
    service: Service, begin: Begin, names: tuple[str, str], address: str, ask: Ask, held: list[Held], seconds: float
) -> None:
    name, orders = names
    since = time.monotonic()
    pids = [each.application.info.backend_pid for each in held]
    post_over_the_wire(begin(), orders, b"1", b"2", b"3")
    for each in held:
        _rivals_decide(service, begin, each, address)
        _askers_are_answered(service, begin, each)
        accept(each.session.sender(name), b"later", each.alone)
        retire(each.session.receiver(orders, credit=1).take(), each.alone)
    neighbour = Neighbour(begin(), name)
    while time.monotonic() < since + seconds:
        neighbour.goes_on()
        assert ask(WAITING, pids) == []
    assert [pending(ask, each.alone) for each in held] == [2, 2, 2]
    committed, rolled_back, refused = held
    committed.application.commit()
    rolled_back.application.rollback()
    with pytest.raises(psycopg.Error, match="was decided meanwhile, and not by commit") as error:
        refused.application.commit()
    assert error.value.sqlstate == "CO009"
    assert ask("select name from work") == [("committed",)]
    assert decided(ask, committed.alone) == ("commit", "application")
    assert [pending(ask, each.alone) for each in held] == [0, 2, 2]
    committed.control.commit(committed.alone)
    rolled_back.control.commit(rolled_back.alone)
    refused.control.roll_back(refused.alone)
    assert [decided(ask, each.alone) for each in held[1:]] == [("commit", None), ("rollback", "discharged")]
    assert [ops(ask, each.alone) for each in held] == [[("commit", 1)], [("commit", 1)], [("rollback", None)]]
    assert [[decided(ask, txn)[0] for txn in each.rivals.values()] for each in held] == [
        ["commit"] * 4,
        ["rollback"] * 4,
        ["rollback"] * 4,
    ]
    delivered = Counter({"sql, committed": 1, b"committed": 5, b"later": 2, b"rolled back": 1})
    delivered[b"neighbour"] = neighbour.posted
    while len(neighbour.taken) < delivered.total():
        neighbour.take()
    assert Counter(neighbour.taken) == delivered
    assert neighbour.consumer.drain() == []
