"""Qpid Proton's C++ client, unchanged; its released versions have no transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.clients import Run, run_case
from tests.fix_service import Service

pytestmark = pytest.mark.night


@pytest.fixture
def run(proton_cpp_program: Path, service: Service) -> Run:
    return lambda case: run_case(proton_cpp_program, case, service.url)


@pytest.mark.day
@pytest.mark.rule("P2", "P10")
def test_a_message_goes_through_unchanged(run: Run) -> None:
    assert run("send-and-receive") == {
        "outcome": "accepted",
        "body": True,
        "durable": True,
        "id": "an id",
        "subject": "a subject",
        "number": 7,
        "note": "kept",
        "left": [],
    }


@pytest.mark.rule("P2")
def test_five_megabytes_in_small_frames(run: Run) -> None:
    assert run("large") == {"outcome": "accepted", "equal": True}


@pytest.mark.rule("P11", "D4", "D6")
def test_outcomes_and_their_counts(run: Run) -> None:
    seen = run("outcomes")
    came = [["accepted", 0], ["modified", 0], ["modified", 0], ["rejected", 0], ["released", 0], ["released", 0]]
    assert sorted(seen["came"]) == came  # this client's modified does not say that the delivery failed
    assert seen["left"] == []
    assert seen["dead_letter"] == "rejected"


def test_a_hundred_sends_under_way(run: Run) -> None:
    assert run("many") == {"accepted": 100, "in_order": True}


@pytest.mark.rule("P6")
def test_settled_sends_and_settled_receipts(run: Run) -> None:
    assert run("settled") == {"received": ["m0", "m1", "m2"], "left": []}


@pytest.mark.rule("P5")
def test_credit_and_drain(run: Run) -> None:
    assert run("credit") == {
        "empty": [],
        "credit_after_empty": 0,
        "two": ["m0", "m1"],
        "drained": ["m2", "m3"],
        "credit_after": 0,
        "later": "later",
    }


@pytest.mark.rule("P8", "P9")
def test_a_dynamic_address_lives_as_long_as_its_link(run: Run) -> None:
    assert run("dynamic") == {"received": "reply", "after": "amqp:not-found"}


@pytest.mark.rule("P9")
def test_anonymous_relay(run: Run) -> None:
    assert run("relay") == {"outcomes": ["accepted", "accepted", "rejected"], "a": ["to a"], "b": ["to b"]}


@pytest.mark.rule("P8")
def test_browsing_takes_nothing(run: Run) -> None:
    assert run("browse") == {"browsed": ["m0", "m1", "m2"], "left": ["m0", "m1", "m2"]}


@pytest.mark.rule("P16")
def test_selectors_choose_and_leave_the_rest(run: Run) -> None:
    assert run("selectors") == {
        "chosen": ["m2", "m3", "m5"],
        "left": ["m0", "m1", "m4"],
        "bad": "amqp:invalid-field",
    }


@pytest.mark.rule("D1")
def test_a_lasting_subscription(run: Run) -> None:
    assert run("subscription") == {
        "expiry_policy": "never",
        "first": ["first"],
        "away": ["away"],
        "closed": ["end"],
    }


@pytest.mark.rule("D1")
def test_a_topic_and_a_shared_subscription(run: Run) -> None:
    assert run("shared") == {"alone": ["m0", "m1"], "shared": ["m0", "m1"]}


@pytest.mark.rule("D1")
def test_consumer_groups_of_a_queue(run: Run) -> None:
    messages = ["m0", "m1"]
    assert run("groups") == {"billing": messages, "shipping": messages, "default": messages}


@pytest.mark.rule("P12")
def test_an_expired_message_is_not_delivered(run: Run) -> None:
    assert run("expiration") == {"left": ["lasting"]}
