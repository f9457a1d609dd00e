"""Kill -9 of the service, with its PostgreSQL, between post, accepted and discharge of checkable transactions (H13)."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import Service
from tests.wire.frames import Accepted, Discharge, TransactionalState
from tests.wire.messages import data
from tests.wire.peer import Ended, Peer, Session
from tests.wire.queues import condition
from tests.wire.types import Symbol

GROUP = {Symbol("coordinator:producer-group"): "shop"}
ROUNDS = 12
POSTS = 5


def _begin(service: Service) -> Session:
    peer = Peer(service.port)
    peer.open(properties=GROUP)
    return peer.begin()


class _Producer:
    """One transaction; ``accepted``: bodies whose posts were answered."""

    def __init__(self, service: Service, address: str, number: int) -> None:
        session = _begin(service)
        self.session = session
        self.control = session.control()
        self.sender = session.sender(address)
        self.txn = self.control.declare()
        self.bodies = [b"%d/%d" % (number, each) for each in range(POSTS)]
        with session.peer.at_once():
            self.posts = [self.sender.post(data(body), txn=self.txn) for body in self.bodies]
        self.accepted: list[bytes] = []

    def hear(self) -> None:
        """Wait for the answers to all posts."""
        for number, body in zip(self.posts, self.bodies, strict=True):
            state = self.sender.answer_to(number).state
            assert state == TransactionalState(txn_id=self.txn, outcome=Accepted())
            self.accepted.append(body)

    def hear_rest(self) -> None:
        """What came before the kill: answers to posts."""
        peer, answers = self.session.peer, self.session.answers
        try:
            while True:
                peer.step()
        except (Ended, OSError):
            pass
        for number, body in zip(self.posts, self.bodies, strict=True):
            if answers[number] and body not in self.accepted:
                self.accepted.append(body)


def _store(service: Service, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(running_url(service.data_dir)) as connection:
        return connection.execute(sql.encode(), values).fetchall()


@pytest.mark.rule("H3", "H4", "H5", "H13", "H20")
def test_each_is_whole_or_checkable_after_a_kill_at_any_point(own_service: Service) -> None:
    service = own_service
    dice = random.Random(13)
    committed: list[bytes] = []
    moments = ["posted", "accepted", "discharging"]
    for number in range(ROUNDS):
        producer = _Producer(service, "orders", number)
        moment = moments[number % 3]
        if moment != "posted":
            producer.hear()
        if moment == "discharging":
            producer.control.request(Discharge(txn_id=producer.txn, fail=False))
        else:
            dice.choice((lambda: None, producer.session.sync))()
        service.kill()
        producer.hear_rest()
        service.restart()
        halves = "select count(*) from coordinator.{} where txn_id = encode(%s, 'hex')::uuid"
        ((pending,),) = _store(service, halves.format("pending_half"), producer.txn)
        ((stored,),) = _store(service, halves.format("half"), producer.txn)
        ops = _store(
            service, "select decision, posted from coordinator.op where id = encode(%s, 'hex')::uuid", producer.txn
        )
        assert stored >= len(producer.accepted)
        if ops:
            assert moment == "discharging"
            assert (ops, pending) == ([("commit", POSTS)], 0)
        else:
            assert pending == stored
        fail = moment != "discharging" and dice.random() < 0.3
        state = _begin(service).control().discharge(producer.txn, fail=fail)
        if stored == 0:  # nothing of it was durable: the question decides
            assert (state == Accepted()) if fail else (condition(state) == "amqp:transaction:rollback")
            continue
        assert state == Accepted()
        if not fail:
            committed += producer.bodies[:stored]
    consumer = _begin(service).receiver("orders")
    assert sorted(consumer.bodies()) == sorted(committed)
    assert _store(service, "select from coordinator.pending_half") == []
    assert _store(service, "select from coordinator.txn") == []


@pytest.mark.rule("H3", "H4", "H13")
@pytest.mark.parametrize("moment", ["posted", "accepted", "discharging"])
def test_postgresql_is_killed_under_a_service_that_lives(own_service: Service, moment: str) -> None:
    """Its clients wait until it is there again, and are answered what stands: nothing is lost, nothing is doubled."""
    service = own_service
    committed: list[bytes] = []
    for number in range(4):
        producer = _Producer(service, "orders", number)
        if moment != "posted":
            producer.hear()
        asked = (
            producer.control.request(Discharge(txn_id=producer.txn, fail=False)) if moment == "discharging" else None
        )
        lines = service.log_lines()
        started = [line["pid"] for line in lines if line.get("event") == "database started"]
        os.kill(started[-1], signal.SIGKILL)
        service.wait_for(lambda line: line.get("event") == "database started", since=len(lines))
        if moment == "posted":
            producer.hear()
        if asked is None:
            asked = producer.control.request(Discharge(txn_id=producer.txn, fail=False))
        assert producer.control.answer_to(asked).state == Accepted()
        committed += producer.bodies
    assert sorted(_begin(service).receiver("orders").bodies()) == sorted(committed)
    assert _store(service, "select from coordinator.pending_half") == []


@pytest.mark.rule("H7", "H8", "H13")
def test_after_a_kill_of_producer_and_service_a_checker_decides(own_service: Service) -> None:
    service = own_service
    producer = _Producer(service, "orders", 0)
    producer.hear()
    service.kill()
    producer.session.peer.close_socket()
    service.restart()
    assert _store(service, "update coordinator.txn set next_check_at = now() returning connection") == [(None,)]
    session = _begin(service)
    check = session.receiver("$check/shop", credit=1).take()
    assert check.body == producer.bodies[0]
    check.disposition(Accepted())
    assert session.receiver("orders", credit=POSTS).take_many(POSTS)
