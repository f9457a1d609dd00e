"""``python -m tests.benchmarks.paints``: when Chromium paints each page of the console first, in a large store.

The store is that of ``tests.benchmarks.reconciliation``, with groups of one message each beside it. ``--data-dir`` is
kept: what it has is not made again. Of each page a table has how long the service took for it, and when there was
something to see, the slower half of the loads left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
from playwright.sync_api import Page

from store.embedded.running import running_url
from store.ids import id_at
from store.tables import SCHEMA
from tests.acceptance import api
from tests.benchmarks.generator import FOLDER
from tests.benchmarks.planted_books import message_of
from tests.benchmarks.reconciliation import fill
from tests.benchmarks.servers import Server, start_service
from tests.fix_browser import chromium
from tests.fix_service import variable
from tests.fix_store_rows import NOW

_PAGES = (
    ("overview", ""),
    *((name, f"/{name}") for name in ("addresses", "groups", "transactions", "dead-letters", "schedules")),
    *((name, f"/{name}") for name in ("connections", "instances", "runs", "audit", "users", "permissions", "acts")),
)
_TIMES = """() => {
  const [page] = performance.getEntriesByType("navigation");
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  return [page.responseStart - page.requestStart, paint.startTime];
}"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.paints", description=__doc__)
    parser.add_argument("--halves", type=int, default=10_000_000, help="of the store, where it is made (10000000)")
    parser.add_argument("--groups", type=int, default=10_000, help="beside them, of a message each (10000)")
    parser.add_argument("--loads", type=int, default=7, help="of each page (7)")
    parser.add_argument("--data-dir", type=Path, help="the folder of the embedded database, to be kept (none)")
    asked = parser.parse_args(arguments)
    with served(asked.data_dir) as here, chromium() as browser:
        places = [*_PAGES, *_one_of_each(running_url(here.data_dir), asked.halves, asked.groups)]
        page = browser.new_page()
        page.goto(here.console)
        page.keyboard.type(api.OPERATOR)
        page.keyboard.press("Enter")
        page.wait_for_selector("nav")
        print("| page | the service, ms | first paint, ms |\n|---|---|---|")
        for name, path in places:
            times = [_load(page, here.console + path) for _ in range(asked.loads)]
            answered, painted = (statistics.median_low(each) for each in zip(*times, strict=True))
            print(f"| {name} | {answered:.0f} | {painted:.0f} |", flush=True)


class Served(NamedTuple):
    """A service with the console; ``console``: the URL of its pages."""

    server: Server
    data_dir: Path
    console: str


@contextmanager
def served(data_dir: Path | None = None) -> Iterator[Served]:
    """A service that knows the operator of :mod:`tests.acceptance.api`. ``data_dir``: None: one that is removed."""
    with tempfile.TemporaryDirectory(prefix="coordinator-console-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        for name, value in api.settings(folder).items():
            os.environ[variable(name)] = value
        FOLDER.mkdir(parents=True, exist_ok=True)
        log, data_dir = FOLDER / "console.log", data_dir or folder / "data"
        with start_service(data_dir=data_dir, log=log, arguments=[]) as server:
            yield Served(server, data_dir, f"{_place_of(log)}/console")


def _place_of(log: Path) -> str:
    (line,) = (line for line in log.read_text(encoding="utf-8").splitlines() if '"event": "metrics"' in line)
    return str(json.loads(line)["listen"][0])


def _load(page: Page, url: str) -> list[float]:
    page.goto(url)
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
    times: list[float] = page.evaluate(_TIMES)
    return times


def _one_of_each(url: str, halves: int, groups: int) -> list[tuple[str, str]]:
    """An address, a transaction, a message and a search in the store, which is filled if it is empty."""
    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as store:
        if store.execute(f"select from {SCHEMA}.half limit 1".encode()).rowcount == 0:
            fill(f"{url}{'&' if '?' in url else '?'}options=-csynchronous_commit%3Doff", halves)
            _add_groups(store, groups)
        found = f"select id, txn_id, address_id from {SCHEMA}.half order by id offset 1000 limit 1"
        row: Any = store.execute(found.encode()).fetchone()
        name: Any = store.execute(f"select name from {SCHEMA}.address where id = %s".encode(), [row[2]]).fetchone()
    return [
        ("an address", f"/address?name={quote(name[0])}"),
        ("its messages", f"/browse?name={quote(name[0])}"),
        ("a transaction", f"/transaction?id={row[1]}"),
        ("a message", f"/message?id={row[0]}"),
    ]


def _add_groups(store: psycopg.Connection[Any], groups: int) -> None:
    names = f"select 'shop-' || i, now() from generate_series(1, {groups}) i"
    store.execute(f"insert into {SCHEMA}.address (name, created_at) {names}".encode())
    first, message = id_at(NOW), message_of("lpad(id::text, 12, '0')")
    of_shops = f"select id, created_at from {SCHEMA}.address where name like 'shop-%'"
    store.execute(f"insert into {SCHEMA}.consumer_group (address_id, created_at) {of_shops}".encode())
    store.execute(
        f"insert into {SCHEMA}.half (id, address_id, message, posted_at)"
        f" select {first} + id, id, {message}, now() from ({of_shops}) shop".encode()
    )
    store.execute(
        f"insert into {SCHEMA}.entry (group_id, id, half_id)"
        f" select id, {first} + address_id, {first} + address_id from {SCHEMA}.consumer_group"
        f" where address_id in (select id from ({of_shops}) shop)".encode()
    )
    store.execute(b"vacuum analyze")


if __name__ == "__main__":
    main()
