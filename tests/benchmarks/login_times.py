"""Whether the time of a refusal tells that there is such a user: ``python -m tests.benchmarks.login_times``.

Wrong passwords for users that are there and for users that are not, in a random order, each of its own user and its
own address, so that each waits as long as a first failure does. The time is from the name to the
challenge, and from the password, or its proof, to the outcome.
``told apart``: how often of two tries, one of each kind, the longer one is that of a user who is there; 50 % tells
nothing, and what chance alone does to it lies between the two limits.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from coordinator.login import verifiers
from store import users
from store.database import connected
from store.embedded.running import running_url
from tests.fix_service import Service, running_service
from tests.wire.peer import Peer
from tests.wire.sasl import HASHES, Login, ScramClient, plain

_THERE, _NOT_THERE = "there", "nope."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.login_times")
    parser.add_argument("--tries", type=int, default=1000, help="of each kind, for each mechanism (1000)")
    parser.add_argument("--at-once", type=int, default=4, help="(4)")
    asked = parser.parse_args()
    with running_service({"login.plain": "always", "login.anonymous": "never"}) as service:
        for number, mechanism in enumerate(("PLAIN", *HASHES)):
            _compare(service, number, mechanism, asked.tries, asked.at_once)


def _compare(service: Service, number: int, mechanism: str, tries: int, at_once: int) -> None:
    made = verifiers.new("a password")
    with connected(running_url(service.data_dir)) as store:
        for one in range(tries):
            users.add(store, f"{_THERE}-{number}-{one:04}", made)
    names = [f"{kind}-{number}-{one:04}" for kind in (_THERE, _NOT_THERE) for one in range(tries)]
    order = list(enumerate(names))
    random.shuffle(order)
    with ThreadPoolExecutor(at_once) as pool:
        times = list(pool.map(lambda each: _try(service.port, number, mechanism, *each), order))
    for step, what in enumerate(("challenge", "outcome") if mechanism in HASHES else ("outcome",)):
        of = {
            kind: [steps[step] for (_, name), steps in zip(order, times, strict=True) if name.startswith(kind)]
            for kind in (_THERE, _NOT_THERE)
        }
        share, limit = _told_apart(of[_THERE], of[_NOT_THERE])
        there, other = (_said(of[kind]) for kind in (_THERE, _NOT_THERE))
        print(
            f"{mechanism}, {what}, {tries} of each: there {there}; not there {other}; told apart {share:.1%} "
            f"(chance: {0.5 - limit:.1%} to {0.5 + limit:.1%}); load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def _try(port: int, number: int, mechanism: str, at: int, name: str) -> list[float]:
    """Seconds of each step."""
    peer = Peer(port, f"127.{number + 1}.{at >> 8}.{at & 255}")
    login = Login(peer)
    client = ScramClient(user=name, password="wrong", mechanism=mechanism)
    taken = []
    began = time.perf_counter()
    if mechanism == "PLAIN":
        login.init("PLAIN", plain(name, "wrong"))
    else:
        login.init(mechanism, client.first())
        challenge = login.challenge()
        taken.append(time.perf_counter() - began)
        proof = client.final(challenge)
        began = time.perf_counter()
        login.respond(proof)
    assert login.outcome().code == 1
    taken.append(time.perf_counter() - began)
    peer.close_socket()
    return taken


def _told_apart(there: list[float], other: list[float]) -> tuple[float, float]:
    """By ranks (Mann and Whitney): the share of pairs, and 1.96 standard deviations of it if there is no difference."""
    ranked = sorted([(each, True) for each in there] + [(each, False) for each in other])
    ranks = sum(rank for rank, (_, is_there) in enumerate(ranked, 1) if is_there)
    n, m = len(there), len(other)
    return (ranks - n * (n + 1) / 2) / (n * m), 1.96 * float((n + m + 1) / (12 * n * m)) ** 0.5


def _said(times: list[float]) -> str:
    deciles = statistics.quantiles(times, n=10)
    return f"p50 {1000 * statistics.median(times):.2f} ms, p10 {1000 * deciles[0]:.2f}, p90 {1000 * deciles[-1]:.2f}"


if __name__ == "__main__":
    main()
