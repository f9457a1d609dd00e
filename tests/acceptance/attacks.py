"""What clients may do that would have the service hold more and more, each as a function that goes on until told to
stop; and a client beside that is to be served meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from tests.fix_service import Service
from tests.wire.frames import Accepted, Target
from tests.wire.messages import Properties, data
from tests.wire.peer import Peer, Session

MIB = 1 << 20

#: Does its worst with one connection, which is closed under it in the end.
Attack = Callable[[Peer, int], None]

_numbers = count(1)


def _begin(peer: Peer) -> Session:
    peer.open()
    return peer.begin()


def park_posts(peer: Peer, number: int) -> None:
    """Posts on the relay, each to an address that is not known yet."""
    relay = _begin(peer).sender(Target())
    for each in count():
        relay.post(Properties(to=f"parked-{number}-{each}").encoded() + data(bytes(60_000)))


def leave_transactions_undecided(peer: Peer, number: int) -> None:
    """Posts in a dozen transactions, and discharges none."""
    session = _begin(peer)
    control, sender = session.control(), session.sender(f"undecided-{number}")
    txns = [control.declare() for _ in range(12)]
    for each in count():
        sender.post(data(bytes(60_000)), txn=txns[each % len(txns)])


class Memory:
    """Of the service's worker: the proportional set size, looked at again and again."""

    def __init__(self, service: Service) -> None:
        line = service.wait_for(lambda line: line.get("event") == "worker ready")
        self._rollup = Path(f"/proc/{line['pid']}/smaps_rollup")
        self.before = self.peak = self.now

    @property
    def now(self) -> int:
        for line in self._rollup.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no Pss")

    def look(self) -> None:
        self.peak = max(self.peak, self.now)


def neighbour(port: int) -> None:
    """Commits a message and takes it back again; whatever is wrong is raised."""
    peer = Peer(port)
    session = _begin(peer)
    address = f"neighbour-{next(_numbers)}"
    control, sender, receiver = session.control(), session.sender(address), session.receiver(address)
    txn = control.declare()
    sender.post(data(b"x"), txn=txn, settled=True)
    control.commit(txn)
    taken = receiver.take()
    txn = control.declare()
    taken.retire(txn, Accepted())
    control.commit(txn)
    peer.close_socket()


def _until_cut(attack: Attack, peer: Peer, number: int) -> None:
    # refused, closed, or cut: then it is over
    with contextlib.suppress(AssertionError, OSError, KeyError):
        attack(peer, number)


@contextlib.contextmanager
def attacking(service: Service, *attacks: Attack, each: int = 1) -> Iterator[None]:
    """All of them, each on so many connections, until the block ends."""
    peers: list[Peer] = []
    threads: list[threading.Thread] = []
    for attack in attacks:
        for _ in range(each):
            peers.append(Peer(service.port))
            arguments = (attack, peers[-1], next(_numbers))
            threads.append(threading.Thread(target=_until_cut, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(2)
        for thread in threads:
            thread.join(60)
        for peer in peers:
            peer.close_socket()


def serve_beside(service: Service, memory: Memory, seconds: float) -> int:
    """How often the neighbour was served within so long; once at least, or it fails."""
    until = time.monotonic() + seconds
    served = 0
    while served == 0 or time.monotonic() < until:
        neighbour(service.port)
        served += 1
        memory.look()
    return served
