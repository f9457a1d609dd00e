"""A :class:`coordinator_client.checker.Checker` answers what a service asks (H8)."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from conftest import Leave, Running

from coordinator_client import sql
from coordinator_client.checker import Answer, Check, Checker, CheckerRefused

Application = psycopg.Connection[Any]

#: Seconds for what must happen, on a slow machine.
PATIENCE = 120.0


@contextmanager
def at_work(checker: Checker) -> Iterator[None]:
    thread = threading.Thread(target=checker.run)
    thread.start()
    try:
        yield
    finally:
        checker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def group() -> str:
    return f"shop-{uuid.uuid4().hex}"


def wait_until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.rule("H8", "H13")
def test_each_check_is_answered_with_what_became_of_its_transaction(
    running: Running, application: Application, address: str, leave: Leave, group: str
) -> None:
    begun = datetime.now(UTC)
    lost, kept = leave(address, group), leave(address, group)
    seen: dict[bytes, Check] = {}

    def answer(check: Check) -> Answer:
        seen[check.txn_id] = check
        return Answer.COMMIT if check.txn_id == kept else Answer.ROLLBACK

    def decided() -> bool:
        application.rollback()
        return [sql.outcome(application, each) for each in (kept, lost)] == ["commit", "rollback"]

    with at_work(Checker(running.url, group, answer)):
        wait_until(decided)
    check = seen[kept]
    assert (check.address, check.count, check.posted, check.retired, check.body_left_out) == (address, 1, 1, 0, False)
    assert (check.message.id, check.message.body) == ("order-1", "tea")
    assert begun - timedelta(minutes=1) < check.declared_at < datetime.now(UTC) + timedelta(minutes=1)


@pytest.mark.rule("H8")
def test_what_it_cannot_tell_is_left_undecided(
    running: Running,
    application: Application,
    address: str,
    leave: Leave,
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error of the application is no answer."""
    txns = {leave(address, group) for _ in range(2)}
    asked = []

    def answer(check: Check) -> Answer:
        asked.append(check.txn_id)
        if len(asked) == 1:
            raise RuntimeError("the book is away")
        checker.stop()  # its own answer is sent
        return Answer.UNKNOWN

    checker = Checker(running.url, group, answer)
    checker.run()
    assert set(asked) == txns
    assert "the book is away" in caplog.text
    assert {sql.outcome(application, txn) for txn in txns} == {"undecided"}


@pytest.mark.parametrize("host", ["127.0.0.1:1", "nowhere.invalid"])
def test_it_connects_again_until_it_is_stopped(group: str, caplog: pytest.LogCaptureFixture, host: str) -> None:
    with at_work(Checker(f"amqp://{host}", group, lambda _: Answer.UNKNOWN)):
        wait_until(lambda: caplog.text.count("connects again") >= 2)


def test_one_that_is_refused_for_good_says_why(running: Running) -> None:
    with pytest.raises(CheckerRefused, match="producer group"):
        Checker(running.url, "", lambda _: Answer.UNKNOWN).run()


def test_it_is_stopped_while_the_other_side_is_silent(group: str) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    url = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
    with closing(silent), at_work(Checker(url, group, lambda _: Answer.UNKNOWN)):
        other, _ = silent.accept()
    other.close()
