"""``python -m tests.benchmarks.outbox``: how long after its commit a message that an application posts in its own SQL
transaction arrives (rule X2).

Each transaction of an application writes a row of its own and posts once. Latency is from the call of commit to the
arrival at a waiting consumer; a post that is late for its time counts from when it was called.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg

from store.embedded.running import running_url
from tests.fix_service import Service, running_service
from tests.wire.frames import Accepted
from tests.wire.peer import Peer

_ADDRESS = "outbox"
_POST = b"select coordinator.post(%s, %s)"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000.0, help="posts a second, over all connections (1000)")
    parser.add_argument("--connections", type=int, default=50, help="of applications (50)")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured (10)")
    asked = parser.parse_args(arguments)
    with running_service() as service:
        service.cli("address", "add", _ADDRESS)
        late, seconds = _measure(service, asked.rate, asked.connections, asked.seconds)
    part = statistics.quantiles(late, n=100)
    print(
        f"{len(late)} posts over {asked.connections} connections, {len(late) / seconds:,.0f}/s: delivered after "
        f"p50 {part[49]:.1f} ms, p99 {part[98]:.1f} ms, at most {max(late):.1f} ms"
    )
    return 0


def _measure(service: Service, rate: float, connections: int, seconds: float) -> tuple[list[float], float]:
    """Milliseconds of each, and how long all took."""
    each = max(1, int(rate * seconds / connections))
    committed = [0.0] * (each * connections)
    begin = time.time() + 1

    def apply(name: int) -> None:
        with psycopg.connect(running_url(service.data_dir)) as store:
            store.execute("create temporary table sale (id int)")
            store.commit()
            for count in range(each):
                number = count * connections + name
                time.sleep(max(0.0, begin + number / rate - time.time()))
                store.execute("insert into sale values (%s)", [number])
                store.execute(_POST, [_ADDRESS, str(number)])
                committed[number] = time.time()
                store.commit()

    peer = Peer(service.port)
    peer.open()
    consumer = peer.begin().receiver(_ADDRESS, credit=1000)
    arrived: dict[int, float] = {}
    with ThreadPoolExecutor(connections) as pool:
        work = [pool.submit(apply, name) for name in range(connections)]
        while len(arrived) < len(committed):
            delivery = consumer.take()
            arrived[int(delivery.body)] = time.time()
            delivery.disposition(Accepted())
            peer.record.clear()
            if consumer.link_credit < 500:
                consumer.credit(500)
        for done in work:
            done.result()
    peer.close()
    late = [1000 * (arrived[number] - at) for number, at in enumerate(committed)]
    return late, max(arrived.values()) - begin


if __name__ == "__main__":
    raise SystemExit(main())
