"""Attacks that make the service hold more and more, each a function that runs until it is stopped; and a neighbour that
must be served meanwhile.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.fix_service import Service
from tests.wire.frames import SENDER, Accepted, Attach, Detach, Source, Target, Transfer, frame
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


def declare_without_end(peer: Peer, number: int) -> None:
    """Declares one transaction after the other, beyond all credit and limits, and leaves the answers unread."""
    handle = _begin(peer).control().handle
    declare = b"\x00\x53\x77\x00\x53\x31\xc0\x02\x01\x40"
    for start in count(0, 1000):
        transfers = (
            Transfer(handle=handle, delivery_id=each, delivery_tag=b"%d" % each, message_format=0)
            for each in range(start, start + 1000)
        )
        peer.socket.sendall(b"".join(frame(transfer, payload=declare) for transfer in transfers))


def read_nothing(peer: Peer, number: int) -> None:
    """Attaches and detaches, and leaves the answers unread."""
    session = _begin(peer)
    with peer.at_once():
        for _ in range(200):
            source, target = Source(outcomes=("amqp:accepted:list",)), Target(address=f"unread-{number}")
            session.send(
                Attach(name="x" * 200, handle=7, role=SENDER, source=source, target=target, initial_delivery_count=0)
            )
            session.send(Detach(handle=7, closed=True))
    octets = peer.record[-1].octets
    peer.record.clear()
    while True:
        peer.socket.sendall(octets)


def attach_to_unknown_addresses(peer: Peer, number: int) -> None:
    """Attaches and detaches, each time to an address that is not known yet, and reads the answers."""
    session = _begin(peer)
    target = Target(address="?" * 20)
    session.send(Attach(name="x", handle=7, role=SENDER, source=Source(), target=target, initial_delivery_count=0))
    session.send(Detach(handle=7, closed=True))
    attach, detach = (record.octets for record in peer.record[-2:])
    peer.socket.setblocking(False)
    for start in count(0, 500):
        names = (f"{number:08}-{each:011}".encode() for each in range(start, start + 500))
        rest = memoryview(b"".join(attach.replace(b"?" * 20, name) + detach for name in names))
        while rest:
            readable, writable, _ = select.select([peer.socket], [peer.socket], [], 10)
            if readable and not peer.socket.recv(1 << 18):
                return
            if writable:
                rest = rest[peer.socket.send(rest) :]


def _fill(session: Session, address: str) -> None:
    """30 MB."""
    sender = session.sender(address)
    for _ in range(300):
        assert sender.outcome(data(bytes(100_000))) == Accepted()


def browse_and_settle_nothing(peer: Peer, number: int) -> None:
    """Open one browser after the other over the same 30 MB, read all and settle nothing."""
    session = _begin(peer)
    _fill(session, f"browsed-{number}")
    while True:
        session.receiver(Source(address=f"browsed-{number}", distribution_mode="copy"), credit=10_000)
        for _ in range(400):
            peer.step()
            peer.record.clear()


def browse_through_a_closed_window(peer: Peer, number: int) -> None:
    """Open one browser after the other, each on a session whose window has room for one frame."""
    _fill(_begin(peer), f"windowed-{number}")
    for _ in range(1000):
        session = peer.begin(incoming_window=1)
        session.receiver(Source(address=f"windowed-{number}", distribution_mode="copy"), credit=10_000)
    while True:
        peer.step()


def consume_and_settle_nothing(peer: Peer, number: int) -> None:
    """Read 30 MB and settle nothing; then ask for more."""
    session = _begin(peer)
    for each in count():
        _fill(session, f"consumed-{number}-{each}")
        session.receiver(f"consumed-{number}-{each}", credit=10_000)
        for _ in range(600):
            peer.step()
            peer.record.clear()


def begin_large_messages(peer: Peer, number: int) -> None:
    """Begin a message of 2 MB on each of many links, and end none."""
    session = _begin(peer)
    for each in count():
        sender = session.sender(f"large-{number}")
        for at in range(40):
            given: dict[str, Any] = (
                {"delivery_id": each, "delivery_tag": b"%d" % each, "message_format": 0} if not at else {}
            )
            sender.transfer(bytes(50_000), **given, more=True)


def fill_windows(peer: Peer, number: int) -> None:
    """Attach consumers to many queues of 5 MB each, with credit for one message, and settle nothing."""
    session = _begin(peer)
    for each in count():
        address = f"window-{number}-{each}"
        sender = session.sender(address)
        for _ in range(50):
            sender.post(data(bytes(100_000)), settled=True)
        session.receiver(address, credit=3)
        for _ in range(3):
            peer.step()
        peer.record.clear()


class Memory:
    """Of the service's worker: the resident set, looked at again and again. (The proportional one grows as well when
    another process that shares pages with it ends.)
    """

    def __init__(self, service: Service) -> None:
        line = service.wait_for(lambda line: line.get("event") == "worker ready")
        self._rollup = Path(f"/proc/{line['pid']}/smaps_rollup")
        self.before = self.peak = self.now

    @property
    def now(self) -> int:
        for line in self._rollup.read_text().splitlines():
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no Rss")

    def look(self) -> None:
        self.peak = max(self.peak, self.now)


def neighbour(port: int) -> None:
    """Commits a message and consumes it; raises whatever is wrong."""
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
    # refused, closed or cut: the attack is over
    with contextlib.suppress(AssertionError, OSError, KeyError):
        attack(peer, number)


@contextlib.contextmanager
def attacking(service: Service, *attacks: Attack, each: int = 1) -> Iterator[None]:
    """Run every attack, each on so many connections, until the block ends."""
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
    """Serve the neighbour for so long; how often it was served, which must be once at least."""
    until = time.monotonic() + seconds
    served = 0
    while served == 0 or time.monotonic() < until:
        neighbour(service.port)
        served += 1
        memory.look()
    return served
