"""The checker of the client library for Python (clients/python) over ends of a service, and where it may not check."""

from __future__ import annotations

import signal
import threading
import time
from urllib.parse import quote

import psycopg
import pytest

from coordinator_client import sql
from coordinator_client.checker import Answer, Checker, CheckerRefused
from store.embedded.running import running_url
from tests.fix_service import PATIENCE, Service
from tests.fix_users import PASSWORD, add_user
from tests.fix_wire import BeginAt
from tests.wire.checkable import accept, in_group
from tests.wire.types import UInt

pytestmark = pytest.mark.rule("H8")


def test_it_goes_on_after_its_service_was_killed_or_stopped(own_service: Service, begin_at: BeginAt) -> None:
    checker = Checker(own_service.url, "shop", lambda _: Answer.COMMIT)
    thread = threading.Thread(target=checker.run)
    thread.start()
    try:
        for end in (own_service.kill, own_service.stop):
            end()
            own_service.restart()
            session = begin_at(own_service)
            control, sender = in_group(session, check_immunity_ms=UInt(0)), session.sender("orders")
            txn = control.declare()
            accept(sender, b"tea", txn)
            session.peer.close()
            _wait_until_it_is_committed(own_service, txn)
    finally:
        checker.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_it_goes_on_after_logins_that_failed_for_now(own_service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """While the database of the users is away the outcome of a login is sys-temp: it comes again."""
    add_user(own_service, "shop", [])
    url = own_service.url.replace("//", f"//shop:{quote(PASSWORD)}@")
    own_service.signal_database(signal.SIGSTOP)
    checker = Checker(url, "shop", lambda _: Answer.COMMIT, allow_insecure_mechs=True)
    thread = threading.Thread(target=checker.run)
    try:
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while "cannot check logins now" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert thread.is_alive()
    finally:
        own_service.signal_database(signal.SIGCONT)
        checker.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def _wait_until_it_is_committed(service: Service, txn: bytes) -> None:
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as store:
        while sql.outcome(store, txn) != "commit":
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.rule("S3")
def test_one_that_may_not_log_in_or_not_check_says_so(own_service: Service) -> None:
    add_user(own_service, "shop", [])
    for password, problem in (("another", "Authentication failed"), (PASSWORD, "no permission to check")):
        url = own_service.url.replace("//", f"//shop:{quote(password)}@")
        checker = Checker(url, "shop", lambda _: Answer.UNKNOWN, allow_insecure_mechs=True)
        with pytest.raises(CheckerRefused, match=problem):
            checker.run()
