"""``python -m tests.benchmarks.schedule``: how late messages are that were to be delivered at a time (rule D7).

Lateness is from the time a message asked for to its arrival at a waiting consumer, both by this machine's clock.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from tests.fix_service import running_service
from tests.wire.frames import Accepted
from tests.wire.messages import MESSAGE_ANNOTATIONS, VALUE, section
from tests.wire.peer import Peer
from tests.wire.types import Long, Symbol

#: the first is due when all are posted
_POSTED_A_SECOND = 1500


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=5000, help="posted (5000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="over which they are due (10)")
    parser.add_argument("--workers", type=int, default=1, help="of the service (1)")
    asked = parser.parse_args(arguments)
    with running_service({"workers": str(asked.workers)}) as service:
        late = sorted(_lateness_ms(service.port, asked.messages, asked.seconds))
    part = statistics.quantiles(late, n=100)
    print(
        f"{len(late)} messages due over {asked.seconds:g} s, {asked.workers} worker(s): "
        f"late by p50 {part[49]:.0f} ms, p99 {part[98]:.0f} ms, at most {late[-1]:.0f} ms; at least {late[0]:.0f} ms"
    )
    return 0


def _lateness_ms(port: int, messages: int, seconds: float) -> list[float]:
    poster, taker = Peer(port), Peer(port)
    for peer in (poster, taker):
        peer.open()
    sender = poster.begin().sender("schedule")
    consumer = taker.begin().receiver("schedule", credit=1000)
    first = time.time() + 1 + messages / _POSTED_A_SECOND
    due = [int(1000 * (first + number * seconds / messages)) for number in range(messages)]
    for at in due:
        annotations = {Symbol("x-opt-delivery-time"): Long(at)}
        sender.post(section(MESSAGE_ANNOTATIONS, annotations) + section(VALUE, Long(at)), settled=True)
    late = []
    for _ in range(messages):
        delivery = consumer.take()
        late.append(1000 * time.time() - delivery.body)
        delivery.disposition(Accepted())
        if consumer.link_credit < 500:
            consumer.credit(500)
    for peer in (poster, taker):
        peer.close()
    return late


if __name__ == "__main__":
    raise SystemExit(main())
