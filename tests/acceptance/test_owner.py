"""A consumer group is held by the one instance that has consumers of it, whether or not others live.

Two workers are two instances. The load from the beginning, by which an owner finds what no notice has told it, comes
too late for these tests: they show that the notices are complete.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from store.channels import READY, SHARE
from store.embedded.running import running_url
from store.tables import SCHEMA
from tests.acceptance.engine_client import Client, Lost, Taken
from tests.fix_proxy import Proxy
from tests.fix_service import PATIENCE, Service, running_service
from tests.model.services import two_services
from tests.workers import pids_of_workers, worker_of

#: An owner would find by itself what no notice has told it: not here. And a group is soon held again.
_CONSTANTS = {"coordinator.group.queues._WHOLE_SECONDS": 1e6, "coordinator.group.serving.HOLD_SECONDS": 0.5}

_WAITING = f"select count(*) from {SCHEMA}.entry where lease = 0"
_LEASED = f"select count(*) from {SCHEMA}.entry where lease > 0"
_HELD = f"select count(*) from {SCHEMA}.consumer_group where holder <> 0"
_HOLDER = f"""select g.holder from {SCHEMA}.consumer_group g join {SCHEMA}.address a on a.id = g.address_id
               where a.name = %s"""


@pytest.fixture(scope="module")
def both() -> Iterator[Service]:
    """For tests that leave the workers alive."""
    with running_service({"workers": "2"}, _CONSTANTS) as service:
        yield service


@pytest.fixture
def two() -> Iterator[Service]:
    """For tests that do not."""
    with running_service({"workers": "2"}, _CONSTANTS) as service:
        yield service


class Pair:
    """A client at each worker of a service, and the store."""

    def __init__(self, service: Service) -> None:
        self.pids = pids_of_workers(service)
        self._service = service
        self.url = running_url(service.data_dir)
        clients: dict[int, Client] = {}
        deadline = time.monotonic() + PATIENCE
        for attempt in itertools.count():
            assert time.monotonic() < deadline, f"all connections went to the workers {clients.keys()}"
            client = Client(service.port, f"client-{attempt}")
            client.control  # noqa: B018 - the worker has accepted the connection when it answers
            number = worker_of(client.socket, self.pids)
            if number is None or number in clients:
                client.close()
            else:
                clients[number] = client
            if len(clients) == 2:
                break
        self.one, self.other = clients[0], clients[1]

    def scalar(self, query: str, *parameters: object) -> int:
        with psycopg.connect(self.url) as store:
            row = store.execute(query.encode(), parameters).fetchone()
        return -1 if row is None else int(row[0])

    def holder(self, address: str) -> int:
        return self.scalar(_HOLDER, address)

    def wait(self, query: str, wanted: int, *parameters: object) -> None:
        """Wait until the store says so, while the clients' connections go on."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.scalar(query, *parameters)) != wanted:
            assert time.monotonic() < deadline, f"{query}: {found}"
            self.turn()

    def wait_until_held(self, address: str, *, by_another_than: int = 0) -> int:
        deadline = time.monotonic() + PATIENCE
        while (found := self.holder(address)) in (0, by_another_than):
            assert time.monotonic() < deadline, "no instance holds the group"
            self.turn()
        return found

    def turn(self) -> None:
        for client in (self.one, self.other):
            if not client.lost:
                client.turn(0.01)

    def close(self) -> None:
        for client in (self.one, self.other):
            client.close()


def _post(client: Client, address: str, bodies: list[str]) -> None:
    sender = client.sender(address)
    deliveries = [client.post(sender, body) for body in bodies]
    assert [client.outcome(each) for each in deliveries] == [0x24] * len(bodies)
    sender.close()


def _bodies(count: int, name: str = "m") -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def _take(client: Client, receiver: object, count: int) -> list[Taken]:
    return [client.receive(receiver) for _ in range(count)]  # type: ignore[arg-type]


@pytest.mark.rule("D10")
def test_beside_an_idle_instance_the_owner_leases_no_row_and_sends_no_notice(both: Service) -> None:
    pair = Pair(both)
    one = pair.one
    _post(one, "alone", _bodies(300))
    receiver = one.receiver("alone", 200)
    taken = _take(one, receiver, 200)
    assert pair.scalar(_LEASED) == 0
    holder = pair.holder("alone")
    assert holder > 0
    with psycopg.connect(pair.url, autocommit=True) as listener:
        for channel in (READY, SHARE):
            listener.execute(f"listen {channel}".encode())
        for each in taken:
            one.accept(each)
        receiver.flow(400)
        _post(one, "alone", _bodies(100, "n"))
        txn = one.declare()
        sender = one.sender("alone")
        for number in range(100):
            one.post(sender, f"t{number}", txn=txn)
        assert one.discharge(txn, fail=False).accepted
        rest = _take(one, receiver, 300)
        for each in rest:
            one.accept(each)
        pair.wait(f"select count(*) from {SCHEMA}.entry", 0)
        assert list(listener.notifies(timeout=0)) == []
    assert Counter(str(each.body) for each in (*taken, *rest)) == Counter(
        [*_bodies(300), *_bodies(100, "n"), *_bodies(100, "t")]
    )
    assert pair.holder("alone") == holder
    pair.close()


@pytest.mark.rule("D5", "D10")
def test_a_group_is_shared_when_consumers_come_elsewhere_and_held_again_when_they_go(both: Service) -> None:
    pair = Pair(both)
    one, other = pair.one, pair.other
    _post(one, "shared", _bodies(60))
    first = one.receiver("shared", 10)
    taken = _take(one, first, 10)
    owner = pair.holder("shared")
    assert owner > 0
    second = other.receiver("shared", 100)
    there = _take(other, second, 50)
    assert [each.body for each in taken] == _bodies(10)
    assert [each.body for each in there] == _bodies(60)[10:]
    assert {each.message.delivery_count for each in there} == {0}
    assert pair.holder("shared") == 0
    for client, each in [*((one, each) for each in taken), *((other, each) for each in there)]:
        client.accept(each)
    pair.wait(f"select count(*) from {SCHEMA}.entry", 0)
    first.flow(100)
    second.close()
    assert pair.wait_until_held("shared") == owner
    _post(other, "shared", _bodies(50, "n"))
    again = _take(one, first, 50)
    assert sorted(str(each.body) for each in again) == sorted(_bodies(50, "n"))
    assert pair.scalar(_LEASED) == 0
    for each in again:
        one.accept(each)
    pair.wait(f"select count(*) from {SCHEMA}.entry", 0)
    pair.close()


@pytest.mark.rule("P17")
def test_a_consumer_elsewhere_gets_what_the_owner_had_read_ahead_before_what_is_newer(both: Service) -> None:
    pair = Pair(both)
    _post(pair.one, "ahead", _bodies(1000))
    first = pair.one.receiver("ahead", 10)
    taken = _take(pair.one, first, 10)
    assert pair.holder("ahead") > 0
    there = _take(pair.other, pair.other.receiver("ahead", 1000), 990)
    assert [each.body for each in (*taken, *there)] == _bodies(1000)
    for client, each in [*((pair.one, each) for each in taken), *((pair.other, each) for each in there)]:
        client.accept(each)
    pair.wait(f"select count(*) from {SCHEMA}.entry", 0)
    pair.close()


@pytest.mark.rule("D5")
def test_a_consumer_elsewhere_that_drains_gets_what_the_owner_had_read_ahead(both: Service) -> None:
    """The answer that there is nothing waits until the owner has shared the group."""
    pair = Pair(both)
    _post(pair.one, "drained", _bodies(50))
    first = pair.one.receiver("drained", 10)
    taken = _take(pair.one, first, 10)
    assert pair.holder("drained") > 0
    found: list[str] = []
    second = pair.other.receiver("drained", 0)
    deadline = time.monotonic() + PATIENCE
    while len(found) < 40:
        assert time.monotonic() < deadline, found
        for each in pair.other.drain(second, 100):
            pair.other.accept(each)
            found.append(str(each.body))
    assert found == _bodies(50)[10:]
    for each in taken:
        pair.one.accept(each)
    pair.wait(f"select count(*) from {SCHEMA}.entry", 0)
    pair.close()


@pytest.mark.rule("P8")
def test_a_browser_elsewhere_sees_what_is_posted_at_the_owner(both: Service) -> None:
    """Also what comes while it waits with credit."""
    pair = Pair(both)
    _post(pair.one, "browsed", _bodies(15))
    first = pair.one.receiver("browsed", 10)
    taken = _take(pair.one, first, 10)
    assert pair.holder("browsed") > 0
    browser = pair.other.receiver("browsed", 100, browses=True)
    assert [each.body for each in _take(pair.other, browser, 15)] == _bodies(15)
    _post(pair.one, "browsed", _bodies(5, "later"))
    assert [each.body for each in _take(pair.other, browser, 5)] == _bodies(5, "later")
    browser.close()
    first.flow(10)
    for each in taken + _take(pair.one, first, 10):
        pair.one.accept(each)
    pair.wait(f"select count(*) from {SCHEMA}.entry", 0)
    pair.wait_until_held("browsed")
    pair.close()


@pytest.mark.rule("D1", "D5", "D10")
def test_of_many_transactions_at_both_the_owner_misses_no_message(both: Service) -> None:
    """Their commits overtake each other's ids: what the other instance commits late lies below what was read."""
    dice = random.Random(7)
    pair = Pair(both)
    receiver = pair.one.receiver("both", 500)
    pair.wait_until_held("both")
    senders = {client: client.sender("both") for client in (pair.one, pair.other)}
    numbers = itertools.count()
    posted: list[str] = []
    got: Counter[str] = Counter()
    counts: set[int] = set()

    def take() -> None:
        waiting = pair.one.arrived(receiver)
        while waiting:
            each = waiting.popleft()
            pair.one.accept(each)
            receiver.flow(1)
            got[str(each.body)] += 1
            counts.add(each.message.delivery_count)

    for _ in range(60):
        asked = []
        for client in dice.sample((pair.one, pair.other), 2) * dice.randrange(1, 4):
            txn = client.declare()
            for _ in range(dice.randrange(1, 12)):
                body = f"m{next(numbers)}"
                posted.append(body)
                client.post(senders[client], body, txn=txn, settled=True)
            asked.append((client, client.ask_discharge(txn, fail=False)))
        pair.turn()
        for client, discharge in asked:
            assert client.answer_of(discharge).accepted
        take()
    deadline = time.monotonic() + PATIENCE
    while len(got) < len(posted):
        assert time.monotonic() < deadline, f"missed: {sorted(set(posted) - set(got))}"
        pair.turn()
        take()
    assert got == Counter(posted)
    assert counts == {0}
    assert pair.holder("both") > 0
    pair.close()


@pytest.mark.rule("D5", "H13")
def test_a_killed_owner_gives_back_all_that_it_had_read(two: Service) -> None:
    pair = Pair(two)
    _post(pair.other, "killed", _bodies(40))
    _take(pair.one, pair.one.receiver("killed", 10), 10)
    owner = pair.holder("killed")
    assert owner > 0
    os.kill(pair.pids[0], signal.SIGKILL)
    with pytest.raises(Lost):
        pair.one.until(lambda: False)
    there = _take(pair.other, pair.other.receiver("killed", 100), 40)
    assert [each.body for each in there] == _bodies(40)
    assert {each.message.delivery_count for each in there[:10]} == {1}
    for each in there:
        pair.other.accept(each)
    pair.wait(f"select count(*) from {SCHEMA}.entry", 0)
    pair.wait_until_held("killed", by_another_than=owner)
    pair.close()


@pytest.mark.rule("D5", "H13")
@pytest.mark.parametrize(
    ("seconds", "given_up"), [(1.5, False), pytest.param(13.0, True, marks=pytest.mark.night)], ids=["briefly", "long"]
)
def test_an_owner_that_stands_still_while_it_is_to_share_does_so_or_is_given_up(
    two: Service, seconds: float, given_up: bool
) -> None:
    pair = Pair(two)
    _post(pair.other, "stopped", _bodies(40))
    first = pair.one.receiver("stopped", 10)
    taken = _take(pair.one, first, 10)
    assert pair.holder("stopped") > 0
    seen = len(two.log_lines())
    os.kill(pair.pids[0], signal.SIGSTOP)
    until = time.monotonic() + seconds
    second = pair.other.receiver("stopped", 100)
    while time.monotonic() < until:
        pair.other.turn(0.05)
    with contextlib.suppress(ProcessLookupError):  # its own supervisor kills one that was given up
        os.kill(pair.pids[0], signal.SIGCONT)
    count = 40 if given_up else 30
    there = _take(pair.other, second, count)
    assert [each.body for each in there] == _bodies(40)[40 - count :]
    for each in there:
        pair.other.accept(each)
    ended = [line for line in two.log_lines(seen) if line.get("event") == "worker ended"]
    assert bool(ended) == given_up
    for each in taken[: 40 - count]:
        pair.one.accept(each)
    deadline = time.monotonic() + PATIENCE
    while pair.scalar(f"select count(*) from {SCHEMA}.entry"):
        assert time.monotonic() < deadline
        pair.other.turn(0.01)
        for client in (pair.one,) * (not given_up):
            client.turn(0.01)
    pair.one.cut()
    pair.close()


@pytest.mark.rule("D5")
def test_what_a_service_held_that_stops_in_order_comes_from_the_other_one(database_url: str, open_folder: Path) -> None:
    with two_services(database_url, open_folder) as (first, second):
        stopping, staying = Client(first.service.port, "stopping"), Client(second.service.port, "staying")
        _post(staying, "stops", _bodies(40))
        taken = _take(stopping, stopping.receiver("stops", 10), 10)
        assert [each.body for each in taken] == _bodies(10)
        receiver = staying.receiver("stops", 100)
        there = _take(staying, receiver, 30)
        assert first.service.stop() == 0
        there += _take(staying, receiver, 10)
        assert sorted(str(each.body) for each in there) == sorted(_bodies(40))
        for each in there:
            staying.accept(each)
        stopping.cut()
        staying.close()
        first.service.start()


@pytest.mark.rule("D5")
def test_an_owner_whose_database_was_away_shares_what_it_was_asked_for_meanwhile(
    database_url: str, open_folder: Path
) -> None:
    """The notices reached no one, and are not repeated here in time."""
    never = {"coordinator.group.serving.HOLD_SECONDS": 1e6}
    proxy = Proxy(database_url)
    first = Service(open_folder / "first", {"database_url": proxy.url}, never)
    second = Service(open_folder / "second", {"database_url": database_url}, never)
    try:
        first.start()
        second.start()
        one, other = Client(first.port, "one"), Client(second.port, "other")
        _post(other, "away", _bodies(40))
        taken = _take(one, one.receiver("away", 10), 10)
        with proxy.held("connections"):
            proxy.cut()
            receiver = other.receiver("away", 100)
            until = time.monotonic() + 3.0
            while time.monotonic() < until:  # it has asked, and asked again
                other.turn(0.05)
            assert not other.arrived(receiver)
        there = _take(other, receiver, 30)
        assert [each.body for each in (*taken, *there)] == _bodies(40)
        one.close()
        other.close()
    finally:
        first.discard()
        second.discard()
        proxy.close()


class _History:
    """Clients at two instances post, consume, come and go while workers stand still and die."""

    def __init__(self, service: Service, seed: int) -> None:
        self._service = service
        self._dice = random.Random(seed)
        self._address = f"history-{seed}"
        self._numbers = itertools.count()
        #: what was tried to be posted, and what of that was acknowledged
        self.tried: set[str] = set()
        self.posted: set[str] = set()
        #: retirements that were acknowledged, and those whose answer was lost
        self.accepted: Counter[str] = Counter()
        self.retiring: set[str] = set()
        self._clients: list[tuple[Client, list[object]]] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            kind = self._dice.choices(("post", "take", "come", "go", "stop", "kill"), (30, 40, 8, 8, 2, 1))[0]
            try:
                getattr(self, f"_{kind}")()
            except Lost:
                self._clients = [each for each in self._clients if not each[0].lost]
        self._finish()

    def _client(self) -> tuple[Client, list[object]]:
        if len(self._clients) < 4:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    self._clients.append((Client(self._service.port, f"c{next(self._numbers)}"), []))
                    self._clients[-1][0].control  # noqa: B018 - it is open
                    break
                except Lost:
                    self._clients = [each for each in self._clients if not each[0].lost]
                    assert time.monotonic() < deadline
        return self._dice.choice(self._clients)

    def _post(self) -> None:
        client, _ = self._client()
        bodies = [f"m{next(self._numbers)}" for _ in range(self._dice.randrange(1, 20))]
        self.tried |= set(bodies)
        sender = client.sender(self._address)
        txn = client.declare()
        for body in bodies:
            client.post(sender, body, txn=txn, settled=True)
        assert client.discharge(txn, fail=False).accepted
        sender.close()
        self.posted |= set(bodies)

    def _take(self) -> None:
        client, receivers = self._client()
        client.turn(0.002)
        for receiver in receivers:
            waiting = client.arrived(receiver)  # type: ignore[arg-type]
            for _ in range(min(len(waiting), self._dice.randrange(1, 20))):
                each = waiting.popleft()
                txn = client.declare()
                client.retire(each, txn)
                self.retiring.add(str(each.body))
                assert client.discharge(txn, fail=False).accepted
                self.retiring.discard(str(each.body))
                self.accepted[str(each.body)] += 1
                receiver.flow(1)  # type: ignore[attr-defined]

    def _come(self) -> None:
        client, receivers = self._client()
        receivers.append(client.receiver(self._address, self._dice.choice((1, 10, 100))))

    def _go(self) -> None:
        client, receivers = self._client()
        if receivers and self._dice.random() < 0.7:
            receivers.pop().close()  # type: ignore[attr-defined]
            client.turn(0)
        else:
            self._clients.remove((client, receivers))
            (client.cut if self._dice.random() < 0.5 else client.close)()

    def _stop(self) -> None:
        pid = self._dice.choice(list(pids_of_workers(self._service).values()))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._dice.uniform(0.01, 0.3))
        os.kill(pid, signal.SIGCONT)

    def _kill(self) -> None:
        pids, seen = pids_of_workers(self._service), len(self._service.log_lines())
        os.kill(self._dice.choice(list(pids.values())), signal.SIGKILL)
        pids_of_workers(self._service, seen, 1)

    def _finish(self) -> None:
        """All clients go but a new one, which takes what is left."""
        for client, _ in self._clients:
            client.cut()
        client = Client(self._service.port, "end")
        receiver = client.receiver(self._address, 1000)
        deadline = time.monotonic() + PATIENCE
        with psycopg.connect(running_url(self._service.data_dir), autocommit=True) as store:
            left = f"select count(*) from {SCHEMA}.entry".encode()
            while store.execute(left).fetchone() != (0,):
                assert time.monotonic() < deadline, store.execute(
                    f"select * from {SCHEMA}.entry limit 9".encode()
                ).fetchall()
                client.turn(0.02)
                waiting = client.arrived(receiver)
                while waiting:
                    each = waiting.popleft()
                    client.accept(each)
                    receiver.flow(1)
                    self.accepted[str(each.body)] += 1
        client.close()
        doubled = {body: count for body, count in self.accepted.items() if count > 1}
        assert not doubled, f"accepted twice, each time with an answer: {doubled}"
        assert set(self.accepted) <= self.tried
        lost = self.posted - set(self.accepted) - self.retiring
        assert not lost, f"posted, and not there: {sorted(lost)}"


@pytest.mark.rule("T8", "D1", "D5", "H13")
@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 60), marks=pytest.mark.night)], ids=["a few", "many"]
)
def test_nothing_is_lost_or_doubled_as_the_owner_changes(two: Service, seeds: range) -> None:
    for seed in seeds:
        history = _History(two, seed)
        history.run(150)
        assert len(history.accepted) > 20
