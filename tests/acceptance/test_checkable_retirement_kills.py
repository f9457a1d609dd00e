"""Consume, transform, produce in checkable transactions, over kill -9 of the service and its PostgreSQL, and at two
workers: each input is retired, and each output posted, exactly once, as decided (rules H13, H20).
"""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import Service
from tests.wire.frames import Accepted, Discharge, TransactionalState
from tests.wire.links import Delivery
from tests.wire.messages import data
from tests.wire.peer import Ended, Peer, Session
from tests.wire.queues import condition
from tests.wire.types import Symbol

GROUP = {Symbol("coordinator:producer-group"): "shop"}
ROUNDS = 12
INPUTS = 3
MOMENTS = ("retiring", "retired", "posted", "discharging")


def _begin(service: Service) -> Session:
    peer = Peer(service.port)
    peer.open(properties=GROUP)
    return peer.begin()


def _store(service: Service, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(running_url(service.data_dir)) as connection:
        return connection.execute(sql.encode(), values).fetchall()


class _Round:
    """One transaction that takes inputs and posts an output for each; ``told``: bodies of retirements answered."""

    def __init__(self, service: Service) -> None:
        self.session = session = _begin(service)
        self.control = session.control()
        self.sender = session.sender("out")
        self.txn = self.control.declare()
        self.inputs: list[Delivery] = session.receiver("in", credit=INPUTS).take_many(INPUTS)
        self.told: list[bytes] = []

    def go(self, moment: str) -> None:
        """Up to where the kill comes; nothing of the last step is waited for."""
        for each in self.inputs:
            each.retire(self.txn, settled=False)
        if moment == "retiring":
            return
        for each in self.inputs:
            answer = each.settlement().state
            assert answer == TransactionalState(txn_id=self.txn, outcome=Accepted())
            self.told.append(each.body)
        if moment == "retired":
            return
        posts = [self.sender.post(data(b"out of " + each.body), txn=self.txn) for each in self.inputs]
        for number in posts:
            assert self.sender.answer_to(number).state == TransactionalState(txn_id=self.txn, outcome=Accepted())
        if moment == "discharging":
            self.control.request(Discharge(txn_id=self.txn, fail=False))

    def hear_rest(self) -> None:
        """What came before the kill."""
        try:
            while True:
                self.session.peer.step()
        except (Ended, OSError):
            pass
        self.told += [
            each.body for each in self.inputs if each.body not in self.told and self.session.settlements[each.id]
        ]


@pytest.mark.rule("H5", "H13", "H20")
def test_each_input_is_retired_once_with_its_output_over_kills(own_service: Service) -> None:
    service = own_service
    dice = random.Random(20)
    names = [b"%d" % number for number in range(ROUNDS * INPUTS)]
    sender = _begin(service).sender("in")
    for name in names:
        assert sender.outcome(data(name)) == Accepted()
    done: list[bytes] = []
    posted: list[bytes] = []
    for number in range(ROUNDS):
        moment = MOMENTS[number % len(MOMENTS)]
        current = _Round(service)
        current.go(moment)
        service.kill()
        current.hear_rest()
        service.restart()
        rows = "select h.message from coordinator.pending_retirement r join coordinator.half h on h.id = r.half_id"
        held = [bytes(row[0]) for row in _store(service, f"{rows} order by r.entry_id")]
        ops = _store(service, "select decision from coordinator.op where id = encode(%s, 'hex')::uuid", current.txn)
        bodies = [each.body for each in current.inputs]
        whole = [data(body) for body in bodies]
        if ops:
            assert (moment, ops, held) == ("discharging", [("commit",)], [])
        else:
            assert [each for each in whole if each in held] == held
            assert len(held) >= len(current.told)
        # held or not, what this instance's predecessor had sent is free, or its transaction's
        free = _store(service, "select count(*) from coordinator.entry where lease > 0")
        assert free == [(0,)]
        fail = dice.random() < 0.4
        state = _begin(service).control().discharge(current.txn, fail=fail)
        if ops:
            assert (state == Accepted()) is not fail
            done += bodies
            posted += bodies
        elif not held:
            assert (state == Accepted()) is fail or condition(state) == "amqp:transaction:rollback"
        else:
            assert state == Accepted()
            if not fail:
                done += [body for body, message in zip(bodies, whole, strict=True) if message in held]
                posted += bodies if moment in ("posted", "discharging") else []
        assert _store(service, "select from coordinator.pending_retirement") == []
    session = _begin(service)
    rest = session.receiver("in", credit=len(names))
    left = [each.body for each in rest.take_many(len(names) - len(done))]
    assert sorted([*left, *done]) == sorted(names)
    assert sorted(session.receiver("out").bodies()) == sorted(b"out of " + body for body in posted)
    accepted = _store(service, "select count(*) from coordinator.op o, unnest(o.half_ids) where decision = 'commit'")
    assert accepted == [(len(done),)]
    assert _store(service, "select from coordinator.txn") == []


@pytest.mark.rule("H7", "H8", "H13", "H20")
def test_after_a_kill_of_consumer_and_service_a_checker_commits(own_service: Service) -> None:
    """What the consumer said before it died counts: its input is not delivered again."""
    service = own_service
    sender = _begin(service).sender("in")
    for name in (b"1", b"2", b"3"):
        assert sender.outcome(data(name)) == Accepted()
    lost = _Round(service)
    lost.go("retired")
    service.kill()
    lost.session.peer.close_socket()
    service.restart()
    assert _store(service, "update coordinator.txn set next_check_at = now() returning connection") == [(None,)]
    session = _begin(service)
    check = session.receiver("$check/shop", credit=1).take()
    assert check.body == b"1"
    assert session.receiver("in", credit=3).drain() == []
    check.disposition(Accepted(), settled=False)
    assert check.settlement().state == Accepted()
    assert session.receiver("in", credit=3).drain() == []
    assert _store(service, "select count(*) from coordinator.entry") == [(0,)]
