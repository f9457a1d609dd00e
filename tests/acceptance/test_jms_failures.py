"""Apache Qpid JMS, unchanged, while services are killed and started again: what a Java application sees."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.fix_jms import Driver, Jms
from tests.fix_service import Service, running_service
from tests.workers import pids_of_workers


@pytest.mark.rule("T8", "D6")
def test_client_reconnects_after_a_kill(service: Service, jms: Jms) -> None:
    driver = jms("reconnect", service)
    assert driver.line() == {"step": "kill and restart"}
    service.kill()
    service.restart()
    driver.go_on()
    seen = driver.line()
    assert seen["received"] == [*(f"before{i}" for i in range(50)), *(f"after{i}" for i in range(50))]
    assert seen["left"] == []


@pytest.mark.rule("P15", "T8")
def test_a_client_id_comes_back_after_its_worker_is_killed(jms: Jms) -> None:
    with running_service({"workers": "2"}) as two:
        driver = jms("client-id-over-kills", two)
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


@pytest.mark.rule("T13")
def test_transaction_cut_by_a_kill_leaves_nothing(service: Service, jms: Jms) -> None:
    driver = jms("transaction-over-a-kill", service)
    assert driver.line() == {"step": "kill and restart"}
    service.kill()
    service.restart()
    driver.go_on()
    seen = driver.line()
    assert seen["commit"] == "TransactionRolledBackException"
    assert seen["received"] == ["committed0", "committed1", "later0"]


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
    assert seen["committed"], "no commit was acknowledged"
    received = Counter(text.partition("/")[0] for text in seen["received"])
    assert len(seen["received"]) == len(set(seen["received"]))
    assert set(received.values()) == {seen["size"]}
    assert received.keys() >= set(seen["committed"])
    assert received.keys() <= set(seen["committed"]) | set(seen["cut"])


@pytest.mark.rule("T8", "T31")
def test_commits_in_doubt_are_whole_or_nothing(service: Service, jms: Jms) -> None:
    driver = jms("commit-in-doubt", service)
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
    assert seen["committed"], "no commit was acknowledged"
    assert not [error for error in seen["errors"] if "amqp:transaction:" in error]
    whole = list(range(seen["size"]))
    assert all(numbers == whole for numbers in transactions.values()), transactions
    assert transactions.keys() >= set(seen["committed"])
    assert transactions.keys() <= set(seen["committed"]) | set(seen["unknown"])
