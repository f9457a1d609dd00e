"""Applications with SQL transactions of their own on the store, at a given rate, in processes of their own."""

from __future__ import annotations

import multiprocessing
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psycopg

Store = psycopg.Connection[tuple[Any, ...]]

#: Nothing of the parent's threads and sockets is in them but what was there before these begin.
_FORK = multiprocessing.get_context("fork")


class Load(NamedTuple):
    """``rate``: transactions a second, over all connections."""

    rate: float
    connections: int
    processes: int
    seconds: float

    @property
    def transactions(self) -> int:
        return max(1, int(self.rate * self.seconds / self.connections)) * self.connections


class Committed(NamedTuple):
    """One transaction: when it was to begin, when its commit was called, and when that was answered, in seconds."""

    number: int
    due: float
    called: float
    answered: float


def add_options(parser: ArgumentParser, rate: float) -> None:
    parser.add_argument("--rate", type=float, default=rate, help=f"transactions a second, all together ({rate:.0f})")
    parser.add_argument("--connections", type=int, default=50, help="of applications (50)")
    parser.add_argument("--processes", type=int, default=4, help="of applications (4)")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured (10)")


def load_of(asked: Namespace) -> Load:
    return Load(asked.rate, asked.connections, asked.processes, asked.seconds)


def run(url: str, load: Load, prepare: Callable[[Store], None], step: Callable[[Store, int], None]) -> list[Committed]:
    """``step`` of each transaction by its number, then its commit, each at its time or as soon as its connection is
    free. ``prepare`` is called once for each connection. In the order of the numbers.
    """
    begin = time.time() + 1 + 0.02 * load.connections
    children = []
    for number in range(load.processes):
        ours, theirs = _FORK.Pipe(duplex=False)
        names = range(number, load.connections, load.processes)
        child = _FORK.Process(target=_work, args=(url, load, begin, names, prepare, step, theirs))
        child.start()
        theirs.close()
        children.append((child, ours))
    found: list[Committed] = []
    for child, ours in children:
        found += ours.recv()
        child.join()
    return sorted(found)


def _work(
    url: str,
    load: Load,
    begin: float,
    names: range,
    prepare: Callable[[Store], None],
    step: Callable[[Store, int], None],
    to_parent: Connection,
) -> None:
    def apply(name: int) -> list[Committed]:
        done = []
        with psycopg.connect(url) as store:
            prepare(store)
            store.commit()
            for number in range(name, load.transactions, load.connections):
                due = begin + number / load.rate
                time.sleep(max(0.0, due - time.time()))
                step(store, number)
                called = time.time()
                store.commit()
                done.append(Committed(number, due, called, time.time()))
        return done

    with ThreadPoolExecutor(len(names)) as pool:
        to_parent.send([each for done in pool.map(apply, names) for each in done])


def beside(work: Callable[[Connection], None]) -> tuple[Any, Connection]:
    """``work`` in another process, which tells by what it is given; that process, and what it tells."""
    ours, theirs = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=work, args=(theirs,))
    child.start()
    theirs.close()
    return child, ours
