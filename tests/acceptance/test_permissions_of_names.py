"""What another user learns and does who knows the names: a txn-id, a container-id, a subscription's name (rule S3)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from store.embedded.running import running_url
from store.permissions import Verb
from tests.fix_permissions import Enter, enter_as
from tests.fix_service import Service, running_service
from tests.fix_users import EVERYTHING, Grant, grant
from tests.fix_wire import Ask, Dial, decided
from tests.wire.frames import Accepted, Source
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import Symbol, UInt

pytestmark = pytest.mark.rule("S3")

TIMEOUT = "amqp:transaction:timeout"
UNKNOWN = "amqp:transaction:unknown-id"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always"}) as service:
        yield service


def _told(session: Session, address: str, txn: bytes) -> list[tuple[str, str]]:
    """What is said of the transaction to a post, a retirement, and a discharge either way."""
    control, sender = session.control(), session.sender(address)
    posted = sender.outcome(data(b"late"), txn=txn)
    said = [posted.error, *(control.discharge(txn, fail=fail).error for fail in (False, True))]
    sender.post(data(b"late"), settled=True, txn=txn)
    said.append(sender.wait_detached().error)
    assert session.sender(address).outcome(data(b"outside")) == Accepted()
    receiver = session.receiver(address, credit=1)
    receiver.take().retire(txn, Accepted())
    said.append(receiver.wait_detached().error)
    return [(error.condition, str(error.description).replace(txn.hex(), "ID")) for error in said]


@pytest.mark.rule("T12", "T14")
@pytest.mark.parametrize("other", [[(Verb.SEND, "*"), (Verb.RECEIVE, "*"), (Verb.CREATE, "*")], EVERYTHING])
def test_a_transaction_whose_time_ran_out_is_unknown_to_others(
    enter: Enter, dial: Dial, address: str, ask: Ask, other: list[tuple[Verb, str]]
) -> None:
    """They are told what they are told of an id that was never given out; its user is told of the time."""
    mine = enter(EVERYTHING, user=f"owner {address}")
    control = mine.control(properties={Symbol("coordinator:timeout-ms"): UInt(300)})
    txn = control.declare()
    mine.sender(address).outcome(data(b"gone"), txn=txn)
    assert decided(ask, txn) == ("rollback", "timeout")
    session = enter([each for each in other if each[0] is not Verb.MANAGE])
    told = _told(session, f"{address}-other", txn)
    assert {condition for condition, _ in told} == {UNKNOWN}
    assert told == _told(session, f"{address}-other", bytes(16))
    again = enter_as(dial, f"owner {address}")
    assert condition(again.control().discharge(txn)) == TIMEOUT
    assert condition(again.sender(address).outcome(data(b"late"), txn=txn)) == TIMEOUT


def _lasting(session: Session, topic: str) -> None:
    source = Source(address=topic, capabilities=(Symbol("topic"),), expiry_policy=Symbol("never"))
    session.receiver(source, name="prices").detach(closed=False)


def _ended_by_name(session: Session) -> str:
    """The topic of the subscription that is found by its name, and then ended; or nothing."""
    link = session.receiver(Source(), name="prices")
    found = link.answer.source
    if found is None:
        assert link.error == "amqp:not-found"
        return ""
    link.detach()
    session.sync()
    return str(found.address)


@pytest.mark.rule("D1")
def test_a_user_ends_by_name_a_subscription_of_its_own(enter: Enter, dial: Dial, address: str) -> None:
    """Others have called theirs alike, before and after, at topics of theirs: none is in its way, and none ends."""
    topics = {user: f"{user}-{address}" for user in ("first", "second", "mine", "last")}
    for topic in topics.values():
        enter([(verb, topic) for verb in (Verb.RECEIVE, Verb.CREATE)], user=topic)
        _lasting(enter_as(dial, topic, container_id=address), topic)
    nothing = f"nothing-{address}"
    enter([], user=nothing)
    assert _ended_by_name(enter_as(dial, nothing, container_id=address)) == ""
    for user in ("mine", "first", "last", "second"):
        session = enter_as(dial, topics[user], container_id=address)
        assert _ended_by_name(session) == topics[user]
        assert _ended_by_name(session) == ""


_NOT_OTHERS: list[Grant] = [(verb, "*") for verb in Verb if verb is not Verb.MANAGE]


def _made_anew(service: Service, name: str) -> None:
    """The user is removed, and another made under its name, at one moment."""
    with psycopg.connect(running_url(service.data_dir)) as store:
        verifiers = "select mechanism, salt, iterations, stored_key, server_key from coordinator.user_verifier"
        store.execute(
            f"create temporary table kept on commit drop as {verifiers} where user_name = %s".encode(), [name]
        )
        store.execute("delete from coordinator.user_account where name = %s", [name])
        store.execute("insert into coordinator.user_account (name) values (%s)", [name])
        store.execute("insert into coordinator.user_verifier select %s, k.* from kept k", [name])
        store.execute("select pg_notify('coordinator_user', %s)", [name])
    grant(service, _NOT_OTHERS, user=name)


@pytest.mark.rule("T11")
def test_a_user_made_anew_under_a_name_has_nothing_of_the_one_before(
    enter: Enter, dial: Dial, service: Service, address: str
) -> None:
    name, topic = f"user {address}", f"topic-{address}"
    enter(_NOT_OTHERS, user=name)
    before = enter_as(dial, name, container_id=address)
    control = before.control()
    txn = control.declare()
    before.sender(address).outcome(data(b"x"), txn=txn)
    control.commit(txn)
    assert control.discharge(txn) == Accepted()
    _lasting(before, topic)
    _made_anew(service, name)
    assert before.peer.closed().condition == "amqp:unauthorized-access"
    after = enter_as(dial, name, container_id=address)
    assert condition(after.control().discharge(txn)) == UNKNOWN
    assert _ended_by_name(after) == ""
    source = Source(address=topic, capabilities=(Symbol("topic"),), expiry_policy=Symbol("never"))
    assert after.receiver(source, name="prices").error == "amqp:unauthorized-access"
