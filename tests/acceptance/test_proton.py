"""The client of python-qpid-proton, unchanged: its reactor with transactions, and its blocking connection."""

from __future__ import annotations

import sys

import pytest

from tests.acceptance.clients import Run, run_case
from tests.fix_service import Service


@pytest.fixture
def run(service: Service) -> Run:
    return lambda case: run_case(sys.executable, "-m", "tests.acceptance.proton_client", case, str(service.port))


@pytest.mark.rule("T4", "T8", "T9", "T21")
def test_posting_in_transactions_alternately_aborted(run: Run) -> None:
    seen = run("tx_send")
    assert seen["outcomes"] == ["committed", "aborted"] * 2
    assert seen["accepted"] == [True] * 12
    assert seen["left"] == [f"{batch}/{number}" for batch in (0, 2) for number in range(3)]


@pytest.mark.rule("H2", "H3", "H4", "H6")
def test_posting_in_checkable_transactions_alternately_aborted(run: Run) -> None:
    seen = run("tx_send_checkable")
    assert seen["outcomes"] == ["committed", "aborted"] * 2
    assert seen["accepted"] == [True] * 12
    assert seen["left"] == [f"{batch}/{number}" for batch in (0, 2) for number in range(3)]


@pytest.mark.rule("T26", "T27", "T34")
def test_retiring_unsettled_released_after_an_abort(run: Run) -> None:
    """Proton releases what an aborted transaction leaves with it, so the count does not grow."""
    seen = run("tx_receive")
    assert seen["seen"] == [
        *(["m0", 0], ["m1", 0], "committed"),
        *(["m2", 0], ["m3", 0], "aborted"),
        *(["m2", 0], ["m3", 0], "committed"),
    ]
    assert seen["left"] == ["m4", "m5"]


@pytest.mark.rule("H20", "T26", "T27")
def test_retiring_in_checkable_transactions_alternately_aborted(run: Run) -> None:
    assert run("tx_receive_checkable")["seen"] == run("tx_receive")["seen"]


@pytest.mark.rule("T26", "T28")
def test_retiring_settled_takes_the_default_outcome_after_an_abort(run: Run) -> None:
    seen = run("tx_receive_settled")
    assert seen["seen"] == [
        *(["m0", 0], ["m1", 0], "committed"),
        *(["m2", 0], ["m3", 0], "aborted"),
        *(["m2", 1], ["m3", 1], "committed"),
    ]
    assert seen["left"] == ["m4", "m5"]


@pytest.mark.rule("T26")
def test_retiring_on_a_receiver_that_was_detached(run: Run) -> None:
    seen = run("tx_detached")
    assert seen == {"seen": [["m0", 0], "commit failed"], "left": ["m0"]}


@pytest.mark.rule("P11")
def test_blocking_client_accepts_releases_and_rejects(run: Run) -> None:
    seen = run("blocking")
    # Proton writes the new credit before the outcome, so m2 may come before m1 comes again
    assert sorted(seen["seen"]) == [["m0", 0, 0], ["m1", 0, 1], ["m1", 0, 1], ["m2", 0, 2], ["m3", 0, 3]]
    assert seen["left"] == []


@pytest.mark.rule("P8")
def test_browsing_with_a_copy(run: Run) -> None:
    seen = run("browse")
    assert seen["seen"] == seen["left"] == ["m0", "m1", "m2"]


@pytest.mark.rule("P8", "P9")
def test_dynamic_address_goes_with_its_link(run: Run) -> None:
    seen = run("dynamic")
    assert seen["received"] == "hello"
    assert seen["after"] == "amqp:resource-deleted"


@pytest.mark.rule("T2")
def test_open_frame_without_a_sasl_layer(run: Run) -> None:
    seen = run("without_sasl")
    assert {"product", "version", "store-id"} <= seen["properties"].keys()
    assert {
        *("ANONYMOUS-RELAY", "amqp:local-transactions"),
        *("amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"),
    } <= set(seen["offered"])
    assert seen["left"] == ["hello"]


@pytest.mark.rule("T31")
def test_posts_and_retirements_as_one(run: Run) -> None:
    assert run("tx_move") == {
        "seen": [["m0", 0], ["m1", 0], "committed", ["m2", 0], ["m3", 0], "aborted"],
        "from": ["m2", "m3"],
        "to": ["moved m0", "moved m1"],
    }


@pytest.mark.rule("T12", "T20")
def test_two_transactions_at_once(run: Run) -> None:
    assert run("tx_two") == {"outcomes": ["aborted", "committed"], "left": ["a0", "a1", "a2"]}


@pytest.mark.rule("P6")
def test_settled_sends_and_settled_receipts(run: Run) -> None:
    assert run("settled") == {"received": ["m0", "m1", "m2"], "left": []}


@pytest.mark.rule("P5")
def test_drain_uses_up_or_returns_all_credit(run: Run) -> None:
    assert run("drain") == {"empty": 0, "received": ["m0", "m1"], "left": []}


@pytest.mark.rule("P2")
def test_three_megabytes_in_small_frames(run: Run) -> None:
    assert run("large") == {"equal": True}


@pytest.mark.rule("P9")
def test_anonymous_relay(run: Run) -> None:
    assert run("relay") == {"nowhere": "rejected", "a": ["to a"], "b": ["to b"]}


@pytest.mark.rule("P11", "D4")
def test_rejected_goes_to_the_dead_letters(run: Run) -> None:
    assert run("dead_letters") == {"letters": ["bad"], "left": []}


@pytest.mark.rule("P12")
def test_an_expired_message_is_not_delivered(run: Run) -> None:
    assert run("expiration") == {"left": ["lasting"]}


@pytest.mark.rule("D1")
def test_topics_and_a_shared_subscription(run: Run) -> None:
    assert run("topics") == {"alone": [["m0", "m1"]] * 2, "shared": ["m0", "m1"]}


@pytest.mark.rule("D1")
def test_a_lasting_subscription(run: Run) -> None:
    assert run("lasting") == {"first": ["first"], "away": ["away"], "closed": ["end"]}


@pytest.mark.rule("D1")
def test_consumer_groups_of_a_queue(run: Run) -> None:
    assert run("groups") == {name: ["m0", "m1"] for name in ("billing", "shipping", "default")}


@pytest.mark.rule("P15")
def test_one_connection_for_a_container(run: Run) -> None:
    assert run("sole") == {"second": "invalid-field"}
