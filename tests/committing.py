"""A client that commits one message after the other, whatever becomes of its connections."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from tests.fix_service import PATIENCE
from tests.wire.messages import data
from tests.wire.peer import Peer


class Committing:
    """Connects to one of ``ports`` after the other; ``connections``: so often. ``acknowledged``: bodies of commits."""

    def __init__(self, address: str, ports: Sequence[int]) -> None:
        self.acknowledged: list[bytes] = []
        self.connections = 0
        self._address, self._ports = address, ports
        self._ends = False
        self._number = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends:
            with suppress(AssertionError, OSError):
                self._commit()
            time.sleep(0.1)

    def _commit(self) -> None:
        peer = Peer(self._ports[self.connections % len(self._ports)])
        try:
            self.connections += 1
            peer.open()
            session = peer.begin()
            control, sender = session.control(), session.sender(self._address)
            while not self._ends:
                self._number += 1
                body = b"%d" % self._number
                txn = control.declare()
                sender.outcome(data(body), txn=txn)
                control.commit(txn)
                self.acknowledged.append(body)
        finally:
            peer.close_socket()

    def goes_on(self) -> None:
        """Wait until more is acknowledged."""
        seen, deadline = len(self.acknowledged), time.monotonic() + 2 * PATIENCE
        while len(self.acknowledged) < seen + 10:
            assert time.monotonic() < deadline, "no commit is answered"
            time.sleep(0.1)

    def end(self) -> None:
        self._ends = True
        self._thread.join()

    def check(self, port: int) -> None:
        """See that what was acknowledged is there, and nothing twice."""
        peer = Peer(port)
        peer.open()
        receiver = peer.begin().receiver(self._address, credit=len(self.acknowledged) + 1000)
        bodies = receiver.bodies()
        peer.close_socket()
        assert max(Counter(bodies).values()) == 1
        assert set(self.acknowledged) - set(bodies) == set()
