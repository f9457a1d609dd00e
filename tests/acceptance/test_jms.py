"""Apache Qpid JMS, unchanged, against the service: what a Java application sees."""

from __future__ import annotations

import pytest

from tests.fix_jms import Jms
from tests.fix_service import Service, running_service


@pytest.mark.rule("P9", "T31")
def test_producer_without_an_address(service: Service, jms: Jms) -> None:
    seen = jms("anonymous-producer", service).line()
    assert seen == {name: [f"plain {name}", f"committed {name}"] for name in "ab"}


@pytest.mark.rule("P8", "T20")
def test_browser_sees_what_is_committed_and_takes_nothing(service: Service, jms: Jms) -> None:
    seen = jms("browser", service).line()
    assert seen["before_commit"] == []
    assert seen["after_commit"] == seen["again"] == seen["taken"] == ["m0", "m1", "m2"]


@pytest.mark.rule("P6")
def test_automatic_and_lazy_acknowledgement(service: Service, jms: Jms) -> None:
    seen = jms("acknowledgement", service).line()
    for mode in ("auto", "dups_ok"):
        assert seen[mode] == [f"m{i}" for i in range(7)]
        assert seen[f"{mode}_left"] == ["m7", "m8", "m9"]


@pytest.mark.rule("P11", "D6")
def test_client_acknowledge_and_recover(service: Service, jms: Jms) -> None:
    seen = jms("client-acknowledge", service).line()
    assert (seen["after_recover"], seen["redelivered"], seen["delivery_count"]) == ("m2", True, 2)
    assert seen["left"] == ["m3", "m4", "m5"]


@pytest.mark.rule("P11", "D6")
def test_recover_gives_back_what_was_received_in_order(service: Service, jms: Jms) -> None:
    seen = jms("recover", service).line()
    assert seen["received"] == [f"m{i}" for i in range(6)]
    assert seen["delivery_counts"] == [3] * 3 + [1] * 3
    assert seen["left"] == []


def test_asynchronous_sends_are_answered_in_order(service: Service, jms: Jms) -> None:
    seen = jms("asynchronous-sends", service).line()
    assert seen == {"completed_in_order": True, "received_in_order": True}


def test_competing_consumers_share_without_doubles(service: Service, jms: Jms) -> None:
    seen = jms("competing-consumers", service).line()
    assert seen == {"received": 200, "distinct": 200, "left": []}


@pytest.mark.rule("P8", "P9")
def test_request_and_reply_over_a_temporary_queue(service: Service, jms: Jms) -> None:
    seen = jms("temporary-queue", service).line()
    assert seen["reply"] == "answer to question"
    assert seen["correlation_id"] == "42"
    assert seen["address"] not in service.cli("address", "list", "--json")


@pytest.mark.rule("D1")
def test_a_topic_gives_every_subscriber_what_comes_after_it(service: Service, jms: Jms) -> None:
    seen = jms("topic", service).line()
    assert seen["received"] == [["m0", "m1", "m2"]] * 3
    assert seen["later"] == [["later0"]] * 2


@pytest.mark.rule("D1")
def test_a_durable_subscription_lasts_until_it_is_unsubscribed(service: Service, jms: Jms) -> None:
    seen = jms("durable-subscription", service).line()
    assert seen["first"] == ["first0", "first1"]
    assert seen["while_closed"] == ["closed0", "closed1"]
    assert seen["while_away"] == ["away0", "away1"]
    assert seen["after_unsubscribe"] == ["end0"]
    assert seen["stranger"] == ["dropped0", "end0"]
    assert seen["unsubscribed_twice"] == "InvalidDestinationException"


@pytest.mark.rule("D1")
def test_shared_consumers_share_one_subscription(service: Service, jms: Jms) -> None:
    seen = jms("shared-consumers", service).line()
    for who in ("shop", "anyone"):
        assert seen[f"{who}_alone"] == seen[who] == ["m0", "m1"], who
        assert seen[f"{who}_rest"] == ["rest0", "rest1"], who
        assert seen[f"{who}_again"] == ["end0"], who


@pytest.mark.rule("D1")
def test_shared_durable_consumers_share_what_came_while_they_were_away(service: Service, jms: Jms) -> None:
    seen = jms("shared-durable-consumers", service).line()
    assert seen["first"] == ["first0", "first1"]
    assert seen["away"] == ["away0", "away1"]
    assert seen["after_unsubscribe"] == ["end0"]


@pytest.mark.rule("D1", "P8", "P9")
def test_a_temporary_topic_has_many_listeners(service: Service, jms: Jms) -> None:
    seen = jms("temporary-topic", service).line()
    assert seen["first"] == seen["second"] == ["answer0", "answer1"]
    assert seen["address"] not in service.cli("address", "list", "--json")


@pytest.mark.rule("D1", "T20", "T28")
def test_consumer_groups_of_a_queue(service: Service, jms: Jms) -> None:
    seen = jms("consumer-groups", service).line()
    assert seen["rolled_back"] == seen["billing"] == ["m0", "m1"]
    assert seen["shipping"] == ["m0", "m1"]
    assert seen["later"] == ["later0"]
    assert seen["default_group"] == ["m0", "m1", "later0"]


@pytest.mark.rule("D1", "T20")
def test_broadcast(service: Service, jms: Jms) -> None:
    assert jms("broadcast", service).line() == {name: ["m0", "m1"] for name in ("first", "second", "queue")}


@pytest.mark.rule("P17", "D7", "P12")
def test_priorities_and_delivery_delay(service: Service, jms: Jms) -> None:
    seen = jms("later", service).line()
    assert seen == {
        "at_once": ["p9", "p6", "p4", "p4", "p0"],
        "browsed": [],
        "later": "later",
        "in_time": True,
        "delivery_time_kept": True,
        "left": [],
    }


@pytest.mark.rule("P18")
def test_message_groups(service: Service, jms: Jms) -> None:
    service.cli("address", "add", "groups.q", "--kind", "fifo")
    seen = jms("groups", service).line()
    assert seen["places"] == ["m0 even 1", "m1 odd 1", "m2 even 2", "m3 odd 2", "m4 even 3", "m5 odd 3"]
    assert seen["rolled_back"] == ["m0", "m2", "m4"]
    assert seen["left"] == []


@pytest.mark.rule("P12")
def test_expired_messages_are_not_delivered(service: Service, jms: Jms) -> None:
    assert jms("time-to-live", service).line()["received"] == ["stays", "long"]


@pytest.mark.rule("P5")
def test_pulling_without_prefetch(service: Service, jms: Jms) -> None:
    seen = jms("no-prefetch", service).line()
    assert seen["empty_no_wait"]
    assert seen["empty_timeout"]
    assert seen["empty_again"]
    assert seen["received"] == ["m0", "m1"]
    assert seen["other"] == "m2"


@pytest.mark.rule("P10")
def test_every_kind_of_message_comes_back_equal(service: Service, jms: Jms) -> None:
    seen = jms("bodies", service).line()
    assert len(seen["sent"]) == 7
    for sent, received in zip(seen["sent"], seen["received"], strict=True):
        assert received == sent


@pytest.mark.rule("P2")
def test_five_megabytes_with_and_without_a_transaction(service: Service, jms: Jms) -> None:
    seen = jms("large", service).line()
    assert seen["received"] == [seen["sent"]] * 2


@pytest.mark.rule("P9", "T23")
def test_addresses_that_are_not_allowed(jms: Jms) -> None:
    with running_service({"addresses.create": "never"}) as strict:
        strict.cli("address", "add", "known")
        seen = jms("not-allowed", strict).line()
        for attempt in ("producer", "consumer", "anonymous"):
            error, message = seen[attempt]
            assert error == "InvalidDestinationException", attempt
            assert "not-allowed.nowhere" in message
        # the refused post made the transaction rollback-only: the commit says so, and nothing of it arrives
        assert seen["in_transaction"], "the commit succeeded without a refused message"
        assert seen["known"] == ["arrives"]


@pytest.mark.rule("P15")
def test_a_client_id_has_one_connection(service: Service, jms: Jms) -> None:
    assert jms("client-id-twice", service).line() == {
        "second": "InvalidClientIDException",
        "first": "m0",
        "after_close": "m0",
    }


@pytest.mark.rule("P16")
def test_selectors_choose_and_leave_the_rest(service: Service, jms: Jms) -> None:
    seen = jms("selectors", service).line()
    assert seen["JMSPriority > 7 AND large"] == ["m8", "m9"]
    assert seen["kind LIKE 'e%n' AND n BETWEEN 2 AND 4"] == ["m2", "m4"]
    assert seen["JMSType IN ('type 1', 'type 3') AND nothing IS NULL"] == ["m1", "m3"]
    assert seen["NOT large AND half = 2.5 OR half = 3"] == ["m6"]
    assert seen["left"] == ["m0", "m5", "m7"]


@pytest.mark.rule("P16")
def test_each_finds_its_reply_in_a_shared_queue(service: Service, jms: Jms) -> None:
    seen = jms("request-reply", service).line()
    assert seen["answers"] == [f"answer to question {i}" for i in range(20)]


@pytest.mark.rule("P8", "P16")
def test_browser_with_a_selector(service: Service, jms: Jms) -> None:
    assert jms("selecting-browser", service).line() == {"browsed": ["m5", "m7", "m9"], "left": 10}


@pytest.mark.rule("P16")
def test_subscription_with_a_selector_and_one_without_its_own(service: Service, jms: Jms) -> None:
    seen = jms("subscription-selectors", service).line()
    assert seen == {"odd": ["m1", "m3", "m5", "m7", "m9"], "not_own": "of another"}


@pytest.mark.rule("P16")
def test_bad_selector_says_where(service: Service, jms: Jms) -> None:
    error = jms("bad-selector", service).line()["error"]
    assert "line 1, column 10" in error
    assert "amqp:invalid-field" in error


@pytest.mark.rule("P11", "D4")
def test_rejected_goes_to_the_dead_letters(service: Service, jms: Jms) -> None:
    assert jms("dead-letters", service).line() == {"letter": "bad0", "left": []}


@pytest.mark.rule("D5", "T28")
def test_what_a_client_has_prefetched_it_has_not_failed_with(service: Service, jms: Jms) -> None:
    """Nothing that lay behind a message that it acknowledged has failed, though it may have been seen; one that it does
    not commit costs a failure. That may come back to the same link before this closes, which does not count again.
    """
    seen = jms("many-closes", service).line()
    assert seen["received"] == [f"m{i}" for i in range(10)]
    assert seen["in_transactions"] == [f"m{i}" for i in range(10, 20)]
    for counts in (seen["counts"], seen["counts_in_transactions"]):
        assert counts[0] >= 1
        assert counts[-1] <= 20
    assert len(seen["uncommitted"]) == 4
    assert seen["uncommitted"] == sorted(set(seen["uncommitted"])), "each time it may have been seen once more"
    assert seen["left"] == [f"m{i}" for i in range(20, 25)]


@pytest.mark.rule("P10", "P12", "D4")
def test_dead_letters_that_have_expired(service: Service, jms: Jms) -> None:
    """A replay changes nothing of the message, and so not when it has expired: docs/reference/clients.md."""
    service.cli("address", "add", "expired-letters.q", "--on-expiry", "dead-letter")
    driver = jms("expired-letters", service)
    assert driver.line() == {"step": "replay"}
    assert service.cli("dead-letters", "replay", "expired-letters.q", "--all") == "replayed 1, left 0\n"
    driver.go_on()
    assert driver.line() == {"delivered": False, "letter": "late", "dropped": True, "replayed": "late"}
