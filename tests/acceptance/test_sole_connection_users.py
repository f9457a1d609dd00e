"""One connection alone for a container of a user: another user's is another container, whatever it calls itself (rules
P15 and S3), over two workers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_users import PASSWORD, add_users
from tests.fix_wire import Ask, Dial
from tests.sole import (
    CLOSE,
    REFUSE,
    alone,
    assert_closed_for_another,
    assert_refused,
    is_admitted,
    lives,
    opened,
)
from tests.wire.frames import AMQP_HEADER
from tests.wire.peer import Peer
from tests.wire.sasl import Login, plain
from tests.wire.types import UInt

pytestmark = pytest.mark.rule("P15", "S3")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"workers": "2", "login.plain": "always"}) as service:
        add_users(service, "alice", "mallory")
        yield service


def _as(dial: Dial, user: str | None) -> Peer:
    """A connection that is in, and has sent no open; None: without a login."""
    login = Login(dial())
    if user is None:
        login.init("ANONYMOUS", b"")
    else:
        login.init("PLAIN", plain(user, PASSWORD))
    assert login.outcome().code == 0
    login.peer.send_octets(AMQP_HEADER)
    assert login.peer.read_header() == AMQP_HEADER
    return login.peer


@pytest.mark.parametrize("other", ["mallory", None])
@pytest.mark.parametrize("policy", [REFUSE, CLOSE])
def test_another_user_neither_closes_nor_refuses(
    dial: Dial, address: str, ask: Ask, other: str | None, policy: UInt
) -> None:
    """Whichever of them is first."""
    mine, others = _as(dial, "alice"), _as(dial, other)
    assert is_admitted(opened(mine, address, **alone(policy)))
    assert is_admitted(opened(others, address, **alone(policy)))
    again = _as(dial, "alice")
    answer = opened(again, address, **alone(policy))
    if policy == CLOSE:
        assert is_admitted(answer)
        assert_closed_for_another(mine.closed())
        assert lives(again)
    else:
        assert_refused(again, answer)
        assert lives(mine)
    assert lives(others)
    assert ask("select count(*) from coordinator.sole_connection where container_id = %s", address) == [(2,)]


def test_no_container_id_is_anothers(dial: Dial, address: str) -> None:
    """However it is written: what one user is called and what a container is called are told apart."""
    mine = _as(dial, "alice")
    assert is_admitted(opened(mine, address, **alone(CLOSE)))
    for written in (f"alice{address}", f"5 alice{address}", f"5 alice {address}"):
        assert is_admitted(opened(_as(dial, None), written, **alone(CLOSE)))
    assert is_admitted(opened(_as(dial, "mallory"), address, **alone(CLOSE)))
    assert lives(mine)
