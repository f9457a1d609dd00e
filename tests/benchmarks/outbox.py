"""``python -m tests.benchmarks.outbox``: how long after its commit a message that an application posts in its own SQL
transaction arrives (rule X2).

Each transaction of an application writes a row of its own and posts once. Latency is from the call of commit to the
arrival at a waiting consumer, which is a process of its own; a post that is late for its time counts from when it was
called.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from store.embedded.running import running_url
from tests.benchmarks.applications import Load, Store, add_options, beside, load_of, run
from tests.fix_service import Service, running_service
from tests.wire.frames import Accepted
from tests.wire.peer import Peer

_ADDRESS = "outbox"
_POST = b"select coordinator.post(%s, %s)"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, 1000.0)
    load = load_of(parser.parse_args(arguments))
    with running_service() as service:
        service.cli("address", "add", _ADDRESS)
        late, answered, seconds = _measure(service, load)
    part, commit = statistics.quantiles(late, n=100), statistics.quantiles(answered, n=100)
    print(
        f"{len(late)} posts over {load.connections} connections, {len(late) / seconds:,.0f}/s: delivered after "
        f"p50 {part[49]:.1f} ms, p99 {part[98]:.1f} ms, at most {max(late):.1f} ms; "
        f"commit answered after p50 {commit[49]:.1f} ms, p99 {commit[98]:.1f} ms"
    )
    return 0


def _prepare(store: Store) -> None:
    store.execute("create temporary table sale (id int)")


def _post(store: Store, number: int) -> None:
    store.execute("insert into sale values (%s)", [number])
    store.execute(_POST, [_ADDRESS, str(number)])


def _measure(service: Service, load: Load) -> tuple[list[float], list[float], float]:
    """Milliseconds from the call of each commit to the delivery, and to the answer; and how long all took."""

    def consume(to_parent: Connection) -> None:
        peer = Peer(service.port)
        peer.open()
        consumer = peer.begin().receiver(_ADDRESS, credit=1000)
        to_parent.send(None)
        arrived: dict[int, float] = {}
        while len(arrived) < load.transactions:
            delivery = consumer.take()
            arrived[int(delivery.body)] = time.time()
            delivery.disposition(Accepted())
            peer.record.clear()
            if consumer.link_credit < 500:
                consumer.credit(500)
        to_parent.send(arrived)
        peer.close()

    child, told = beside(consume)
    told.recv()  # its link is there
    committed = run(running_url(service.data_dir), load, _prepare, _post)
    arrived: dict[int, float] = told.recv()
    child.join()
    late = [1000 * (arrived[each.number] - each.called) for each in committed]
    answered = [1000 * (each.answered - each.called) for each in committed]
    return late, answered, max(arrived.values()) - committed[0].due


if __name__ == "__main__":
    raise SystemExit(main())
