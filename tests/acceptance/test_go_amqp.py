"""go-amqp, Azure's client in Go, unchanged; it has no transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.clients import Run, run_case
from tests.fix_service import Service

pytestmark = pytest.mark.night


@pytest.fixture
def run(go_program: Path, service: Service) -> Run:
    return lambda case: run_case(go_program, case, service.url)


@pytest.mark.day
@pytest.mark.rule("P2", "P10")
def test_a_message_goes_through_unchanged(run: Run) -> None:
    seen = run("send-and-receive")
    assert seen == {
        "body": True,
        "durable": True,
        "id": "an id",
        "subject": "a subject",
        "number": 7,
        "text": "seven",
        "left": [],
    }


@pytest.mark.rule("P11", "D6")
def test_outcomes_and_their_counts(run: Run) -> None:
    seen = run("outcomes")
    assert sorted(seen["came"]) == [["failed", 0], ["failed", 1], ["rejected", 0], ["released", 0], ["released", 0]]
    assert seen["left"] == []


def test_five_hundred_sends_under_way(run: Run) -> None:
    assert run("receipts") == {"accepted": 500, "received": 500, "in_order": True}


@pytest.mark.rule("P5")
def test_credit_by_hand(run: Run) -> None:
    assert run("credit") == {"received": ["m0", "m1"], "left": ["m2"], "prefetched": False}


@pytest.mark.rule("P5")
def test_draining_credit(run: Run) -> None:
    assert run("drain") == {"left": ["m0"]}


@pytest.mark.rule("P6")
def test_settled_sends_and_settled_receipts(run: Run) -> None:
    assert run("settled") == {"received": ["m0", "m1", "m2"], "left": []}


@pytest.mark.rule("P8", "P9")
def test_a_dynamic_address_lives_as_long_as_its_link(run: Run) -> None:
    assert run("dynamic") == {"received": ["reply"], "after": "amqp:not-found"}


@pytest.mark.rule("D1")
def test_a_lasting_subscription(run: Run) -> None:
    assert run("subscription") == {"first": ["first"], "away": ["away"]}


@pytest.mark.rule("D1")
def test_a_shared_subscription(run: Run) -> None:
    assert run("shared") == {"shared": ["m0", "m1"]}


@pytest.mark.rule("D1")
def test_consumer_groups_of_a_queue(run: Run) -> None:
    assert run("groups") == {name: ["m0", "m1"] for name in ("billing", "shipping", "default")}


@pytest.mark.rule("P8")
def test_browsing_takes_nothing(run: Run) -> None:
    assert run("browse") == {"browsed": ["m0", "m1", "m2"], "left": ["m0", "m1", "m2"]}


@pytest.mark.rule("P9")
def test_anonymous_relay(run: Run) -> None:
    assert run("relay") == {"nowhere": "amqp:precondition-failed", "a": ["to a"], "b": ["to b"]}


@pytest.mark.rule("P12")
def test_an_expired_message_is_not_delivered(run: Run) -> None:
    assert run("expiration") == {"left": ["lasting"]}


@pytest.mark.rule("P11", "D4")
def test_rejected_goes_to_the_dead_letters(run: Run) -> None:
    assert run("dead-letters") == {"letters": ["bad"], "left": []}
