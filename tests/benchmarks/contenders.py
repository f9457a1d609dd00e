"""The servers under load: the service, and any other; each prepares for a cell, and its cost is measured."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from store.embedded.running import running_url
from tests.benchmarks import generator, java, processes, servers
from tests.benchmarks.cells import Cell
from tests.benchmarks.servers import Server

#: Assumed until posting at the same size and number of connections was measured.
_MESSAGES_PER_SECOND = 100_000.0

#: Retiring may be so much faster than posting, and never slower than this floor: a queue too full costs only time.
_RETIRE_FACTOR = 2.0
_LEAST_MESSAGES_PER_SECOND = 40_000.0

_FILL_TRANSACTION = 250
_EMPTY_TRANSACTION = 100


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is the same for all cells and servers."""

    seconds: float
    warm_seconds: float = 1.0
    body_octets: int = 256
    #: what a message has besides its body: bare, durable or jms
    shape: str = "durable"
    sasl: bool = False
    #: transactions have a producer group
    checkable: bool = False
    #: Most messages that a queue is filled with.
    stock_limit: int

    def flags(self) -> list[str]:
        """Those of the generator's flags."""
        return [
            f"--seconds={self.seconds}",
            f"--warm={self.warm_seconds}",
            f"--body={self.body_octets}",
            f"--shape={self.shape}",
            *(["--sasl"] if self.sasl else []),
            *(["--checkable"] if self.checkable else []),
        ]


class Contender(ABC):
    """``flush_dir``: a folder on the disk that its PostgreSQL writes to, as far as that is known.

    ``own_load``: the only program that can put a load on it, where it does not speak AMQP 1.0.
    """

    own_load: generator.Program | None = None

    def __init__(self, name: str, conditions: Conditions, log: Path, flush_dir: Path) -> None:
        self.name = name
        self.flush_dir = flush_dir
        self.conditions = conditions
        self._log = log
        self._post_rates: dict[tuple[int, int], float] = {}
        self._queues = 0

    @abstractmethod
    def ready(self, stock: int) -> contextlib.AbstractContextManager[tuple[Server, str]]:
        """A running server, and the name of a queue on it that has ``stock`` messages."""

    @abstractmethod
    def groups(self) -> processes.Groups:
        """All that runs for it now, between cells too."""

    @abstractmethod
    def stop(self) -> None: ...

    def takes(self, cell: Cell) -> bool:
        """Whether it can be measured in this cell."""
        return True

    def stock(self, cell: Cell) -> int:
        """Messages that a cell's queue should hold: what may be retired while it is measured."""
        posted = self._post_rates.get((cell.transaction, cell.connections), _MESSAGES_PER_SECOND)
        seconds = self.conditions.warm_seconds + self.conditions.seconds
        return cell.stock(
            max(posted * _RETIRE_FACTOR, _LEAST_MESSAGES_PER_SECOND), seconds, self.conditions.stock_limit
        )

    def note(self, cell: Cell, load: generator.Load) -> None:
        if cell.mode == "post":
            self._post_rates[cell.transaction, cell.connections] = load.messages / load.seconds

    def empty(self, server: Server, cell: Cell, queue: str, stock: int, load: generator.Load) -> None:
        """Retire what the cell has left, but for some of the last: a broker that keeps messages in memory would be
        measured with those of all cells before.

        :raises GeneratorFailed: not all came.
        """
        left = {}
        if cell.consumes:
            left[queue] = stock - load.total - cell.leftover
        if cell.mode in ("post", "transfer"):
            left[cell.target(queue)] = load.total
        for name, count in left.items():
            if count >= _EMPTY_TRANSACTION:
                shape = [f"--transaction={_EMPTY_TRANSACTION}", "--slots=4", "--warm=0"]
                until = [f"--messages={count - count % _EMPTY_TRANSACTION}", "--seconds=600"]
                generator.run("retire", server.port, *shape, *until, f"--queue={name}")

    def _new_queue(self) -> str:
        """Of its own for each measurement: what one leaves behind is not in the way of the next."""
        self._queues += 1
        return f"bench-{self._queues}"

    def _fill(self, server: Server, queue: str, stock: int) -> None:
        """Large transactions of settled posts; a commit that is accepted says that its messages are there."""
        if stock:
            shape = [f"--transaction={_FILL_TRANSACTION}", "--connections=4", "--slots=2"]
            where = [f"--target={queue}", f"--messages={stock}"]
            generator.run("fill", server.port, *self.conditions.flags(), *shape, *where)


class Lasting(Contender):
    """A server that runs through all cells on one store; should it end, it is started on it again."""

    _server: Server | None = None

    @abstractmethod
    def _start(self) -> Server: ...

    @property
    def server(self) -> Server:
        """It runs."""
        if self._server is None or not self._server.runs:
            self._server = self._start()
        return self._server

    @contextlib.contextmanager
    def ready(self, stock: int) -> Iterator[tuple[Server, str]]:
        server, queue = self.server, self._new_queue()
        self._fill(server, queue, stock)
        yield server, queue

    def groups(self) -> processes.Groups:
        return self._server.groups() if self._server is not None and self._server.runs else processes.Groups()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


class Service(Lasting):
    """``coordinator serve`` of the packages in ``tree``."""

    def __init__(
        self, name: str, conditions: Conditions, log: Path, data_dir: Path, tree: Path, arguments: list[str]
    ) -> None:
        super().__init__(name, conditions, log, data_dir)
        self._data_dir = data_dir
        self._tree = tree
        self._arguments = arguments

    def _start(self) -> Server:
        return servers.start_service(data_dir=self._data_dir, log=self._log, arguments=self._arguments, tree=self._tree)

    def empty(self, server: Server, cell: Cell, queue: str, stock: int, load: generator.Load) -> None:
        super().empty(server, cell, queue, stock, load)
        with psycopg.connect(running_url(self.flush_dir), autocommit=True) as connection:
            # PostgreSQL would write for minutes, while others are measured
            connection.execute("checkpoint")


class Peer(Lasting):
    """A broker in Java, warmed up by the load itself: Java goes on compiling for some seconds.

    ``program`` takes its port and the folder of its store.
    """

    def __init__(
        self,
        name: str,
        conditions: Conditions,
        log: Path,
        folder: Path,
        *,
        program: generator.Program,
        warm_seconds: float,
    ) -> None:
        super().__init__(name, conditions, log, folder)
        self._folder = folder
        self._program = program
        self._warm_seconds = warm_seconds

    def _start(self) -> Server:
        command = shlex.join([*self._program, "{port}", str(self._folder)])
        server = servers.start_other(command, name=self.name, log=self._log, preload=0, postgres_pid_file=None)
        try:
            self._warm_up(server)
        except BaseException:
            server.stop()
            raise
        return server

    def _warm_up(self, server: Server) -> None:
        for transaction in (1, 10):
            self._load(server, "mixed", f"--transaction={transaction}", f"--warm={self._warm_seconds / 2}")

    def _load(self, server: Server, mode: str, *flags: str) -> None:
        queue = self._new_queue()
        generator.run(
            mode,
            server.port,
            *self.conditions.flags(),
            *flags,
            "--connections=8",
            "--seconds=1",
            "--stall=60",
            f"--queue={queue}",
            f"--target={queue}",
            program=self.own_load or generator.IN_C,
        )


class RocketMq(Peer):
    """Apache RocketMQ, whose transactions post one message each, and retire none."""

    own_load = java.ROCKETMQ_LOAD

    def takes(self, cell: Cell) -> bool:
        return cell.mode == "post" and cell.transaction == 1

    def empty(self, server: Server, cell: Cell, queue: str, stock: int, load: generator.Load) -> None:
        """It takes a core for minutes after its load, and would be measured with all others: it begins anew."""
        self.stop()
        shutil.rmtree(self._folder)

    def _warm_up(self, server: Server) -> None:
        self._load(server, "post", "--slots=8", f"--warm={self._warm_seconds}")


class Other(Contender):
    """Any server; it is started for each measurement, so that one that takes its stock at the start can be told.

    ``command`` has ``{port}`` in it. With ``{preload}`` in it the queue comes filled, and ``queue`` is its name;
    without it the generator fills a new queue. Its PostgreSQL, if any, runs elsewhere and all the time.
    """

    def __init__(
        self,
        name: str,
        conditions: Conditions,
        log: Path,
        flush_dir: Path,
        *,
        command: str,
        queue: str | None,
        postgres_pid_file: Path | None,
    ) -> None:
        super().__init__(name, conditions, log, flush_dir)
        self._command = command
        self._queue = queue
        self._postgres_pid_file = postgres_pid_file
        self._server: Server | None = None

    @contextlib.contextmanager
    def ready(self, stock: int) -> Iterator[tuple[Server, str]]:
        with servers.start_other(
            self._command, name=self.name, log=self._log, preload=stock, postgres_pid_file=self._postgres_pid_file
        ) as server:
            self._server = server
            queue = self._queue or self._new_queue()
            if "{preload}" not in self._command:
                self._fill(server, queue, stock)
            yield server, queue

    def groups(self) -> processes.Groups:
        if self._server is not None and self._server.runs:
            return self._server.groups()
        return processes.groups(None, servers.postmaster(self._postgres_pid_file))

    def stop(self) -> None:
        """Nothing is left running between measurements."""
