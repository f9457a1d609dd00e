"""Which request for metrics makes room for a new one (S5, S11)."""

from __future__ import annotations

import select
import socket

import pytest

from coordinator.process.children import Supervising
from coordinator.process.measuring import _MOST_REQUESTS, Measuring, _Server
from coordinator.settings import Settings

_NEIGHBOUR = "2001:db8:0:1::1"
_NETWORK = [f"2001:db8:0:2::{each:x}" for each in range(_MOST_REQUESTS)]


@pytest.mark.rule("S5", "S11")
def test_a_host_with_many_addresses_of_its_network_keeps_none_out() -> None:
    """It may have all of a network of 64 bits; a request is cut off when its peer reads the end."""
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        server = _Server(listener, Measuring("postgresql://", Supervising(ours), [], Settings(), None))
        peers = {address: _asks(server, address) for address in (_NEIGHBOUR, *_NETWORK)}
        (cut,), _, _ = select.select(list(peers.values()), [], [], 20)
        assert (cut is peers[_NETWORK[0]], cut.recv(1)) == (True, b"")
        for peer in peers.values():
            peer.close()


def _asks(server: _Server, address: str) -> socket.socket:
    """A peer that has connected from there, and says nothing."""
    ours, theirs = socket.socketpair()
    server.process_request(ours, (address, 50_000, 0, 0))
    return theirs
