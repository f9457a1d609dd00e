"""One client's login, by the mechanism that it has chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.login.exchange import Anonymous, Exchange, Say
from coordinator.login.external import External
from coordinator.login.offer import ANONYMOUS, EXTERNAL, PLAIN
from coordinator.login.password import Comparison, Plain
from coordinator.login.scram import Scram

if TYPE_CHECKING:
    from coordinator.login.users import Users


def begin(
    users: Users,
    mechanism: str,
    address: str,
    certificate: Mapping[str, Any],
    say: Say,
    disabled: Callable[[], None],
) -> Exchange:
    """``mechanism``: one that is offered. ``address``: of the client's host. ``certificate``: the client's,
    verified, or empty. ``disabled``: called when its user may not be in any more.
    """
    if mechanism == EXTERNAL:
        return External(users, address, certificate, say, disabled)
    if mechanism == ANONYMOUS:
        return Anonymous(say)
    comparison = Comparison(users, address, disabled)
    if mechanism == PLAIN:
        return Plain(comparison, say)
    return Scram(mechanism, comparison, say)
