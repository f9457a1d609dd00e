"""What TLS and WebSockets cost beside TCP alone: ``python -m tests.benchmarks.layer_costs``.

One service listens on all. The load generator knows neither: a relay in this process passes its octets on, as they are,
behind TLS or in messages of a WebSocket, and is not counted. Each cell is measured in turns. Figures: microseconds of
processor time a message, and octets of memory an idle connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import ssl
import statistics
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tests.benchmarks import cells, generator, processes
from tests.benchmarks.contenders import Conditions
from tests.benchmarks.generator import FOLDER
from tests.benchmarks.processes import Cpu
from tests.benchmarks.servers import Server, start_service
from tests.fix_certificates import Authority, authority, key_of
from tests.wire.websocket import BINARY, CLOSE, PATH, frame, request

SCHEMES = ("amqp", "amqps", "ws")
_READ_OCTETS = 1 << 16
_IDLE_SECONDS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.layer_costs")
    parser.add_argument("--cells", default="post-10x8", help="shell patterns with commas (post-10x8)")
    parser.add_argument("--rounds", type=int, default=5, help="of each, in turns (5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured, a round (4)")
    parser.add_argument("--connections", type=int, default=1000, help="idle ones (1000)")
    asked = parser.parse_args()
    generator.build()
    generator.take_all_descriptors()
    given = Conditions(seconds=asked.seconds, stock_limit=0)
    with tempfile.TemporaryDirectory(prefix="coordinator-layers-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        ca = authority(folder / "ca")
        server = ca.sign("server", "/CN=127.0.0.1", alternative="IP:127.0.0.1")
        os.environ.update(COORDINATOR_TLS__CERTIFICATE=str(server), COORDINATOR_TLS__KEY=str(key_of(server)))
        with _service(folder / "busy") as service:
            for cell in (each for each in cells.all_cells(None) if cells.matches(each.name, asked.cells)):
                _compare(service, ca, given, cell, asked.rounds)
        for scheme in SCHEMES:
            with _service(folder / f"idle-{scheme}") as service:
                _hold_idle(service, ca, given, scheme, asked.connections)


@contextlib.contextmanager
def _service(data_dir: Path) -> Iterator[Server]:
    log = FOLDER / "service.log"
    also = ["--listen", "amqps://127.0.0.1:0", "--listen", f"ws://127.0.0.1:0{PATH}"]
    with start_service(data_dir=data_dir, log=log, arguments=also) as service:
        yield service


def _compare(service: Server, ca: Authority, given: Conditions, cell: cells.Cell, rounds: int) -> None:
    used: dict[str, list[Cpu]] = {scheme: [] for scheme in SCHEMES}
    rates: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    for number in range(rounds):
        for scheme in SCHEMES:
            with _relay(scheme, ca) as port:
                flags = cell.flags(f"{cell.name}-{scheme}-{number}", 0)
                load, cpu = service.under_load(cell.mode, *given.flags(), *flags, port=port)
            each = 1e6 / load.messages
            parts = Cpu(service=cpu.service * each, backends=cpu.backends * each, background=cpu.background * each)
            used[scheme].append(parts)
            rates[scheme].append(load.messages / load.seconds)
            print(_line(cell.name, scheme, parts, rates[scheme][-1]), flush=True)
    plain, *layers = SCHEMES
    for scheme in layers:
        services = [statistics.median([each.service for each in used[of]]) for of in (plain, scheme)]
        totals = [statistics.median([each.total for each in used[of]]) for of in (plain, scheme)]
        moved = [statistics.median(rates[of]) for of in (plain, scheme)]
        pairs = sorted(one.service / other.service for other, one in zip(used[plain], used[scheme], strict=True))
        print(
            f"{cell.name}: service {services[0]:.1f} us by {plain}, {services[1]:.1f} us by {scheme}: "
            f"{services[1] / services[0]:.2f} times (pairs {pairs[0]:.2f} to {pairs[-1]:.2f}); with PostgreSQL "
            f"{totals[1] / totals[0]:.2f} times; rate {moved[1] / moved[0]:.2f}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def _line(cell: str, scheme: str, used: Cpu, rate: float) -> str:
    return f"  {cell} {scheme:5}: service {used.service:.1f} us, all {used.total:.1f} us, {rate:.0f} messages/s"


def _hold_idle(service: Server, ca: Authority, given: Conditions, scheme: str, connections: int) -> None:
    memories = [processes.memory(service.groups())]
    with _relay(scheme, ca) as port:
        generator.run(
            "idle",
            port,
            *given.flags(),
            f"--connections={connections}",
            f"--seconds={_IDLE_SECONDS}",
            "--target=idle",
            ended=lambda: memories.append(processes.memory(service.groups())),
        )
    before, after = memories
    print(f"{connections} idle, {scheme}: {(after.workers_pss - before.workers_pss) / connections:.0f} octets each")


def _port(scheme: str) -> int:
    """Of the service whose log is the last one."""
    for line in (FOLDER / "service.log").read_text().splitlines():
        said = json.loads(line)
        if said["event"] == "listening":
            return next(urlsplit(each).port or 0 for each in said["listen"] if each.startswith(f"{scheme}:"))
    sys.exit("the service does not listen")


@contextlib.contextmanager
def _relay(scheme: str, ca: Authority) -> Iterator[int]:
    """A port whose connections are passed on to that of the service, in the way of ``scheme``."""
    context = ssl.create_default_context(cafile=str(ca.certificate)) if scheme == "amqps" else None
    ready: Future[tuple[int, Callable[[], object]]] = Future()
    serving = _serve(_port(scheme), context, scheme == "ws", ready)
    thread = threading.Thread(target=asyncio.run, args=[serving], daemon=True)
    thread.start()
    port, stop = ready.result()
    try:
        yield port
    finally:
        stop()
        thread.join()


async def _serve(
    to: int, context: ssl.SSLContext | None, websocket: bool, ready: Future[tuple[int, Callable[[], object]]]
) -> None:
    """``ready`` gets the port, and what ends this."""

    async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            there, back = await asyncio.open_connection("127.0.0.1", to, ssl=context)
            if not websocket:
                await asyncio.gather(_pass(_some(reader), back), _pass(_some(there), writer))
                return
            back.write(request())
            await there.readuntil(b"\r\n\r\n")
            await asyncio.gather(_pass(_some(reader), back, _in_a_message), _pass(partial(_message, there), writer))

    server = await asyncio.start_server(enter, "127.0.0.1", 0, backlog=4096)
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    ready.set_result((int(server.sockets[0].getsockname()[1]), partial(loop.call_soon_threadsafe, task.cancel)))
    with contextlib.suppress(asyncio.CancelledError):
        await server.serve_forever()


def _some(reader: asyncio.StreamReader) -> Callable[[], Awaitable[bytes]]:
    return partial(reader.read, _READ_OCTETS)


async def _message(reader: asyncio.StreamReader) -> bytes:
    """The payload of the service's next frame; empty: it closes."""
    first, size = await reader.readexactly(2)
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    payload = await reader.readexactly(size)
    return b"" if first & 0x0F == CLOSE else payload


def _in_a_message(octets: bytes) -> bytes:
    return frame(BINARY, octets, mask=os.urandom(4))


async def _pass(
    read: Callable[[], Awaitable[bytes]], writer: asyncio.StreamWriter, made: Callable[[bytes], bytes] = bytes
) -> None:
    try:
        while octets := await read():
            writer.write(made(octets))
            await writer.drain()
    finally:
        writer.close()


if __name__ == "__main__":
    main()
