"""A listener that cannot accept for want of a descriptor."""

from __future__ import annotations

import errno
import socket

import pytest

from links.connection import Connection
from links.reactor import Reactor


class Listener(socket.socket):
    """``full``: there is no descriptor left."""

    full = True
    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        raise OSError(errno.EMFILE, "Too many open files") if self.full else BlockingIOError


@pytest.mark.parametrize("stops", [True, False])
def test_it_listens_again_unless_it_was_stopped_meanwhile(stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("links.reactor._ACCEPT_RETRY_SECONDS", 0.01)

    def accepted(sock: socket.socket) -> Connection:
        raise AssertionError(sock)

    with Listener() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        reactor = Reactor()
        reactor.listen(listener, accepted)
        client.connect(listener.getsockname())
        while not listener.asked:
            reactor.turn(1)
        listener.full = False
        reactor.call_later(0, reactor.stop_listening if stops else lambda: None)
        reactor.call_later(0.1, reactor.stop)
        reactor.run()
        assert (listener.asked == 1) is stops
