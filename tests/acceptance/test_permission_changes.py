"""Changes of permissions reach connections that are open, and clients without a login (rule S3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from store import permissions, users
from store.database import connected
from store.embedded.running import running_url
from store.permissions import Verb
from store.tables import ANONYMOUS
from tests.fix_night import by_night
from tests.fix_permissions import Enter, enter_as
from tests.fix_service import Service, running_service
from tests.fix_users import EVERYTHING, PASSWORD, add_user, grant, revoke
from tests.fix_wire import BeginAt, Dial
from tests.wire.frames import Accepted, Source, Target
from tests.wire.links import Receiver, Sender
from tests.wire.messages import Properties, data
from tests.wire.peer import PATIENCE, Session
from tests.wire.queues import condition
from tests.wire.types import Symbol

UNAUTHORIZED = "amqp:unauthorized-access"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always", "workers": "2"}) as service:
        yield service


def _sender(session: Session, name: str) -> Sender:
    return session.sender(name)


def _receiver(session: Session, name: str) -> Receiver:
    return session.receiver(name)


def _group(session: Session, name: str) -> Receiver:
    return session.receiver(f"{name}::billing")


def _browser(session: Session, name: str) -> Receiver:
    return session.receiver(Source(address=name, distribution_mode=Symbol("copy")))


def _checker(session: Session, name: str) -> Receiver:
    return session.receiver(f"$check/{name}")


Attach = Callable[[Session, str], Sender | Receiver]
LINKS: list[tuple[Verb, Attach]] = [
    (Verb.SEND, _sender),
    (Verb.RECEIVE, _receiver),
    (Verb.RECEIVE, _group),
    (Verb.BROWSE, _browser),
    (Verb.CHECK, _checker),
]


@pytest.mark.rule("S3")
@pytest.mark.parametrize(
    ("verb", "attach", "how"),
    [
        # each link by one way, and one link by each
        (*link, how) if how == "user" or link is LINKS[1] else by_night(*link, how)
        for link in LINKS
        for how in ("user", "role", "pattern", "role taken")
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_link_ends_whose_permission_is_revoked(
    enter: Enter, service: Service, address: str, verb: Verb, attach: Attach, how: str
) -> None:
    """Others of the connection go on, and it comes back with the permission."""
    session = enter([(Verb.CREATE, "*"), (Verb.SEND, f"{address}-other")], user=address)
    role = f"role of {address}"
    with connected(running_url(service.data_dir)) as store:
        permissions.give_role(store, address, role)
    to = {"user": address} if how in ("user", "pattern") else {"role": role}
    granted = [(verb, f"{address[:-1]}*" if how == "pattern" else address)]
    grant(service, granted, **to)
    other = session.sender(f"{address}-other")
    link = _until_attached(attach, session, address)
    if how == "role taken":
        with connected(running_url(service.data_dir)) as store:
            assert permissions.take_role(store, address, role)
    else:
        revoke(service, granted, **to)
    assert link.error == UNAUTHORIZED
    assert attach(session, address).error == UNAUTHORIZED
    assert other.outcome(data(b"x")) == Accepted()
    with connected(running_url(service.data_dir)) as store:
        permissions.give_role(store, address, role)
    grant(service, granted, **to)
    _until_attached(attach, session, address)


def _until_attached(attach: Attach, session: Session, address: str) -> Sender | Receiver:
    """What was granted just now is not with the connection at once."""
    for _ in range(int(PATIENCE / 0.01)):
        link = attach(session, address)
        if (link.answer.target if isinstance(link, Sender) else link.answer.source) is not None:
            return link
        assert link.error == UNAUTHORIZED
        session.sync()
    raise AssertionError(f"{address} was not attached")


@pytest.mark.rule("S3", "D5")
def test_what_a_consumer_has_unsettled_goes_to_another(enter: Enter, service: Service, address: str) -> None:
    session, owner = enter([(Verb.RECEIVE, address), (Verb.CREATE, address)], user=address), enter(EVERYTHING)
    assert owner.sender(address).outcome(data(b"x")) == Accepted()
    receiver = session.receiver(address)
    receiver.take()
    revoke(service, [(Verb.RECEIVE, address)], user=address)
    assert receiver.error == UNAUTHORIZED
    assert owner.receiver(address).take().body == b"x"


@pytest.mark.rule("S3")
def test_the_relay_refuses_what_was_revoked(enter: Enter, service: Service, address: str) -> None:
    """No link ends for it."""
    session = enter([(Verb.SEND, "*"), (Verb.CREATE, address)], user=address)
    relay, sender = session.sender(Target()), session.sender(address)
    message = Properties(to=address).encoded() + data(b"x")
    assert relay.outcome(message) == Accepted()
    revoke(service, [(Verb.SEND, "*")], user=address)
    assert sender.error == UNAUTHORIZED
    assert condition(relay.outcome(message)) == UNAUTHORIZED
    grant(service, [(Verb.SEND, f"{address}-")], user=address)
    assert condition(relay.outcome(message)) == UNAUTHORIZED


@pytest.mark.rule("S3")
def test_a_change_without_a_notice_is_seen(enter: Enter, address: str, service: Service) -> None:
    session = enter([(Verb.SEND, address), (Verb.CREATE, address)], user=address)
    sender = session.sender(address)
    with connected(running_url(service.data_dir)) as store:
        store.exec_driver_sql("delete from coordinator.permission where user_name = %s", (address,))
        store.exec_driver_sql("update coordinator.store_identity set permission_changes = permission_changes + 1")
        store.commit()
    assert sender.error == UNAUTHORIZED


@pytest.mark.rule("S3")
def test_a_removed_user_leaves_no_permission_to_a_later_one_of_its_name(
    enter: Enter, dial: Dial, address: str, service: Service
) -> None:
    session = enter(EVERYTHING, user=address)
    session.sender(address)
    with connected(running_url(service.data_dir)) as store:
        assert permissions.give_role(store, address, f"role of {address}")
        assert users.remove(store, address)
    assert session.peer.closed().condition == UNAUTHORIZED
    grant(service, EVERYTHING, role=f"role of {address}")
    add_user(service, address, [], PASSWORD)
    assert enter_as(dial, address).sender(address).error == UNAUTHORIZED


# -- without a login


@pytest.mark.rule("S3", "S1")
def test_without_users_and_permissions_a_client_without_a_login_may_do_everything(
    own_service: Service, begin_at: BeginAt
) -> None:
    """From the first user or permission on, nothing that is not granted."""
    session = begin_at(own_service)
    sender = session.sender("a")
    assert sender.outcome(data(b"1")) == Accepted()
    add_user(own_service, "alice", EVERYTHING)
    assert sender.error == UNAUTHORIZED
    assert session.receiver("a").error == UNAUTHORIZED
    assert begin_at(own_service).sender("a").error == UNAUTHORIZED
    grant(own_service, [(Verb.RECEIVE, "a")], role=ANONYMOUS)
    receiver = _until_attached(_receiver, session, "a")
    assert isinstance(receiver, Receiver)
    assert receiver.take().body == b"1"
    with connected(running_url(own_service.data_dir)) as store:
        assert users.remove(store, "alice")
    session.sync()
    assert session.sender("a").error == UNAUTHORIZED  # there is a permission still
    revoke(own_service, [(Verb.RECEIVE, "a")], role=ANONYMOUS)
    _until_attached(_sender, session, "a")


@pytest.mark.rule("S3")
def test_a_permission_of_a_user_is_none_of_clients_without_a_login(enter: Enter, dial: Dial, address: str) -> None:
    enter(EVERYTHING)
    peer = dial()
    peer.open()
    assert peer.begin().sender(address).error == UNAUTHORIZED
