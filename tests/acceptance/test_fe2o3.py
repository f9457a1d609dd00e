"""fe2o3-amqp, a client in Rust, unchanged, with its transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.clients import Run, run_case
from tests.fix_service import Service

pytestmark = pytest.mark.night


@pytest.fixture
def run(fe2o3_program: Path, service: Service) -> Run:
    return lambda case: run_case(fe2o3_program, case, service.url)


@pytest.mark.rule("P2", "P6")
def test_send_and_receive(run: Run) -> None:
    assert run("send-and-receive") == {"received": ["m0", "m1"], "large": 1_000_000, "left": []}


@pytest.mark.rule("P11", "D6")
def test_outcomes_and_their_counts(run: Run) -> None:
    seen = run("outcomes")
    assert sorted(seen["seen"]) == [["modified", 0], ["modified", 1], ["rejected", 0], ["released", 0], ["released", 0]]
    assert seen["left"] == []


@pytest.mark.rule("T1", "T7", "T8", "T9", "T20", "T21")
def test_two_transactions_at_once_one_commits(run: Run) -> None:
    seen = run("commit-and-rollback")
    assert seen["before"] == ["before the commit"]
    assert seen["after"] == ["committed0", "committed1", "committed2", "end"]


@pytest.mark.rule("T26", "T28", "D6")
def test_retirements_rolled_back_and_committed(run: Run) -> None:
    """The client settles with its disposition, so that a rollback fails the deliveries."""
    seen = run("retire")
    first, second = seen["seen"]
    assert first == [["m0", 0], ["m1", 0], ["m2", 0]]
    assert second == [["m0", 1], ["m1", 1], ["m2", 1]]
    assert seen["left"] == ["m2"]  # released in the transaction that committed


@pytest.mark.rule("T33")
def test_messages_acquired_in_a_transaction(run: Run) -> None:
    """What has no outcome returns with the rollback as it was, and stays with the client after the commit."""
    assert run("acquire") == {"seen": [[["m0", 0], ["m1", 0]], [["m0", 1], ["m1", 0]]], "left": ["m1", "m2"]}


@pytest.mark.day
@pytest.mark.rule("T31", "T3")
def test_posts_and_retirements_as_one(run: Run) -> None:
    assert run("transfer") == {"from": [], "to": ["moved m0", "moved m1"]}


@pytest.mark.rule("T9", "T13")
def test_a_transaction_out_of_scope_is_rolled_back(run: Run) -> None:
    assert run("dropped")["left"] == ["committed"]


@pytest.mark.rule("P6")
def test_settled_sends(run: Run) -> None:
    assert run("settled") == {"left": ["m0", "m1", "m2"]}


@pytest.mark.rule("P8")
def test_browsing_takes_nothing(run: Run) -> None:
    assert run("browse") == {"browsed": ["m0", "m1", "m2"], "left": ["m0", "m1", "m2"]}


@pytest.mark.rule("P8", "P9")
def test_a_dynamic_address_lives_as_long_as_its_link(run: Run) -> None:
    assert run("dynamic") == {"received": ["reply"], "after": "refused"}


@pytest.mark.rule("P9")
def test_anonymous_relay(run: Run) -> None:
    assert run("relay") == {"nowhere": True, "a": ["to a"], "b": ["to b"]}


@pytest.mark.rule("D1")
def test_consumer_groups_of_a_queue(run: Run) -> None:
    assert run("groups") == {name: ["m0", "m1"] for name in ("billing", "shipping", "default")}


@pytest.mark.rule("P12")
def test_an_expired_message_is_not_delivered(run: Run) -> None:
    assert run("expiration") == {"left": ["lasting"]}


@pytest.mark.rule("P11", "D4")
def test_rejected_goes_to_the_dead_letters(run: Run) -> None:
    assert run("dead-letters") == {"letters": ["bad"], "left": []}


@pytest.mark.rule("D1")
def test_lasting_and_shared_subscriptions(run: Run) -> None:
    assert run("subscription") == {"lasting": [["first"], ["away"]], "shared": ["m0"]}


@pytest.mark.rule("P19")
def test_a_sender_is_detached_and_resumed(run: Run) -> None:
    """Its posts were answered before its detach was, so that it has nothing to send again (part 2, section 2.6.13)."""
    assert run("resume")["left"] == [*(f"m{number}" for number in range(20)), "after"]


@pytest.mark.rule("P21")
def test_a_receiver_tells_later_what_it_has_accepted(run: Run) -> None:
    """It was detached before it could: it tells by the map of its next attach (part 2, section 2.7.3)."""
    assert run("recover") == {"seen": ["m0", "m1"], "left": []}


@pytest.mark.rule("P22")
def test_a_producer_that_comes_again_posts_once(run: Run) -> None:
    """The tags of this library count from 0 on each link: the first two messages were posted before."""
    assert run("producer")["left"] == ["m0", "m1", "m2", "m3"]
