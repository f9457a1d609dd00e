"""Names that are as long as PostgreSQL's indexes take, in octets, and longer ones (rules P8, D1, D4)."""

from __future__ import annotations

import random

import pytest

from coordinator.address.addresses import LONGEST_NAME, MOST_OCTETS
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.wire.frames import Rejected, Source
from tests.wire.peer import Session
from tests.wire.queues import dead_letters, post
from tests.wire.types import Symbol

#: of three octets each
_MOST_CHARACTERS = MOST_OCTETS // 3


def _name(length: int) -> str:
    """Of characters that PostgreSQL cannot compress."""
    return "".join(chr(random.randint(0x4E00, 0x9FA5)) for _ in range(length))


@pytest.mark.rule("D4")
def test_the_longest_name_has_a_group_and_dead_letters(begin: Begin) -> None:
    session = begin()
    name, group = _name(_MOST_CHARACTERS), _name(_MOST_CHARACTERS)
    members = session.receiver(f"{name}::{group}", credit=1)
    post(session, name, b"x")
    members.take().disposition(Rejected())
    assert dead_letters(session, group).take().message.annotations["x-opt-original-address"] == name
    session.receiver(name, credit=1).take().disposition(Rejected())
    assert dead_letters(session, name).take().body == b"x"


@pytest.mark.rule("D9")
@pytest.mark.parametrize("length", [_MOST_CHARACTERS + 1, LONGEST_NAME])
@pytest.mark.parametrize("named", ["address", "group"])
def test_a_longer_one_is_refused(begin: Begin, service: Service, address: str, length: int, named: str) -> None:
    name = _name(length)
    answer = begin().receiver(name if named == "address" else f"{address}::{name}").wait_detached()
    assert answer.error is not None
    assert answer.error.condition == "amqp:invalid-field"
    assert "at most 2,688 octets" in str(answer.error.description)


def test_one_of_the_command_line_is_refused(service: Service) -> None:
    done = service.command("address", "add", _name(_MOST_CHARACTERS + 1))
    assert (done.returncode, "at most 2,688 octets" in done.stderr) == (2, True)


@pytest.mark.rule("D1")
@pytest.mark.parametrize("lasts", [True, False])
def test_subscriptions_may_have_longer_ones(begin: Begin, address: str, lasts: bool) -> None:
    """Of a container, and of one called alike up to its end: each gets the message, and is found again by its name."""
    container, link = _name(LONGEST_NAME), _name(LONGEST_NAME)
    policy = Symbol("never") if lasts else None
    source = Source(address=address, capabilities=(Symbol("topic"), Symbol("shared")), expiry_policy=policy)
    sessions: list[Session] = [begin(container_id=container + end) for end in "ab"]
    links = [session.receiver(source, credit=1, name=link) for session in sessions]
    post(sessions[0], address, b"x")
    assert [each.take().body for each in links] == [b"x", b"x"]
    if lasts:
        links[0].detach(closed=False)
        again = begin(container_id=container + "a").receiver(source, credit=1, name=link)
        assert again.take().body == b"x"
