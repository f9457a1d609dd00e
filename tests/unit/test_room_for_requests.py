"""Which request makes room for a new one (S5, S11)."""

from __future__ import annotations

import asyncio
import socket

import pytest
from starlette.applications import Starlette

from coordinator.http.server import _MOST_REQUESTS, Server

_NEIGHBOUR = "2001:db8:0:1::1"
_NETWORK = [f"2001:db8:0:2::{each:x}" for each in range(_MOST_REQUESTS)]


@pytest.mark.rule("S5", "S11")
def test_a_host_with_many_addresses_of_its_network_keeps_none_out() -> None:
    """It may have all of a network of 64 bits; a request is cut off when its peer reads the end."""

    async def first_cut() -> str:
        loop = asyncio.get_running_loop()
        server = Server(Starlette(), [], lambda: None)
        ends = {}
        for address in (_NEIGHBOUR, *_NETWORK):
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            server.take(ours, address)
            ends[asyncio.create_task(loop.sock_recv(theirs, 1))] = address, theirs
        try:
            async with asyncio.timeout(20):
                (cut,), _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert cut.result() == b""
            return ends[cut][0]
        finally:
            for _, theirs in ends.values():
                theirs.close()
            for each in asyncio.all_tasks() - {asyncio.current_task()}:
                each.cancel()

    assert asyncio.run(first_cut()) == _NETWORK[0]
