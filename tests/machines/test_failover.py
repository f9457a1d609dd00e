"""Services and databases on machines of their own, some of which are lost, or cut off from each other (T11, F2)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from tests.acceptance.engine_client import Client, Lost
from tests.fix_jms import Driver
from tests.fix_machines import ServiceMachine, Site
from tests.fix_service import PATIENCE
from tests.wire.peer import Peer

pytestmark = pytest.mark.rule("T11", "F2")

#: Of transactions that were committed.
_COMMITS = "select count(*) from coordinator.op where decision = 'commit'"


def _commit(service: ServiceMachine) -> None:
    """Commit a transaction; try again until its commit is answered."""
    deadline = time.monotonic() + PATIENCE
    while not _tried(service):
        assert time.monotonic() < deadline, "no commit is answered"
        time.sleep(0.1)


def _tried(service: ServiceMachine) -> bool:
    try:
        client = service.machine.run(lambda: Client(service.port, service.machine.name))
        sender = client.sender("orders")
        txn = client.declare()
        client.post(sender, "x", txn=txn)
        accepted = client.discharge(txn, fail=False).accepted
        client.close()
    except Lost:
        return False
    return accepted


def _peer(service: ServiceMachine) -> Peer:
    peer = service.machine.run(lambda: Peer(service.port))
    peer.open()
    return peer


def test_the_machine_of_the_primary_goes_dark(site: Site) -> None:
    """It is the first in the URL. Who commits, who starts, who starts again, and who is asked, is with the other."""
    here, elsewhere = site.service("a"), site.service("b")
    here.start()
    _commit(here)
    site.network.darken(site.one.machine)
    site.two.run("select pg_promote()")
    _commit(here)
    elsewhere.start()
    _commit(elsewhere)
    (ready,) = (line for line in elsewhere.log_lines() if line.get("event") == "worker ready")
    os.kill(ready["pid"], signal.SIGKILL)
    elsewhere.wait_for(lambda line: line.get("event") == "worker ready" and line["pid"] != ready["pid"])
    _commit(elsewhere)
    done = elsewhere.machine.run(lambda: elsewhere.command("check", "--fewest-free", "0"))
    assert done.returncode == 0, done.stdout + done.stderr
    ended = [(each, line) for each in site.services for line in each.log_lines() if line.get("event") == "worker ended"]
    assert [each.machine.name for each, _ in ended] == ["b"]
    assert site.two.run(_COMMITS) == [(4,)]


@pytest.mark.night
def test_a_service_that_is_cut_off_from_its_database_sends_its_clients_elsewhere(site: Site) -> None:
    """And takes no others, until it has the database again."""
    here, elsewhere = site.service("a"), site.service("b")
    for each in (here, elsewhere):
        each.start()
        _commit(each)
    peer = _peer(here)
    databases = (site.one.machine, site.two.machine)
    for database in databases:
        site.network.cut(here.machine, database)
    error = peer.closed()
    peer.close_socket()
    assert error.condition == "amqp:connection:forced"
    assert "connect to another one" in str(error.description)
    again = _peer(here)
    assert again.closed() == error
    again.close_socket()
    _commit(elsewhere)
    for database in databases:
        site.network.mend(here.machine, database)
    _commit(here)
    assert site.one.run(_COMMITS) == [(4,)]


@pytest.mark.night
def test_qpid_jms_goes_on_at_another_service(site: Site, jms_classpath: str) -> None:
    """Its ``failover:`` moves on from a service that is cut off from the database."""
    services = [site.service("a"), site.service("b")]
    for each in services:
        each.start()
    _commit(services[1])
    places = ",".join(each.place for each in services)
    driver = site.network.machine("client").run(lambda: Driver(jms_classpath, "failover", places))
    try:
        assert driver.line() == {"step": "kill the first"}
        for database in (site.one.machine, site.two.machine):
            site.network.cut(services[0].machine, database)
        driver.go_on()
        seen = driver.line()
    finally:
        driver.end()
    received = Counter(text.partition("/")[0] for text in seen["received"])
    assert set(received.values()) == {seen["size"]}
    assert received.keys() >= set(seen["committed"])
    assert received.keys() <= set(seen["committed"]) | set(seen["cut"])


@pytest.mark.night
@pytest.mark.parametrize("order", ["old first", "new first"])
def test_who_is_with_an_old_primary_finds_the_new_one(site: Site, order: str) -> None:
    """The old one takes connections, and no commit on it ends, as its standby is another's primary."""
    site.one.run("alter system set synchronous_standby_names = '*'")
    site.two.run("alter system set synchronous_standby_names = ''")
    for each in (site.one, site.two):
        each.run("select pg_reload_conf()")
    hosts = (site.one, site.two) if order == "old first" else (site.two, site.one)
    here = site.service("a", *hosts)
    here.start()
    _commit(here)
    apart = ((here.machine, site.two.machine), (site.one.machine, site.two.machine))
    for one, other in apart:
        site.network.cut(one, other)
        site.network.cut(other, one)
    here.wait_for(lambda line: line.get("why") == "no answer to the heartbeat within 3 s")
    site.two.run("select pg_promote()")
    for one, other in apart:
        site.network.mend(one, other)
        site.network.mend(other, one)
    _commit(here)
    assert site.two.run(_COMMITS) == [(2,)]
