"""What is measured: a cell is a way of working, a transaction size and a number of connections."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product

MODES = ("post", "retire", "transfer", "mixed")
TRANSACTION_SIZES = (1, 10, 100)
CONNECTIONS = (1, 8, 64, 1000)

#: Messages a second of the cells ``e2e``, whose latencies are those from posted to delivered.
PACE = 2000

#: Transactions under way on a connection, by their size: enough to keep a server busy; more only makes them wait.
SLOTS = {1: 8, 10: 4, 100: 2}

IDLE_CONNECTIONS = 1000

#: The memory of a server that holds connections which do nothing.
IDLE = f"idle-{IDLE_CONNECTIONS}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """``transaction``: messages a transaction; ``slots``: transactions that each connection keeps under way."""

    mode: str
    transaction: int
    connections: int
    slots: int

    @property
    def name(self) -> str:
        """As in ``--cells``: ``retire-10x8`` is ten a transaction over eight connections."""
        return f"{self.mode}-{self.transaction}x{self.connections}"

    @property
    def consumes(self) -> bool:
        """Whether it needs a stock."""
        return self.mode in ("retire", "transfer")

    @property
    def window(self) -> int:
        """Credit of each consuming link: each slot finds its deliveries while the next are on their way."""
        return max(200, 2 * self.transaction * self.slots)

    def stock(self, messages_per_second: float, seconds: float, limit: int) -> int:
        """How many messages the queue must hold, so that it does not run dry in ``seconds``; at most ``limit``.

        The last windows' worth is never measured: with an emptying queue some connections would wait.
        """
        if not self.consumes:
            return 0
        return min(limit, int(messages_per_second * seconds) + self.leftover)

    @property
    def leftover(self) -> int:
        return self.connections * self.window

    @staticmethod
    def target(queue: str) -> str:
        """Where it posts."""
        return f"{queue}-target"

    def flags(self, queue: str, stock: int) -> list[str]:
        """Those of the generator's flags that make this cell, on a queue with ``stock`` messages."""
        shape = [f"--connections={self.connections}", f"--transaction={self.transaction}", f"--slots={self.slots}"]
        where = [f"--queue={queue}", f"--target={self.target(queue)}", f"--window={self.window}"]
        bound = [f"--messages={max(1, stock - self.leftover)}"] if self.consumes else []
        pace = [f"--rate={PACE}"] if self.mode == "e2e" else []
        return [*shape, *where, *bound, *pace]


#: Posts without a transaction, and messages at a fixed rate through half of the connections to the other half.
_LONE = (*(("plain", 1, connections) for connections in CONNECTIONS), ("e2e", 1, 2), ("e2e", 1, 8))


def all_cells(slots: int | None = None) -> list[Cell]:
    """``slots``: instead of :data:`SLOTS`, for all sizes."""
    return [
        Cell(mode=mode, transaction=transaction, connections=connections, slots=slots or SLOTS[transaction])
        for mode, transaction, connections in (*product(MODES, TRANSACTION_SIZES, CONNECTIONS), *_LONE)
        if mode != "mixed" or connections % 2 == 0
    ]


def matches(name: str, patterns: str) -> bool:
    """Whether a cell's name fits one of the shell patterns, which stand between commas: ``post-*,*-10x8``."""
    return any(fnmatchcase(name, pattern.strip()) for pattern in patterns.split(","))
