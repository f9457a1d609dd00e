"""One client's login, by the mechanism that it has chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.login.exchange import Anonymous, Exchange, Say
from coordinator.login.offer import ANONYMOUS, PLAIN
from coordinator.login.password import Comparison, Plain
from coordinator.login.scram import Scram

if TYPE_CHECKING:
    from coordinator.login.users import Users


def begin(users: Users, mechanism: str, address: str, say: Say, disabled: Callable[[], None]) -> Exchange:
    """``mechanism``: one that is offered. ``address``: of the client's host. ``disabled``: called when its user may not
    be in any more.
    """
    if mechanism == ANONYMOUS:
        return Anonymous(say)
    comparison = Comparison(users, address, disabled)
    if mechanism == PLAIN:
        return Plain(comparison, say)
    return Scram(mechanism, comparison, say)
