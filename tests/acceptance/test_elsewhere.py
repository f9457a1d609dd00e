"""An address that another service has, with a store of its own: clients are sent there (rule P23)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.tables import ANONYMOUS
from tests.acceptance.clients import run_case
from tests.fix_jms import Jms
from tests.fix_permissions import Enter
from tests.fix_service import Service, running_service
from tests.fix_users import EVERYTHING, grant
from tests.fix_wire import Begin, BeginAt
from tests.wire.frames import RECEIVER, Accepted, Attach, Error, Rejected, Source, Target, TransactionalState
from tests.wire.messages import Properties, data
from tests.wire.queues import condition, dead_letters, post
from tests.wire.types import Int, Symbol

pytestmark = pytest.mark.rule("P23")

REDIRECT = "amqp:link:redirect"


@pytest.fixture(scope="module")
def other() -> Iterator[Service]:
    """The service that has the addresses, with a store of its own."""
    with running_service() as service:
        yield service


@pytest.fixture(scope="module")
def service(other: Service) -> Iterator[Service]:
    table = json.dumps([{"match": "elsewhere.*", "url": other.url}])
    with running_service({"addresses.elsewhere": table, "login.plain": "always"}) as service:
        yield service


def _info(other: Service, asked: str) -> dict[Any, Any]:
    place = {Symbol("hostname"): "127.0.0.1", Symbol("network-host"): "127.0.0.1", Symbol("port"): Int(other.port)}
    return {**place, Symbol("address"): asked}


def _is_sent(error: Error | None, other: Service, asked: str) -> None:
    assert error is not None
    assert (error.condition, error.info) == (REDIRECT, _info(other, asked))
    assert error.description == f"the service at {other.url} has the address 'elsewhere.q': connect there"


@pytest.mark.parametrize(
    "source",
    [
        Source(address="elsewhere.q"),
        Source(address="elsewhere.q::billing"),
        Source(address="elsewhere.q::*"),
        Source(address="elsewhere.q", distribution_mode=Symbol("copy")),
        Source(address="elsewhere.q", capabilities=("topic",), expiry_policy=Symbol("never")),
    ],
    ids=["queue", "group", "broadcast", "browser", "subscription"],
)
def test_a_consumer_is_sent_on(begin: Begin, other: Service, source: Source) -> None:
    link = begin().receiver(source)
    assert link.answer.source is None
    _is_sent(link.wait_detached().error, other, str(source.address))


def test_a_producer_is_sent_on_and_follows(begin: Begin, begin_at: BeginAt, other: Service) -> None:
    session = begin()
    link = session.sender("elsewhere.q")
    assert not link.accepted
    _is_sent(link.wait_detached().error, other, "elsewhere.q")
    post(session, "here.q", b"the connection goes on")
    there = begin_at(other)
    post(there, "elsewhere.q", b"followed")
    assert there.receiver("elsewhere.q").bodies() == [b"followed"]


def test_an_error_that_a_small_frame_has_no_room_for_has_no_info(begin: Begin, other: Service) -> None:
    name = f"elsewhere.{'x' * 280}"
    error = begin(max_frame_size=1200).sender(name).wait_detached().error
    assert error is not None
    assert (error.condition, error.info) == (REDIRECT, _info(other, name))
    session = begin(max_frame_size=512)
    error = session.sender(name).wait_detached().error
    assert error is not None
    assert (error.condition, error.info) == (REDIRECT, None)
    assert error.description is not None
    assert error.description.startswith(f"the service at {other.url} has the address ")
    post(session, "here.small", b"x")


def test_dead_letters_of_a_group_that_is_named_like_an_address_elsewhere_are_here(begin: Begin) -> None:
    session = begin()
    session.receiver("here.letters::elsewhere.q").detach(closed=False)
    post(session, "here.letters", b"refused")
    link = session.receiver("here.letters::elsewhere.q", credit=1)
    link.take().disposition(Rejected())
    assert dead_letters(session, "elsewhere.q").bodies() == [b"refused"]


@pytest.mark.rule("S3")
def test_no_permission_of_this_store_is_asked_for(enter: Enter, service: Service) -> None:
    """The service that has the address decides who may do what."""
    grant(service, EVERYTHING, role=ANONYMOUS)  # others of this module log in as no user
    session = enter([])
    assert session.receiver("elsewhere.q").error == REDIRECT
    assert session.sender("elsewhere.q").error == REDIRECT
    assert session.receiver("here.q").error == "amqp:unauthorized-access"


def test_a_post_on_the_relay_is_refused(begin: Begin, other: Service) -> None:
    session = begin()
    relay = session.sender(Target())
    state = relay.outcome(Properties(to="elsewhere.q").encoded() + data(b"x"))
    assert condition(state) == "amqp:not-found"
    assert state.error.description.startswith(f"the service at {other.url} has the address 'elsewhere.q': post it")
    assert relay.outcome(Properties(to="here.relay").encoded() + data(b"y")) == Accepted()
    assert session.receiver("here.relay").bodies() == [b"y"]


@pytest.mark.rule("T23")
@pytest.mark.parametrize("settled", [False, True])
def test_a_transaction_over_two_stores_is_refused_at_the_post(begin: Begin, other: Service, settled: bool) -> None:
    session = begin()
    control = session.control()
    txn = control.declare()
    relay = session.sender(Target())
    here = f"here.transaction-{settled}"
    assert relay.outcome(Properties(to=here).encoded() + data(b"x"), txn=txn) == TransactionalState(
        txn_id=txn, outcome=Accepted()
    )
    number = relay.post(Properties(to="elsewhere.q").encoded() + data(b"y"), txn=txn, settled=settled)
    if not settled:
        state: Any = relay.answer_to(number).state
        assert condition(state.outcome) == "amqp:not-found"
    outcome = control.discharge(txn)
    assert condition(outcome) == "amqp:transaction:rollback"
    assert f"the service at {other.url} has the address 'elsewhere.q'" in outcome.error.description
    assert "no transaction spans both" in outcome.error.description
    assert session.receiver(here).bodies() == []


@pytest.mark.rule("T24")
def test_a_transaction_of_one_service_is_unknown_to_the_other(begin: Begin, begin_at: BeginAt, other: Service) -> None:
    txn = begin().control().declare()
    there = begin_at(other)
    state = there.sender("elsewhere.txn").outcome(data(b"x"), txn=txn)
    assert condition(state) == "amqp:transaction:unknown-id"
    assert there.receiver("elsewhere.txn").bodies() == []


def test_what_the_service_names_itself_is_its_own(begin: Begin) -> None:
    session = begin()
    answer = session.attach(RECEIVER, source=Source(dynamic=True), target=Target())
    assert isinstance(answer, Attach)
    assert answer.source is not None
    assert str(answer.source.address).startswith("$dynamic/")


def test_the_proton_client_follows(service: Service, other: Service) -> None:
    command = (sys.executable, "-m", "tests.acceptance.proton_client", "redirected", str(service.port))
    assert run_case(*command) == {
        "sender": [REDIRECT, "127.0.0.1", other.port, "elsewhere.proton"],
        "receiver": [REDIRECT, "127.0.0.1", other.port, "elsewhere.proton"],
        "received": "followed",
    }


def test_rhea_follows(rhea_project: Path, service: Service, other: Service) -> None:
    seen = run_case("node", "driver.js", "elsewhere", str(service.port), cwd=rhea_project, silent=True)
    place = {"hostname": "127.0.0.1", "network-host": "127.0.0.1", "port": other.port, "address": "elsewhere.rhea.q"}
    assert seen == {"sender": [REDIRECT, place], "receiver": [REDIRECT, place], "received": ["followed"]}


def test_qpid_jms_says_where_it_is(service: Service, other: Service, jms: Jms) -> None:
    """It follows no redirect of a link."""
    said = f"the service at {other.url} has the address 'elsewhere.q': connect there [condition = {REDIRECT}]"
    assert jms("elsewhere", service).line() == {"producer": said, "consumer": said, "here": ["m0"]}
