"""Apache Qpid JMS, unchanged, in transacted sessions: what a Java application sees."""

from __future__ import annotations

import pytest

from tests.fix_jms import Jms
from tests.fix_service import Service, running_service


@pytest.mark.rule("T1", "T7", "T8", "T9", "T20")
def test_commit_shows_and_rollback_hides(service: Service, jms: Jms) -> None:
    seen = jms("commit-and-rollback", service).line()
    assert seen["before_commit"] == ["before commit"]
    assert seen["after_commit"] == ["committed0", "committed1", "committed2"]
    assert seen["after_rollback"] == ["next0", "end"]


@pytest.mark.rule("T8", "T23")
def test_a_commit_of_a_refused_post(service: Service, jms: Jms) -> None:
    """The client throws what it throws of a doubt, too: that it is rolled back for certain, its message alone says."""
    seen = jms("refused-post", service).line()
    assert seen["thrown"] == "org.apache.qpid.jms.JmsTransactionInDoubtException"
    assert seen["code"] == "null"
    assert seen["message"].endswith("[condition = amqp:transaction:rollback]")
    assert seen["received"] == ["after it"]


@pytest.mark.rule("T28", "T32", "P11", "D6")
def test_rollback_keeps_order_and_counts_only_what_was_enlisted(service: Service, jms: Jms) -> None:
    seen = jms("rollback-with-prefetch", service).line()
    assert seen["first"] == ["m0", "m1", "m2", "m3"]
    assert seen["second"] == [f"m{i}" for i in range(10)]
    assert seen["delivery_counts"] == [2] * 4 + [1] * 6
    assert seen["redelivered"] == [True] * 4 + [False] * 6
    assert seen["left"] == []


@pytest.mark.rule("T14")
def test_a_session_that_was_idle_for_longer_than_the_timeout_works(jms: Jms) -> None:
    """It has declared its next transaction with the last commit."""
    with running_service({"transaction.timeout_seconds": "1"}) as service:
        assert jms("idle-between-commits", service).line() == {"received": ["before0", "after0", "after1"]}


@pytest.mark.rule("T26", "T28", "T13")
def test_consuming_in_a_transaction(service: Service, jms: Jms) -> None:
    seen = jms("consume", service).line()
    assert seen["committed"] == ["m0", "m1", "m2"]
    assert seen["rolled_back"] == ["m3", "m4"]
    assert seen["abandoned"] == ["m3", "m4"]
    assert seen["left"] == ["m3", "m4", "m5"]


@pytest.mark.rule("T31")
def test_transfer_is_one(service: Service, jms: Jms) -> None:
    seen = jms("transfer", service).line()
    assert seen["from"] == ["m2", "m3"]
    assert seen["to"] == ["moved m0", "moved m1"]


@pytest.mark.rule("T31")
def test_many_addresses_in_one_transaction(service: Service, jms: Jms) -> None:
    seen = jms("many-addresses", service).line()
    assert seen == {name: [f"committed {name}"] for name in "abcde"}


def test_listener_in_a_transacted_session(service: Service, jms: Jms) -> None:
    seen = jms("listener", service).line()
    assert seen["heard"] == [
        *("committed m0", "committed m1", "rolled back m2"),
        *(f"committed m{i}" for i in range(2, 6)),
    ]
    assert seen["left"] == []


@pytest.mark.rule("T27", "T32", "D6")
def test_listeners_of_many_sessions_roll_back_and_commit(service: Service, jms: Jms) -> None:
    seen = jms("listeners", service).line()
    assert seen["rolled_back"] == 20
    assert sorted(seen["committed"], key=int) == [str(i) for i in range(100)]
    assert seen["left"] == []


@pytest.mark.rule("T13", "D5")
def test_connection_closed_before_the_commit(service: Service, jms: Jms) -> None:
    seen = jms("connection-lost", service).line()
    assert seen["received"] == ["m0", "m1"]
    assert seen["from"] == ["m0", "m1", "m2"]
    assert seen["to"] == []


@pytest.mark.rule("T3", "T31")
def test_ten_thousand_messages_in_transactions_of_a_hundred(service: Service, jms: Jms) -> None:
    seen = jms("ten-thousand", service).line()
    assert seen == {"received": 10_000, "in_order": True, "complete": True, "left": []}


@pytest.mark.rule("T26", "T28", "T31", "D6")
def test_five_thousand_messages_in_one_transaction(service: Service, jms: Jms) -> None:
    seen = jms("large-transaction", service).line()
    assert seen == {"rolled_back": True, "committed": True, "redelivered": 5000, "left": []}


@pytest.mark.rule("T13", "T31", "P2")
def test_two_hundred_sessions_on_one_connection(service: Service, jms: Jms) -> None:
    assert jms("many-sessions", service).line() == {"moved": True, "left": True, "count": 100}


@pytest.mark.rule("D1", "T20")
def test_a_topic_shows_what_is_committed(service: Service, jms: Jms) -> None:
    seen = jms("topic-in-a-transaction", service).line()
    assert seen["received"] == [["before the commit0", "committed0", "committed1", "end0"]] * 2


@pytest.mark.rule("D1", "T13", "T26", "T28")
def test_a_durable_subscription_in_transactions(service: Service, jms: Jms) -> None:
    seen = jms("durable-in-a-transaction", service).line()
    assert seen["committed"] == ["m0", "m1"]
    assert seen["rolled_back"] == ["m2"]
    assert seen["abandoned"] == ["m2", "m3"]
    assert seen["left"] == ["m2", "m3", "end0"]
