"""Apache Qpid JMS, unchanged, against the service: what a Java application sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fix_service import PATIENCE, Service, running_service
from tests.workers import pids_of_workers

Seen = dict[str, Any]


class Driver:
    """One run of the Java program."""

    def __init__(self, classpath: str, case: str, url: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [
                *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m"),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                *("-cp", classpath, "acceptance.Driver", case, url),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def line(self) -> Seen:
        """The next line: a step at which it waits, or what it saw. Fails with its errors if it ends instead."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            status = self._process.wait(timeout=PATIENCE)
            self._errors.seek(0)
            pytest.fail(f"the client ended with {status}:\n{self._errors.read()}")
        line = json.loads(text)
        assert isinstance(line, dict)
        return line

    def go_on(self) -> None:
        """Let it leave the step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


@pytest.fixture
def start(jms_classpath: str) -> Iterator[Callable[[str, Service], Driver]]:
    """Start a case; it is gone when the test ends, however that is."""
    drivers: list[Driver] = []

    def start(case: str, service: Service) -> Driver:
        driver = Driver(jms_classpath, case, service.url)
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        driver.end()


Start = Callable[[str, Service], Driver]


@pytest.mark.rule("T1", "T7", "T8", "T9", "T20")
def test_commit_shows_and_rollback_hides(service: Service, start: Start) -> None:
    seen = start("commit-and-rollback", service).line()
    assert seen["before_commit"] == ["before commit"]
    assert seen["after_commit"] == ["committed0", "committed1", "committed2"]
    assert seen["after_rollback"] == ["next0", "end"]


@pytest.mark.rule("T28", "T32", "P11", "D6")
def test_rollback_keeps_order_and_counts_only_what_was_enlisted(service: Service, start: Start) -> None:
    seen = start("rollback-with-prefetch", service).line()
    assert seen["first"] == ["m0", "m1", "m2", "m3"]
    assert seen["second"] == [f"m{i}" for i in range(10)]
    assert seen["delivery_counts"] == [2] * 4 + [1] * 6
    assert seen["redelivered"] == [True] * 4 + [False] * 6
    assert seen["left"] == []


@pytest.mark.rule("T14")
def test_a_session_that_was_idle_for_longer_than_the_timeout_works(start: Start) -> None:
    """It has declared its next transaction with the last commit."""
    with running_service({"transaction.timeout_seconds": "1"}) as service:
        assert start("idle-between-commits", service).line() == {"received": ["before0", "after0", "after1"]}


@pytest.mark.rule("T26", "T28", "T13")
def test_consuming_in_a_transaction(service: Service, start: Start) -> None:
    seen = start("consume", service).line()
    assert seen["committed"] == ["m0", "m1", "m2"]
    assert seen["rolled_back"] == ["m3", "m4"]
    assert seen["abandoned"] == ["m3", "m4"]
    assert seen["left"] == ["m3", "m4", "m5"]


@pytest.mark.rule("T31")
def test_transfer_is_one(service: Service, start: Start) -> None:
    seen = start("transfer", service).line()
    assert seen["from"] == ["m2", "m3"]
    assert seen["to"] == ["moved m0", "moved m1"]


@pytest.mark.rule("T31")
def test_many_addresses_in_one_transaction(service: Service, start: Start) -> None:
    seen = start("many-addresses", service).line()
    assert seen == {name: [f"committed {name}"] for name in "abcde"}


@pytest.mark.rule("P9", "T31")
def test_producer_without_an_address(service: Service, start: Start) -> None:
    seen = start("anonymous-producer", service).line()
    assert seen == {name: [f"plain {name}", f"committed {name}"] for name in "ab"}


@pytest.mark.rule("P8", "T20")
def test_browser_sees_what_is_committed_and_takes_nothing(service: Service, start: Start) -> None:
    seen = start("browser", service).line()
    assert seen["before_commit"] == []
    assert seen["after_commit"] == seen["again"] == seen["taken"] == ["m0", "m1", "m2"]


def test_listener_in_a_transacted_session(service: Service, start: Start) -> None:
    seen = start("listener", service).line()
    assert seen["heard"] == [
        *("committed m0", "committed m1", "rolled back m2"),
        *(f"committed m{i}" for i in range(2, 6)),
    ]
    assert seen["left"] == []


@pytest.mark.rule("T27", "T32", "D6")
def test_listeners_of_many_sessions_roll_back_and_commit(service: Service, start: Start) -> None:
    seen = start("listeners", service).line()
    assert seen["rolled_back"] == 20
    assert sorted(seen["committed"], key=int) == [str(i) for i in range(100)]
    assert seen["left"] == []


@pytest.mark.rule("T13", "D5")
def test_connection_closed_before_the_commit(service: Service, start: Start) -> None:
    seen = start("connection-lost", service).line()
    assert seen["received"] == ["m0", "m1"]
    assert seen["from"] == ["m0", "m1", "m2"]
    assert seen["to"] == []


@pytest.mark.rule("T3", "T31")
def test_ten_thousand_messages_in_transactions_of_a_hundred(service: Service, start: Start) -> None:
    seen = start("ten-thousand", service).line()
    assert seen == {"received": 10_000, "in_order": True, "complete": True, "left": []}


@pytest.mark.rule("T26", "T28", "T31", "D6")
def test_five_thousand_messages_in_one_transaction(service: Service, start: Start) -> None:
    seen = start("large-transaction", service).line()
    assert seen == {"rolled_back": True, "committed": True, "redelivered": 5000, "left": []}


@pytest.mark.rule("T13", "T31", "P2")
def test_two_hundred_sessions_on_one_connection(service: Service, start: Start) -> None:
    assert start("many-sessions", service).line() == {"moved": True, "left": True, "count": 100}


@pytest.mark.rule("P6")
def test_automatic_and_lazy_acknowledgement(service: Service, start: Start) -> None:
    seen = start("acknowledgement", service).line()
    for mode in ("auto", "dups_ok"):
        assert seen[mode] == [f"m{i}" for i in range(7)]
        assert seen[f"{mode}_left"] == ["m7", "m8", "m9"]


@pytest.mark.rule("P11", "D6")
def test_client_acknowledge_and_recover(service: Service, start: Start) -> None:
    seen = start("client-acknowledge", service).line()
    assert (seen["after_recover"], seen["redelivered"], seen["delivery_count"]) == ("m2", True, 2)
    assert seen["left"] == ["m3", "m4", "m5"]


@pytest.mark.rule("P11", "D6")
def test_recover_gives_back_what_was_received_in_order(service: Service, start: Start) -> None:
    seen = start("recover", service).line()
    assert seen["received"] == [f"m{i}" for i in range(6)]
    assert seen["delivery_counts"] == [3] * 3 + [1] * 3
    assert seen["left"] == []


def test_asynchronous_sends_are_answered_in_order(service: Service, start: Start) -> None:
    seen = start("asynchronous-sends", service).line()
    assert seen == {"completed_in_order": True, "received_in_order": True}


def test_competing_consumers_share_without_doubles(service: Service, start: Start) -> None:
    seen = start("competing-consumers", service).line()
    assert seen == {"received": 200, "distinct": 200, "left": []}


@pytest.mark.rule("P8", "P9")
def test_request_and_reply_over_a_temporary_queue(service: Service, start: Start) -> None:
    seen = start("temporary-queue", service).line()
    assert seen["reply"] == "answer to question"
    assert seen["correlation_id"] == "42"
    assert seen["address"] not in service.cli("address", "list", "--json")


@pytest.mark.rule("D1")
def test_a_topic_gives_every_subscriber_what_comes_after_it(service: Service, start: Start) -> None:
    seen = start("topic", service).line()
    assert seen["received"] == [["m0", "m1", "m2"]] * 3
    assert seen["later"] == [["later0"]] * 2


@pytest.mark.rule("D1", "T20")
def test_a_topic_shows_what_is_committed(service: Service, start: Start) -> None:
    seen = start("topic-in-a-transaction", service).line()
    assert seen["received"] == [["before the commit0", "committed0", "committed1", "end0"]] * 2


@pytest.mark.rule("D1")
def test_a_durable_subscription_lasts_until_it_is_unsubscribed(service: Service, start: Start) -> None:
    seen = start("durable-subscription", service).line()
    assert seen["first"] == ["first0", "first1"]
    assert seen["while_closed"] == ["closed0", "closed1"]
    assert seen["while_away"] == ["away0", "away1"]
    assert seen["after_unsubscribe"] == ["end0"]
    assert seen["stranger"] == ["dropped0", "end0"]
    assert seen["unsubscribed_twice"] == "InvalidDestinationException"


@pytest.mark.rule("D1", "T13", "T26", "T28")
def test_a_durable_subscription_in_transactions(service: Service, start: Start) -> None:
    seen = start("durable-in-a-transaction", service).line()
    assert seen["committed"] == ["m0", "m1"]
    assert seen["rolled_back"] == ["m2"]
    assert seen["abandoned"] == ["m2", "m3"]
    assert seen["left"] == ["m2", "m3", "end0"]


@pytest.mark.rule("D1")
def test_shared_consumers_share_one_subscription(service: Service, start: Start) -> None:
    seen = start("shared-consumers", service).line()
    for who in ("shop", "anyone"):
        assert seen[f"{who}_alone"] == seen[who] == ["m0", "m1"], who
        assert seen[f"{who}_rest"] == ["rest0", "rest1"], who
        assert seen[f"{who}_again"] == ["end0"], who


@pytest.mark.rule("D1")
def test_shared_durable_consumers_share_what_came_while_they_were_away(service: Service, start: Start) -> None:
    seen = start("shared-durable-consumers", service).line()
    assert seen["first"] == ["first0", "first1"]
    assert seen["away"] == ["away0", "away1"]
    assert seen["after_unsubscribe"] == ["end0"]


@pytest.mark.rule("D1", "P8", "P9")
def test_a_temporary_topic_has_many_listeners(service: Service, start: Start) -> None:
    seen = start("temporary-topic", service).line()
    assert seen["first"] == seen["second"] == ["answer0", "answer1"]
    assert seen["address"] not in service.cli("address", "list", "--json")


@pytest.mark.rule("D1", "T20", "T28")
def test_consumer_groups_of_a_queue(service: Service, start: Start) -> None:
    seen = start("consumer-groups", service).line()
    assert seen["rolled_back"] == seen["billing"] == ["m0", "m1"]
    assert seen["shipping"] == ["m0", "m1"]
    assert seen["later"] == ["later0"]
    assert seen["default_group"] == ["m0", "m1", "later0"]


@pytest.mark.rule("P17", "D7", "P12")
def test_priorities_and_delivery_delay(service: Service, start: Start) -> None:
    seen = start("later", service).line()
    assert seen == {
        "at_once": ["p9", "p6", "p4", "p4", "p0"],
        "browsed": [],
        "later": "later",
        "in_time": True,
        "delivery_time_kept": True,
        "left": [],
    }


@pytest.mark.rule("P18")
def test_message_groups(service: Service, start: Start) -> None:
    service.cli("address", "add", "groups.q", "--kind", "fifo")
    seen = start("groups", service).line()
    assert seen["places"] == ["m0 even 1", "m1 odd 1", "m2 even 2", "m3 odd 2", "m4 even 3", "m5 odd 3"]
    assert seen["rolled_back"] == ["m0", "m2", "m4"]
    assert seen["left"] == []


@pytest.mark.rule("P12")
def test_expired_messages_are_not_delivered(service: Service, start: Start) -> None:
    assert start("time-to-live", service).line()["received"] == ["stays", "long"]


@pytest.mark.rule("P5")
def test_pulling_without_prefetch(service: Service, start: Start) -> None:
    seen = start("no-prefetch", service).line()
    assert seen["empty_no_wait"]
    assert seen["empty_timeout"]
    assert seen["empty_again"]
    assert seen["received"] == ["m0", "m1"]
    assert seen["other"] == "m2"


@pytest.mark.rule("P10")
def test_every_kind_of_message_comes_back_equal(service: Service, start: Start) -> None:
    seen = start("bodies", service).line()
    assert len(seen["sent"]) == 7
    for sent, received in zip(seen["sent"], seen["received"], strict=True):
        assert received == sent


@pytest.mark.rule("P2")
def test_five_megabytes_with_and_without_a_transaction(service: Service, start: Start) -> None:
    seen = start("large", service).line()
    assert seen["received"] == [seen["sent"]] * 2


@pytest.mark.rule("P9", "T23")
def test_addresses_that_are_not_allowed(start: Start) -> None:
    with running_service({"addresses.create": "never"}) as strict:
        strict.cli("address", "add", "known")
        seen = start("not-allowed", strict).line()
        for attempt in ("producer", "consumer", "anonymous"):
            error, message = seen[attempt]
            assert error == "InvalidDestinationException", attempt
            assert "not-allowed.nowhere" in message
        # the refused post made the transaction rollback-only: the commit says so, and nothing of it arrives
        assert seen["in_transaction"], "the commit succeeded without a refused message"
        assert seen["known"] == ["arrives"]


@pytest.mark.rule("T8", "D6")
def test_client_reconnects_after_a_kill(service: Service, start: Start) -> None:
    driver = start("reconnect", service)
    assert driver.line() == {"step": "kill and restart"}
    service.kill()
    service.restart()
    driver.go_on()
    seen = driver.line()
    assert seen["received"] == [*(f"before{i}" for i in range(50)), *(f"after{i}" for i in range(50))]
    assert seen["left"] == []


@pytest.mark.rule("P15")
def test_a_client_id_has_one_connection(service: Service, start: Start) -> None:
    assert start("client-id-twice", service).line() == {
        "second": "InvalidClientIDException",
        "first": "m0",
        "after_close": "m0",
    }


@pytest.mark.rule("P15", "T8")
def test_a_client_id_comes_back_after_its_worker_is_killed(start: Start) -> None:
    with running_service({"workers": "2"}) as two:
        driver = start("client-id-over-kills", two)
        for number in range(2):  # one of them has the connection, and then perhaps the other
            assert driver.line() == {"step": f"kill {number}"}
            seen = len(two.log_lines())
            os.kill(pids_of_workers(two)[number], signal.SIGKILL)
            pids_of_workers(two, seen, 1)
            driver.go_on()
        assert driver.line() == {
            "second": "InvalidClientIDException",
            "received": ["round0/0", "round0/1", "round1/0", "round1/1"],
        }


@pytest.mark.rule("P16")
def test_selectors_choose_and_leave_the_rest(service: Service, start: Start) -> None:
    seen = start("selectors", service).line()
    assert seen["JMSPriority > 7 AND large"] == ["m8", "m9"]
    assert seen["kind LIKE 'e%n' AND n BETWEEN 2 AND 4"] == ["m2", "m4"]
    assert seen["JMSType IN ('type 1', 'type 3') AND nothing IS NULL"] == ["m1", "m3"]
    assert seen["NOT large AND half = 2.5 OR half = 3"] == ["m6"]
    assert seen["left"] == ["m0", "m5", "m7"]


@pytest.mark.rule("P16")
def test_each_finds_its_reply_in_a_shared_queue(service: Service, start: Start) -> None:
    seen = start("request-reply", service).line()
    assert seen["answers"] == [f"answer to question {i}" for i in range(20)]


@pytest.mark.rule("P8", "P16")
def test_browser_with_a_selector(service: Service, start: Start) -> None:
    assert start("selecting-browser", service).line() == {"browsed": ["m5", "m7", "m9"], "left": 10}


@pytest.mark.rule("P16")
def test_subscription_with_a_selector_and_one_without_its_own(service: Service, start: Start) -> None:
    seen = start("subscription-selectors", service).line()
    assert seen == {"odd": ["m1", "m3", "m5", "m7", "m9"], "not_own": "of another"}


@pytest.mark.rule("P16")
def test_bad_selector_says_where(service: Service, start: Start) -> None:
    error = start("bad-selector", service).line()["error"]
    assert "line 1, column 10" in error
    assert "amqp:invalid-field" in error


@pytest.mark.rule("T13")
def test_transaction_cut_by_a_kill_leaves_nothing(service: Service, start: Start) -> None:
    driver = start("transaction-over-a-kill", service)
    assert driver.line() == {"step": "kill and restart"}
    service.kill()
    service.restart()
    driver.go_on()
    seen = driver.line()
    assert seen["commit"] == "TransactionRolledBackException"
    assert seen["received"] == ["committed0", "committed1", "later0"]


@pytest.mark.rule("P11", "D4")
def test_rejected_goes_to_the_dead_letters(service: Service, start: Start) -> None:
    assert start("dead-letters", service).line() == {"letter": "bad0", "left": []}


@pytest.mark.rule("T8", "T13", "T31", "H13")
def test_failover_between_two_services_on_one_store(
    jms_classpath: str, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    services = [Service(tmp_path_factory.mktemp("service"), {"database_url": database_url}) for _ in range(2)]
    driver = None
    try:
        for each in services:
            each.start()
        driver = Driver(jms_classpath, "failover", ",".join(each.url for each in services))
        assert driver.line() == {"step": "kill the first"}
        services[0].kill()
        driver.go_on()
        seen = driver.line()
    finally:
        if driver is not None:
            driver.end()
        for each in services:
            each.discard()
    received = Counter(text.partition("/")[0] for text in seen["received"])
    assert len(seen["received"]) == len(set(seen["received"]))
    assert set(received.values()) == {seen["size"]}
    assert received.keys() >= set(seen["committed"])
    assert received.keys() <= set(seen["committed"]) | set(seen["cut"])


@pytest.mark.rule("T8", "T31")
def test_commits_in_doubt_are_whole_or_nothing(service: Service, start: Start) -> None:
    driver = start("commit-in-doubt", service)
    while (seen := driver.line()).get("step"):
        if seen["step"] == "kill":
            service.kill()
        else:
            service.restart()
        driver.go_on()
    transactions: dict[str, list[int]] = {}
    for text in seen["received"]:
        name, number = text.split("/")
        transactions.setdefault(name, []).append(int(number))
    whole = list(range(seen["size"]))
    assert all(numbers == whole for numbers in transactions.values()), transactions
    assert transactions.keys() >= set(seen["committed"])
    assert transactions.keys() <= set(seen["committed"]) | set(seen["unknown"])
