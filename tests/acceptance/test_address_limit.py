"""How many addresses a client may make by naming them (rules S4, P9)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import RECEIVER, Accepted, Attach, Detach, Source, Target
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import condition

MOST = 3
EXCEEDED = "amqp:resource-limit-exceeded"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"bounds.addresses_per_connection": str(MOST)}) as service:
        yield service


def _fill(session: Session, address: str) -> list[str]:
    names = [f"{address}-{number}" for number in range(MOST)]
    for name in names:
        session.sender(name).detach()
    return names


@pytest.mark.rule("S4")
def test_an_attach_that_needs_one_more_is_refused(begin: Begin, address: str) -> None:
    """By the limit's name. Addresses that are there cost nothing; another connection has its own."""
    session, other = begin(), begin()
    names = _fill(session, address)
    for refused in (session.sender(f"{address}-more"), session.receiver(f"{address}-more")):
        error = refused.wait_detached().error
        assert error is not None
        assert (error.condition, f"at most {MOST} addresses" in str(error.description)) == (EXCEEDED, True)
    assert other.sender(f"{address}-more").outcome(data(b"x")) == Accepted()
    assert session.receiver(f"{address}-more").bodies() == [b"x"]
    for name in names:
        assert session.sender(name).outcome(data(b"x")) == Accepted()
        assert other.sender(name).outcome(data(b"x")) == Accepted()
    for number in range(MOST - 1):
        assert other.sender(f"{address}-other-{number}").accepted
    assert other.sender(f"{address}-other").error == EXCEEDED


@pytest.mark.rule("S4", "P9")
def test_a_message_on_the_relay_that_needs_one_more_is_rejected(begin: Begin, address: str) -> None:
    session = begin()
    names = _fill(session, address)
    relay = session.sender(Target())
    refused = relay.outcome(Properties(to=f"{address}-more").encoded() + data(b"x"))
    assert condition(refused) == EXCEEDED
    assert f"at most {MOST} addresses" in refused.error.description
    assert relay.outcome(Properties(to=names[0]).encoded() + data(b"x")) == Accepted()


@pytest.mark.rule("S4")
def test_dead_letters_that_a_client_names_count(begin: Begin, address: str) -> None:
    """They would be without end: those of dead letters have dead letters, too."""
    session, other = begin(), begin()
    assert other.sender(address).accepted
    names = [f"{'%DLQ%' * number}{address}" for number in range(1, MOST + 2)]
    for name in names[:MOST]:
        assert session.receiver(name).answer.source is not None
    assert session.receiver(names[MOST]).error == EXCEEDED
    assert other.receiver(names[MOST]).answer.source is not None


@pytest.mark.rule("S4", "P8", "P9")
@pytest.mark.parametrize("consumes", [True, False])
def test_dynamic_addresses_count_while_they_are_there(begin: Begin, address: str, consumes: bool) -> None:
    session = begin()

    def dynamic() -> str:
        link = session.receiver(Source(dynamic=True)) if consumes else session.sender(Target(dynamic=True))
        if (link.answer.source if consumes else link.answer.target) is None:
            return link.error
        links.append(link)
        return ""

    links: list[object] = []
    assert [dynamic() for _ in range(MOST + 1)] == [""] * MOST + [EXCEEDED]
    assert session.sender(address).error == EXCEEDED
    links.pop().detach()  # type: ignore[attr-defined]
    assert session.sender(address).accepted
    assert dynamic() == EXCEEDED


@pytest.mark.rule("S4")
def test_many_attaches_at_once(begin: Begin, address: str) -> None:
    """None of the addresses is there when the last of them is named."""
    session = begin()
    with session.peer.at_once():
        for number in range(3 * MOST):
            name = f"{address}-{number}"
            session.send(
                Attach(
                    name=name,
                    handle=number,
                    role=RECEIVER,
                    source=Source(address=name),
                    target=Target(),
                )
            )
    answers = [session.peer.wait(Attach, name=f"{address}-{number}") for number in range(3 * MOST)]
    refused = [answer for answer in answers if answer.source is None]
    assert len(refused) == 2 * MOST
    for answer in refused:
        assert session.peer.wait(Detach, handle=answer.handle).error.condition == EXCEEDED
