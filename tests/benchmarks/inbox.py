"""``python -m tests.benchmarks.inbox``: how long an application takes to learn whether a message comes for the first
time (rule X4).

Each transaction asks ``coordinator.first_time`` for ``--messages`` messages, each in a statement of its own, of which
every tenth has come before, and commits. Latency is of a whole transaction, from its first statement to the answer to
its commit: of one that is late for its time from when it was to begin.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from store.embedded.running import running_url
from tests.benchmarks.applications import Store, add_options, load_of, run
from tests.fix_service import running_service

_FIRST_TIME = b"select coordinator.first_time('benchmark', %s)"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, 500.0)
    parser.add_argument("--messages", type=int, default=10, help="asked for in one transaction (10)")
    asked = parser.parse_args(arguments)
    load, messages = load_of(asked), asked.messages

    def step(store: Store, number: int) -> None:
        for each in range(number * messages, (number + 1) * messages):
            before = each >= load.connections * messages and each % 10 == 0
            store.execute(_FIRST_TIME, [f"m-{each - load.connections * messages if before else each}"])

    with running_service() as service:
        done = run(running_url(service.data_dir), load, lambda _: None, step)
    took = [1000 * (each.answered - each.due) for each in done]
    part = statistics.quantiles(took, n=100)
    seconds = max(each.answered for each in done) - done[0].due
    print(
        f"{len(done) * messages} first times, {messages} a transaction, over {load.connections} connections, "
        f"{len(done) * messages / seconds:,.0f}/s: a transaction took p50 {part[49]:.1f} ms, p99 {part[98]:.1f} ms, "
        f"at most {max(took):.1f} ms"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
