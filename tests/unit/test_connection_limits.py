"""Whose connections count together (rule S4); the addresses of IPv6 that a test needs are not on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.bounds import Bounds
from coordinator.errors import Refusal
from coordinator.settings import LimitSettings
from links.connection_limits import ConnectionLimits


@dataclass(eq=False)
class Client:
    """What the crowd knows of a connection."""

    peer: str
    service: Any
    user: str | None = None


def _opened(crowd: ConnectionLimits, peer: str) -> Refusal | None:
    limits = LimitSettings(connections_per_address=1)
    client: Any = Client(peer, SimpleNamespace(limits=limits, bounds=Bounds(), memory=SimpleNamespace(connections=1)))
    assert crowd.add(client) is None
    return crowd.admit(client)


@pytest.mark.rule("S4")
@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("2001:db8::1:5001", "2001:db8::2:0:0:1:5002", True),
        ("2001:db8::1:5001", "2001:db8:0:1::1:5002", False),
        ("::ffff:10.0.0.1:5001", "10.0.0.1:5002", True),
        ("10.0.0.1:5001", "10.0.0.2:5002", False),
    ],
)
def test_a_network_of_ipv6_is_one_host(first: str, second: str, together: bool) -> None:
    crowd: ConnectionLimits = ConnectionLimits()
    assert _opened(crowd, first) is None
    refused = _opened(crowd, second)
    assert (refused is not None and "limits.connections_per_address" in refused.description) is together
