"""The demonstration: orders with crashes in between, and a report that finds exactly what the crashes lost.

Starts the service on a free port with a store of its own, the consumer in JavaScript, and the order service in Python,
which is killed (-9) again and again: some times before the commit of its own row, which must leave nothing, and
``--crashes`` times between its own commit and the discharge, which leaves a row without its message. Then the orders
book is held against the coordinator. Exit status 0: the findings are exactly the planted crashes.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
REPOSITORY = EXAMPLES.parent

#: Seconds for what must happen, on a slow machine.
PATIENCE = 300.0


class DemoFailed(Exception):
    """A result is not what it must be."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def start_service(stack: ExitStack, folder: Path) -> tuple[str, Path]:
    """The service on a free port; its URL and its data folder. Its log goes to ``service.log``."""
    # Outside the repository: started by root, PostgreSQL runs as another user, who must be able to reach the folder.
    home = Path(tempfile.mkdtemp(prefix="coordinator-demo-"))
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    home.chmod(0o755)
    data_dir = home / "data"
    log = folder / "service.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "coordinator", "serve", "--log-format", "json"),
                *("--listen", "amqp://127.0.0.1:0", "--data-dir", str(data_dir)),
            ],
            cwd=REPOSITORY,
            stderr=stderr,
        )
    stack.callback(end, process)
    while process.poll() is None:
        for line in log.read_text().split("\n")[:-1]:
            if line.startswith("{") and (found := json.loads(line)).get("event") == "listening":
                return found["listen"][0], data_dir
        time.sleep(0.05)
    raise DemoFailed(f"the service did not start: see {log}")


def start_consumer(stack: ExitStack, url: str, inbox: Path) -> None:
    project = EXAMPLES / "consumer_javascript"
    if not (project / "node_modules").exists():
        say("npm ci")
        subprocess.run(["npm", "ci", "--silent"], cwd=project, check=True)
    stack.callback(end, subprocess.Popen(["node", "inbox.js", url, "orders", str(inbox)], cwd=project))


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask ``process`` to stop, and check that it does."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def order_service(database: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / "orders_python" / "orders.py"), "--database", database, *arguments]


def place_until_killed(database: str, url: str, orders: int, point: str, number: int) -> None:
    """Place orders; kill the service where it holds at ``point`` of order ``number``."""
    process = subprocess.Popen(
        order_service(database, "place", "--url", url, "--orders", str(orders), "--hold", f"{point}:{number}"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline().strip()
        process.kill()
        process.wait()
    if line != f"holding {point} {number}":
        raise DemoFailed(f"the order service was to hold {point} of order {number}; it said {line!r}")


def wait_for_inbox(inbox: Path, count: int) -> Counter[int]:
    """How often each order is in the inbox, once it has ``count`` lines."""
    deadline = time.monotonic() + PATIENCE
    while True:
        lines = inbox.read_text().splitlines() if inbox.exists() else []
        if len(lines) >= count or time.monotonic() > deadline:
            return Counter(json.loads(line)["order"] for line in lines)
        time.sleep(0.1)


def reconcile(data_dir: Path, book: Path, out: Path, *, findings: bool) -> list[dict[str, str]]:
    """Run ``coordinator reconcile``; return its findings."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "coordinator", "reconcile", "--data-dir", str(data_dir)),
            *("--book", str(book), "--out", str(out)),
        ],
        cwd=REPOSITORY,
        check=False,
    )
    if done.returncode != int(findings):
        raise DemoFailed(f"coordinator reconcile ended with {done.returncode}, expected {int(findings)}")
    with (out / "findings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def run(orders: int, crashes: int, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = random.Random(orders)
    planted = sorted(source.sample(range(1, orders), crashes + crashes // 2))
    harmless = set(source.sample(planted, crashes // 2))
    lost = set(planted) - harmless
    database = f"sqlite:///{folder / 'orders.db'}"
    inbox = folder / "inbox.ndjson"
    with ExitStack() as stack:
        url, data_dir = start_service(stack, folder)
        say(f"the service listens at {url}")
        start_consumer(stack, url, inbox)
        begun = time.monotonic()
        for number in planted:
            point = "before-commit" if number in harmless else "after-commit"
            place_until_killed(database, url, orders, point, number)
            say(f"order {number:>6}: order service killed {point.replace('-', ' its own ')}")
        subprocess.run(order_service(database, "place", "--url", url, "--orders", str(orders)), check=True)
        say(f"{orders} orders, {len(planted)} crashes, {time.monotonic() - begun:.0f} s")

        received = wait_for_inbox(inbox, orders - crashes)
        say(f"{len(received)} orders in the consumer's inbox")
        subprocess.run(order_service(database, "export", str(folder / "orders.csv")), check=True)
        book = Path(shutil.copy(EXAMPLES / "orders_book.toml", folder))
        found = reconcile(data_dir, book, folder / "report", findings=bool(lost))

    with (folder / "orders.csv").open(newline="") as file:
        rows = {int(row["id"]): row["txn_id"] for row in csv.DictReader(file)}
    expected = Counter({number: 1 for number in rows if number not in lost})
    check("the book has every order", sorted(rows) == list(range(1, orders + 1)))
    check("the inbox has every order once, but for the lost ones", received == expected)
    numbers = {txn_id: number for number, txn_id in rows.items()}
    kinds = Counter(finding["kind"] for finding in found)
    check("all findings are lost messages", set(kinds) <= {"lost-message"}, kinds)
    named = Counter(numbers.get(finding["txn_id"].replace("-", "")) for finding in found)
    check("the findings are exactly the crashes after the own commit", named == Counter(lost), named, sorted(lost))
    say(f"report: {folder / 'report' / 'report.html'}")


def check(what: str, holds: bool, *seen: object) -> None:
    say(f"{'yes' if holds else 'NO '}  {what}")
    if not holds:
        raise DemoFailed(f"{what}: {' against '.join(map(str, seen))}" if seen else what)


def main() -> int:
    parser = argparse.ArgumentParser(description="Orders with crashes in between, and the report that finds them.")
    parser.add_argument("--orders", type=int, default=10_000)
    parser.add_argument("--crashes", type=int, default=20, help="kills between the own commit and the discharge")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "demo", help="is emptied first")
    arguments = parser.parse_args()
    if arguments.crashes * 2 >= arguments.orders:
        parser.error("--crashes: more crashes than orders")
    try:
        run(arguments.orders, arguments.crashes, arguments.folder.resolve())
    except (DemoFailed, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
