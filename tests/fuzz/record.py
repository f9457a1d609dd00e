"""``python -m tests.fuzz.record``: the seeds anew, from what real clients send in the cases of ``tests/acceptance``.

A proxy stands between client and service and keeps what the client says, connection by connection. Ids of transactions
differ from run to run: in a seed a placeholder stands for each (``tests/fuzz/cases.py``), in the order of their
declaration. A seed is one connection, cut behind its last whole frame within :data:`MOST_OCTETS`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console

from tests import fix_clients
from tests.fix_service import PATIENCE, REPOSITORY, running_service
from tests.fuzz.cases import txn
from tests.fuzz.mutation import SEEDS, units

MOST_OCTETS = 4096
#: of one client's case
_MOST_CONNECTIONS = 2
#: what is shorter than an open and a begin says nothing of its own
_FEWEST_OCTETS = 120

#: ``declared`` in a disposition, with a txn-id of 16 octets
DECLARED = re.compile(rb"\x00(?:\x53|\x80\0\0\0\0\0\0\0)\x33(?:\xc0..|\xd0.{8})\xa0\x10(.{16})", re.DOTALL)


class Said(NamedTuple):
    """Of one connection."""

    sent: bytearray
    heard: bytearray


class Recorder:
    """Listens on :attr:`port` and passes everything on to the service's."""

    def __init__(self, service_port: int) -> None:
        self._service_port = service_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections: list[Said] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                service = socket.create_connection(("127.0.0.1", self._service_port))
                said = Said(bytearray(), bytearray())
                self.connections.append(said)
                for pair in ((client, service, said.sent), (service, client, said.heard)):
                    threading.Thread(target=_pass_on, args=pair, daemon=True).start()

    def close(self) -> None:
        self._listener.close()


def _pass_on(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while octets := source.recv(1 << 16):
            kept += octets
            sink.sendall(octets)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class Client(NamedTuple):
    """``command``: of one case against a port; it is built by ``build`` first."""

    name: str
    cases: Sequence[str]
    build: Callable[[], object]
    command: Callable[[str, int], list[str]]


_ACCEPTANCE = REPOSITORY / "tests" / "acceptance"


def _jms_command(case: str, port: int) -> list[str]:
    classpath = fix_clients.maven_classpath(_ACCEPTANCE / "jms")
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", classpath, "acceptance.Driver", case, f"amqp://127.0.0.1:{port}"]


_RUST = _ACCEPTANCE / "rust"
_GO = _ACCEPTANCE / "go"

CLIENTS = (
    Client(
        "rhea",
        ("commit", "retirement", "outcomes_in_transaction", "sessions", "refusals", "settled_control", "outcomes",
         "send_and_receive", "dynamic", "relay", "browse", "select", "drain", "settled"),
        lambda: fix_clients.npm_modules(_ACCEPTANCE / "rhea"),
        lambda case, port: ["node", str(_ACCEPTANCE / "rhea" / "driver.js"), case, str(port)],
    ),
    Client(
        "proton",
        ("tx_send", "tx_receive", "blocking", "browse", "dynamic", "without_sasl"),
        lambda: None,
        lambda case, port: [sys.executable, "-m", "tests.acceptance.proton_client", case, str(port)],
    ),
    Client(
        "jms",
        ("commit-and-rollback", "transfer", "anonymous-producer", "browser", "recover", "temporary-queue",
         "durable-subscription", "shared-durable-consumers", "selectors", "subscription-selectors", "bodies"),
        lambda: fix_clients.maven_classpath(_ACCEPTANCE / "jms"),
        _jms_command,
    ),
    Client(
        "fe2o3",
        ("send-and-receive", "outcomes", "commit-and-rollback", "retire", "dropped"),
        lambda: fix_clients.built(
            _RUST, "debug/acceptance-rust", ["cargo", "build", "--locked", "--quiet", "--target-dir", "target"]
        ),
        lambda case, port: [str(_RUST / "target" / "debug" / "acceptance-rust"), case, f"amqp://127.0.0.1:{port}"],
    ),
    Client(
        "go",
        ("send-and-receive", "outcomes", "credit", "dynamic", "subscription"),
        lambda: fix_clients.built(
            _GO, "acceptance", ["go", "build", "-buildvcs=false", "-o", "target/acceptance", "."],
            GOTOOLCHAIN="local", GOFLAGS="",
        ),
        lambda case, port: [str(_GO / "target" / "acceptance"), case, f"amqp://127.0.0.1:{port}"],
    ),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.record", description=__doc__)
    parser.add_argument("clients", nargs="*", help=f"of {', '.join(client.name for client in CLIENTS)}; none: all")
    asked = parser.parse_args(arguments)
    console = Console()
    with running_service() as service:
        for client in CLIENTS:
            if asked.clients and client.name not in asked.clients:
                continue
            client.build()
            for case in client.cases:
                recorder = Recorder(service.port)
                done = subprocess.run(
                    client.command(case, recorder.port),
                    cwd=REPOSITORY,
                    env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=2 * PATIENCE,
                    check=False,
                )
                recorder.close()
                if done.returncode:
                    console.print(f"{client.name} {case} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
                said = [said for said in recorder.connections if len(said.sent) >= _FEWEST_OCTETS]
                for number, each in enumerate(said[:_MOST_CONNECTIONS]):
                    path = SEEDS / f"{client.name}-{case}-{number}.bin"
                    path.write_bytes(seed(bytes(each.sent), bytes(each.heard)))
                    console.print(f"{path.name}: {path.stat().st_size} octets")
    return 0


def seed(sent: bytes, heard: bytes) -> bytes:
    """What goes into the file."""
    for number, txn_id in enumerate(DECLARED.findall(heard)):
        sent = sent.replace(txn_id, txn(number))
    kept = b""
    for unit in units(sent):
        if len(kept) + len(unit) > MOST_OCTETS:
            break
        kept += unit
    return kept


if __name__ == "__main__":
    sys.exit(main())
