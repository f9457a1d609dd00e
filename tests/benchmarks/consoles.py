"""``python -m tests.benchmarks.consoles``: what open consoles cost those who post meanwhile.

One service, under the same load in turns without and with open pages that are told live figures, one of which is loaded
again every five seconds. The cost is processor time of all processes of the service, and of PostgreSQL, for a message.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from urllib.parse import urlencode

from tests.acceptance import api
from tests.benchmarks import cells, generator
from tests.benchmarks.contenders import Conditions
from tests.benchmarks.paints import served


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.consoles", description=__doc__)
    parser.add_argument("--cells", default="post-1x8", help="shell patterns with commas (post-1x8)")
    parser.add_argument("--consoles", type=int, default=20, help="open pages (20)")
    parser.add_argument("--rounds", type=int, default=5, help="of each, in turns (5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured, a round (4)")
    asked = parser.parse_args()
    generator.build()
    given = Conditions(seconds=asked.seconds, stock_limit=0)
    with served() as (service, _, console):
        for cell in (each for each in cells.all_cells(None) if cells.matches(each.name, asked.cells)):
            used: dict[int, list[float]] = {0: [], asked.consoles: []}
            rates: dict[int, list[float]] = {0: [], asked.consoles: []}
            for number in range(asked.rounds):
                for open_ones, costs in used.items():
                    with _open(console, open_ones):
                        flags = cell.flags(f"{cell.name}-{open_ones}-{number}", 0)
                        load, cpu = service.under_load(cell.mode, *given.flags(), *flags)
                    costs.append(cpu.total * 1e6 / load.messages)
                    rates[open_ones].append(load.messages / load.seconds)
            none, some = (statistics.median(each) for each in used.values())
            before, beside = (statistics.median(each) for each in rates.values())
            print(
                f"{cell.name}: {none:.1f} us a message without, {some:.1f} us with {asked.consoles} consoles: "
                f"{some / none:.3f} times; rate {beside / before:.3f}"
            )


@contextlib.contextmanager
def _open(console: str, count: int) -> Iterator[None]:
    """So many pages, logged in and told what is new, while the block runs; one is loaded again every five seconds."""
    if not count:
        yield
        return
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    browser.open(f"{console}/login", urlencode({"token": api.OPERATOR, "to": "/console"}).encode()).read()
    over = threading.Event()
    readers = [threading.Thread(target=_follow, args=[browser, console, over]) for _ in range(count)]
    readers.append(threading.Thread(target=_load_again, args=[browser, console, over]))
    for each in readers:
        each.start()
    time.sleep(5)
    yield
    over.set()
    for each in readers:
        each.join()


def _follow(browser: urllib.request.OpenerDirector, console: str, over: threading.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(TimeoutError), browser.open(f"{console}/events", timeout=30) as events:
            while not over.is_set():
                events.readline()


def _load_again(browser: urllib.request.OpenerDirector, console: str, over: threading.Event) -> None:
    while not over.is_set():
        browser.open(console).read()
        over.wait(5)


if __name__ == "__main__":
    main()
