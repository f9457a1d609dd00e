"""What must hold while a service is fuzzed: its log, its processes, its memory, its store, and a client beside it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from store.embedded.running import running_url
from tests.fix_certificates import authority, key_of
from tests.fix_service import PATIENCE, Service, TwoDoors
from tests.wire.frames import Accepted, TransactionalState
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.websocket import PATH

#: what the service says of peers that do wrong: counted, not kept
_ROUTINE = frozenset(
    (
        "connection closed",
        "connection failed",
        "link refused",
        "attach refused",
        "post refused",
        "refused on the control link",
        "the engine says",
    )
)


class Watched(TwoDoors):
    """The service; of its log the lines that fuzzing brings by the thousand are only counted."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.ca = authority(folder / "ca")
        server = self.ca.sign("server", alternative="IP:127.0.0.1")
        behind = {"certificate": server, "key": key_of(server), "client_ca": self.ca.certificate}
        super().__init__(folder, {**settings, **{f"tls.{name}": str(path) for name, path in behind.items()}})
        self.routine: Counter[str] = Counter()
        #: how many lines of the log :meth:`failures` has looked at, what it has found by what such failures share, and
        #: the process id of the last worker
        self._looked_at = 0
        self._found: dict[str, str] = {}
        self._worker = 0

    @property
    def listens(self) -> list[str]:
        return [*super().listens, f"ws://127.0.0.1:0{PATH}"]

    def _kept(self, line: dict[str, Any]) -> bool:
        event = line.get("event")
        if event in _ROUTINE:
            self.routine[event] += 1
        return event not in _ROUTINE

    def failures(self) -> list[str]:
        """What a log without defects does not have; each once."""
        lines = self.log_lines(since=self._looked_at)
        self._looked_at += len(lines)
        for line in lines:
            if line.get("event") == "worker ready":
                self._worker = int(line["pid"])
            if "text" in line:  # what is not of the log comes line by line: a crash of the interpreter, say
                self._found[""] = "\n".join(filter(None, (self._found.get(""), str(line["text"]))))
            if "traceback" in line or line.get("level") in ("error", "critical"):
                text = str(line.get("traceback") or line)
                # what differs between two of a kind is left out
                self._found.setdefault(re.sub(r"0x[0-9a-f]+|\d{3,}", "#", text), f"{line.get('event', '')}\n{text}")
        return list(self._found.values())

    @property
    def worker(self) -> int:
        """The process id of its (last) worker."""
        self.failures()
        return self._worker


def memory(pid: int) -> int:
    """Octets of its resident set (the proportional one grows as well when a process that shares pages with it ends)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Rss")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (names alone)


def processor_seconds(pid: int) -> float:
    """What it has used; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


class Bystander:
    """A client that does everything right: it posts in transactions, rolls some back, consumes, and counts."""

    ADDRESS = "bystander"

    def __init__(self, port: int) -> None:
        self._port = port
        self._stopping = threading.Event()
        self.rounds = 0
        #: seconds of the slowest declare, post and commit
        self.worst = 0.0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            peer = Peer(self._port)
            peer.open(container_id="bystander")
            session = peer.begin()
            control, sender = session.control(), session.sender(self.ADDRESS)
            receiver = session.receiver(self.ADDRESS, credit=10)
            while not self._stopping.is_set():
                bodies = [b"%d/%d" % (self.rounds, number) for number in range(3)]
                start = time.monotonic()
                for committed in (False, True):
                    txn = control.declare()
                    for body in bodies:
                        outcome = sender.outcome(data(body), txn=txn)
                        assert outcome == TransactionalState(txn_id=txn, outcome=Accepted()), outcome
                    if committed:
                        control.commit(txn)
                    else:
                        control.roll_back(txn)
                self.worst = max(self.worst, time.monotonic() - start)
                taken = [receiver.take() for _ in bodies]
                assert [each.body for each in taken] == bodies, (taken, bodies)
                txn = control.declare()
                for each in taken:
                    each.retire(txn)
                control.commit(txn)
                receiver.credit(len(taken))
                self.rounds += 1
                self._stopping.wait(0.02)
            assert receiver.drain(20) == []
            peer.close()
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self.error = error

    def stop(self) -> None:
        """End in order, and raise what went wrong."""
        self._stopping.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise AssertionError(f"the client beside the fuzzing hangs in its round {self.rounds}")
        if self.error is not None:
            raise AssertionError(f"the client beside the fuzzing failed in its round {self.rounds}") from self.error


def left_over(service: Service) -> dict[str, int]:
    """Undecided transactions and leased entries in the store when no client is there; none are waited for."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with psycopg.connect(running_url(service.data_dir)) as connection:
            found = {
                "transactions": _count(connection, "select count(*) from coordinator.txn"),
                "leases": _count(connection, "select count(*) from coordinator.entry where lease <> 0"),
            }
        if not any(found.values()) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def _count(connection: psycopg.Connection[Any], question: str) -> int:
    row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return int(row[0])


def consume_all(service: Service, addresses: tuple[str, ...]) -> int:
    """Take everything that the fuzzing has left at ``addresses``, as any client would; how many messages."""
    count = 0
    for address in addresses:
        peer = Peer(service.port)
        peer.open()
        session = peer.begin()
        receiver = session.receiver(address)
        while found := receiver.drain(500):
            for each in found:
                each.disposition(Accepted())
            count += len(found)
            session.sync()
        peer.close()
    return count
