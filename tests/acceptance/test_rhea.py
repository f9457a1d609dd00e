"""rhea, a client in JavaScript, unchanged but for the transactions it lacks (``rhea/transactions.js``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.clients import Run, run_case
from tests.fix_service import Service


@pytest.fixture
def run(rhea_project: Path, service: Service) -> Run:
    # rhea warns of what it does not expect
    return lambda case: run_case("node", "driver.js", case, str(service.port), cwd=rhea_project, silent=True)


ACCEPTED = ["accepted", None]


@pytest.mark.rule("T1", "T7", "T8", "T20", "T21")
def test_posts_are_hidden_until_the_commit(run: Run) -> None:
    seen = run("commit")
    assert seen["capabilities"] == ["amqp:local-transactions", "amqp:multi-ssns-per-txn", "amqp:multi-txns-per-ssn"]
    assert seen["txn_id_octets"] == 16
    assert seen["answers"] == [["transactional_state", "accepted", True]] * 3
    assert seen["before"] == ["before commit"]
    assert seen["discharged"] == ACCEPTED
    assert seen["after"] == ["m0", "m1", "m2"]


@pytest.mark.rule("T4", "T9", "P6")
def test_rollback_and_a_discharge_that_leaves_out_fail(run: Run) -> None:
    seen = run("rollback")
    assert seen["rolled_back"] == seen["committed"] == ACCEPTED
    assert seen["left"] == ["settled", "unsettled"]


@pytest.mark.rule("H2", "H3", "H13", "H20")
def test_a_checkable_transaction_outlives_its_connection(run: Run) -> None:
    seen = run("checkable")
    assert seen == {
        "posted": ["transactional_state", "accepted"],
        "before": ["before commit"],
        "stranger": ["rejected", "amqp:transaction:unknown-id"],
        "back": ACCEPTED,
        "after": ["half"],
    }


@pytest.mark.rule("H20", "H13")
def test_what_a_checkable_transaction_has_retired_is_its_own_until_it_is_decided(run: Run) -> None:
    assert run("checkable_retirement") == {
        "committed": [[], ACCEPTED, [], ["out of committed"]],
        "rolled back": [[], ACCEPTED, ["rolled back 1", "rolled back 2"], []],
    }


@pytest.mark.rule("H2", "H8")
def test_a_checker_answers_for_producers_that_are_gone(run: Run) -> None:
    seen = run("check_back")
    assert seen["seen"] == [[f"{body} 1", True, 1, 2, True] for body in ("rejected", "released", "accepted")]
    assert seen["left"] == ["accepted 1", "accepted 2"]


@pytest.mark.rule("T26", "T27")
def test_retirement_rolled_back_stays_with_its_link(run: Run) -> None:
    seen = run("retirement")
    assert seen["rolled_back"] == seen["committed"] == ACCEPTED
    assert seen["next"] == "m4"
    assert seen["left"] == ["m3", "m4"]


@pytest.mark.rule("T26", "P11")
def test_every_outcome_waits_for_the_commit(run: Run) -> None:
    seen = run("outcomes_in_transaction")
    assert seen["before"] == ["before commit"]
    assert seen["discharged"] == ACCEPTED
    assert seen["back"] == [["modified", 1], ["released", 0]]


@pytest.mark.rule("T31")
def test_two_sessions_and_two_transactions_at_once(run: Run) -> None:
    seen = run("sessions")
    assert seen["rolled_back"] == seen["committed"] == ACCEPTED
    assert (seen["a"], seen["b"], seen["from"]) == (["first a"], ["first b"], [])


@pytest.mark.rule("T4", "T6", "T10", "T11", "T12", "T24")
def test_what_the_control_link_refuses(run: Run) -> None:
    seen = run("refusals")
    assert seen["text_body"] == seen["global_id"] == ["rejected", "amqp:not-implemented"]
    assert seen["unknown"] == seen["post_unknown"] == ["rejected", "amqp:transaction:unknown-id"]
    assert seen["commit"] == seen["commit_again"] == ACCEPTED
    assert seen["rollback_after_commit"] == ["rejected", "amqp:illegal-state"]
    assert seen["rollback"] == seen["rollback_again"] == ACCEPTED
    assert seen["commit_after_rollback"] == ["rejected", "amqp:transaction:rollback"]
    # asked for from another connection, it is decided
    assert seen["of_another_connection"] == seen["own_afterwards"] == ["rejected", "amqp:transaction:rollback"]
    assert seen["decided_asked_elsewhere"] == ACCEPTED
    assert seen["left"] == ["committed"]


@pytest.mark.rule("T5")
def test_settled_control_messages_detach_the_link(run: Run) -> None:
    seen = run("settled_control")
    assert seen["declare"] == seen["discharge"] == "amqp:illegal-state"
    assert seen["then"] == ACCEPTED
    assert seen["left"] == []


@pytest.mark.rule("T14")
def test_transaction_past_its_timeout(run: Run) -> None:
    seen = run("timeout")
    assert seen["discharged"] == ["rejected", "amqp:transaction:timeout"]
    assert "300" in seen["description"] or "0.3" in seen["description"]
    assert seen["connection_open"]
    assert seen["left"] == []


@pytest.mark.rule("T11", "T13")
def test_control_link_closed_rolls_back(run: Run) -> None:
    seen = run("control_link_closed")
    assert seen["asked"] == ["rejected", "amqp:transaction:rollback"]
    assert (seen["q"], seen["from"]) == ([], ["m"])


@pytest.mark.rule("P7", "P10")
def test_a_message_goes_through_unchanged(run: Run, service: Service) -> None:
    seen = run("send_and_receive")
    assert seen["answered"] == ["accepted", True]
    assert seen["received"] == seen["sent"]
    store, entry = seen["tag"].split(":")
    assert len(store) == 8
    assert entry
    assert len(seen["tag"]) <= 32
    assert seen["left"] == []


@pytest.mark.rule("P22")
def test_a_producer_that_comes_again_posts_once(run: Run) -> None:
    assert run("producer") == {"answers": ["accepted"] * 6, "left": ["m0", "m1", "m2", "m3"]}


@pytest.mark.rule("P6")
def test_settled_sends_and_settled_receipts(run: Run) -> None:
    seen = run("settled")
    assert seen["received"] == [f"m{i}" for i in range(5)]
    assert seen["settled"] == [True] * 5
    assert seen["left"] == []


@pytest.mark.rule("P5")
def test_drain_uses_up_or_returns_all_credit(run: Run) -> None:
    seen = run("drain")
    assert (seen["empty"], seen["credit_after_empty"]) == (0, 0)
    assert (seen["received"], seen["credit_after"]) == (["m0", "m1", "m2"], 0)
    assert seen["later"] == "later"


@pytest.mark.rule("P5")
def test_one_message_for_one_credit(run: Run) -> None:
    assert run("credit_by_one")["received"] == [[f"m{i}", 0] for i in range(20)]


@pytest.mark.rule("P11", "D6")
def test_outcomes_and_their_counts(run: Run) -> None:
    seen = run("outcomes")
    assert seen["released"] == [["released", 0]] * 4
    assert seen["behind"] == "behind"
    assert seen["failed"] == [[0, None], [1, 0], [2, 1]]
    assert (seen["here"], seen["there"]) == ("for anyone", "elsewhere")


@pytest.mark.rule("P11")
def test_different_outcomes_in_different_turns(run: Run) -> None:
    """In one turn the client writes the second as the first: docs/reference/clients.md, "What does not hold"."""
    assert run("outcomes_of_one_turn") == {"1": ["last"], "2": ["released", "last"]}


@pytest.mark.rule("P11")
def test_rejected_is_not_delivered_again(run: Run) -> None:
    seen = run("rejected")
    assert (seen["bad"], seen["good"], seen["left"]) == ("bad", "good", [])


@pytest.mark.rule("P11", "D4")
def test_rejected_goes_to_the_dead_letters(run: Run) -> None:
    seen = run("dead_letters")
    assert seen["body"] == "bad"
    assert seen["annotations"]["x-opt-original-address"] == "dead_letters.rhea.q"
    assert "cannot be read" in seen["annotations"]["x-opt-last-error"]


@pytest.mark.rule("P8", "P9")
def test_dynamic_source_lives_as_long_as_its_link(run: Run) -> None:
    seen = run("dynamic")
    assert seen["has_address"]
    assert seen["is_dynamic"]
    assert (seen["answered"], seen["received"]) == ("accepted", "hello")
    assert seen["sender_ended"] == "amqp:resource-deleted"
    assert seen["after"] == ["rejected", "amqp:not-found"]


@pytest.mark.rule("T2", "P9")
def test_anonymous_relay(run: Run) -> None:
    seen = run("relay")
    assert {"ANONYMOUS-RELAY", "amqp:local-transactions"} <= set(seen["offers"])
    assert seen["answers"] == ["accepted", "accepted"]
    assert seen["nowhere"] == "rejected"
    assert (seen["a"], seen["b"]) == (["to a"], ["to b"])


@pytest.mark.rule("P8")
def test_browsing_takes_nothing(run: Run) -> None:
    seen = run("browse")
    assert seen["mode"] == "copy"
    assert seen["first"] == seen["second"] == seen["left"] == ["m0", "m1", "m2", "m3"]


@pytest.mark.rule("P16")
def test_selecting(run: Run) -> None:
    assert run("select") == {
        "honoured": ["jms-selector"],
        "received": ["m3", "m5"],
        "left": ["m0", "m1", "m2", "m4"],
    }


@pytest.mark.rule("P2")
def test_a_megabyte_in_small_frames(run: Run) -> None:
    assert run("large") == {"answered": "accepted", "equal": True}


@pytest.mark.rule("T31")
def test_five_thousand_posts_in_one_transaction(run: Run) -> None:
    assert run("many_posts") == {"kinds": ["accepted"], "committed": ACCEPTED, "received": 5000, "in_order": True}


@pytest.mark.rule("D1")
def test_topics_and_a_shared_subscription(run: Run) -> None:
    assert run("topics") == {"alone": [["m0", "m1"]] * 2, "shared": ["m0", "m1"]}


@pytest.mark.rule("D1", "P8")
def test_a_lasting_subscription(run: Run) -> None:
    assert run("lasting") == {"answered": ["never", 1], "first": ["first"], "away": ["away"], "closed": ["end"]}


@pytest.mark.rule("D1")
def test_consumer_groups_of_a_queue(run: Run) -> None:
    assert run("groups") == {name: ["m0", "m1"] for name in ("billing", "shipping", "default")}


@pytest.mark.rule("D1")
def test_broadcast(run: Run) -> None:
    assert run("broadcast") == {name: ["m0", "m1"] for name in ("first", "second", "queue")}


@pytest.mark.rule("P12")
def test_an_expired_message_is_not_delivered(run: Run) -> None:
    assert run("expiration") == {"left": ["lasting"]}


@pytest.mark.rule("P15")
def test_one_connection_for_a_container(run: Run) -> None:
    assert run("sole") == {"offered": True, "refused": "amqp:invalid-field", "closed": "amqp:resource-locked"}
