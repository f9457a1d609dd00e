"""The demonstration: orders with crashes in between, by best effort, with check-back and with one commit for both, and
a report that finds exactly what the crashes lost.

Starts the coordinator on a free port with a store of its own. For each of the three ways it starts a consumer, and the
order service in Python, which is killed (-9) again and again at the same orders: some times before the commit of its
own row, which must leave nothing, and ``--crashes`` times after it, which by best effort leaves a row without its
message. With check-back a checker answers for what the kills have left. With one commit nothing is left, as the row and
the message are in one SQL transaction; there the consumer is killed at the same orders, too, before its commit and
between it and the accept. Then the three books of orders are held against the coordinator. Exit status 0: the findings
are exactly the planted crashes of best effort, and no order was worked on twice.
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
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psycopg

from store.embedded.running import running_url

EXAMPLES = Path(__file__).resolve().parent
REPOSITORY = EXAMPLES.parent

#: Seconds for what must happen, on a slow machine.
PATIENCE = 300.0


class DemoFailed(Exception):
    """A result is not what it must be."""


class Way(NamedTuple):
    """Of placing orders. ``program``: its order service; ``group``: the producer group that is asked about them; empty:
    none is.
    """

    name: str
    address: str
    program: str
    group: str = ""

    def file(self, folder: Path, suffix: str) -> Path:
        return folder / f"{self.address}{suffix}"


BEST_EFFORT = Way("best effort", "orders", "orders_python")
CHECK_BACK = Way("check-back", "orders-checked", "orders_python", "order-service")
ONE_COMMIT = Way("one commit", "orders-one-commit", "orders_one_commit")


class Coordinator(NamedTuple):
    """A running one. ``url``: for AMQP."""

    url: str
    data_dir: Path

    @property
    def database(self) -> str:
        """The URL of its store."""
        return running_url(self.data_dir)

    def command(self, *arguments: str) -> int:
        """Run ``coordinator`` with ``arguments`` on its store; the exit status."""
        program = [sys.executable, "-m", "coordinator", *arguments, "--data-dir", str(self.data_dir)]
        return subprocess.run(program, cwd=REPOSITORY, check=False).returncode


class Crashes(NamedTuple):
    """``at``: the orders at which the service is killed; ``harmless``: those of them before its own commit."""

    at: list[int]
    harmless: set[int]

    def point(self, number: int) -> str:
        return "before-commit" if number in self.harmless else "after-commit"

    @property
    def unlucky(self) -> list[int]:
        """Those after its own commit."""
        return [number for number in self.at if number not in self.harmless]


class Seen(NamedTuple):
    """``book``: the txn-id of each order; ``inbox``: how often the consumer has done the work of each; ``answers``: of
    the checker, how often each; ``again``: messages that came to a consumer that had done their work.
    """

    book: dict[int, str]
    inbox: Counter[int]
    answers: Counter[str]
    again: int


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def start_coordinator(stack: ExitStack, folder: Path) -> Coordinator:
    """The service on a free port. Its log goes to ``service.log``."""
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
                return Coordinator(found["listen"][0], data_dir)
        time.sleep(0.05)
    raise DemoFailed(f"the service did not start: see {log}")


def install_consumer() -> None:
    project = EXAMPLES / "consumer_javascript"
    if not (project / "node_modules").exists():
        say("npm ci")
        subprocess.run(["npm", "ci", "--silent"], cwd=project, check=True)


def start_consumer(stack: ExitStack, url: str, address: str, inbox: Path) -> None:
    project = EXAMPLES / "consumer_javascript"
    stack.callback(end, subprocess.Popen(["node", "inbox.js", url, address, str(inbox)], cwd=project))


def start_checker(stack: ExitStack, url: str, way: Way, folder: Path) -> Path:
    """The file of its answers, a line each."""
    answers = way.file(folder, ".answers")
    program = [sys.executable, str(EXAMPLES / "orders_checked" / "orders.py"), "--url", url, "--group", way.group]
    with answers.open("w") as output:
        command = [*program, "--book", str(way.file(folder, ".db")), "answer"]
        stack.callback(end, subprocess.Popen(command, stdout=output))
    return answers


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask ``process`` to stop, and check that it does."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_at(command: list[str], point: str, number: int) -> list[str]:
    """Start ``command``, and kill it where it holds at ``point`` of order ``number``; what it said before."""
    process = subprocess.Popen([*command, "--hold", f"{point}:{number}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = []
    late = threading.Timer(PATIENCE, process.kill)
    late.start()
    with process.stdout:
        for line in process.stdout:
            if line.strip() == f"holding {point} {number}":
                process.kill()
                late.cancel()
                process.wait()
                return said
            said.append(line.strip())
    late.cancel()
    raise DemoFailed(f"{command[1]} was to hold {point} of order {number}; it ended with {process.wait()}: {said}")


def wait_for(read: Callable[[], list[str]], count: int) -> list[str]:
    """What ``read`` returns, once there are ``count``, or it is too late."""
    deadline = time.monotonic() + PATIENCE
    while len(found := read()) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def order_service(way: Way, coordinator: Coordinator, folder: Path) -> list[str]:
    """The command of it, with its database."""
    database = coordinator.database if way == ONE_COMMIT else f"sqlite:///{way.file(folder, '.db')}"
    return [sys.executable, str(EXAMPLES / way.program / "orders.py"), "--database", database]


def place_all(way: Way, coordinator: Coordinator, folder: Path, orders: int, crashes: Crashes) -> None:
    """Place the orders, with a kill at each crash."""
    command = [*order_service(way, coordinator, folder), "place", "--address", way.address, "--orders", str(orders)]
    if way != ONE_COMMIT:
        command += ["--url", coordinator.url]
    if way.group:
        command += ["--producer-group", way.group]
    begun = time.monotonic()
    for number in crashes.at:
        point = crashes.point(number)
        kill_at(command, point, number)
        say(f"{way.name}: order service killed {point.replace('-', ' its own ')} of order {number}")
    subprocess.run(command, check=True)
    say(f"{way.name}: {orders} orders, {len(crashes.at)} crashes, {time.monotonic() - begun:.0f} s")


def export_book(way: Way, coordinator: Coordinator, folder: Path) -> dict[int, str]:
    """Have the order service export its book; the txn-id of each order, where it knows one."""
    export = way.file(folder, ".csv")
    subprocess.run([*order_service(way, coordinator, folder), "export", str(export)], check=True)
    with export.open(newline="") as file:
        return {int(row["id"]): row.get("txn_id", "") for row in csv.DictReader(file)}


def in_two_steps(way: Way, coordinator: Coordinator, folder: Path, orders: int, crashes: Crashes) -> Seen:
    """Orders by best effort or with check-back, and what has come of them."""
    inbox = way.file(folder, ".inbox")
    said = []
    with ExitStack() as stack:
        start_consumer(stack, coordinator.url, way.address, inbox)
        if way.group:
            export_book(way, coordinator, folder)  # makes its tables: the checker opens the same database
            answers = start_checker(stack, coordinator.url, way, folder)
        place_all(way, coordinator, folder, orders, crashes)
        if way.group:
            said = wait_for(lambda: lines_of(answers), len(crashes.at))
        expected = orders - (0 if way.group else len(crashes.unlucky))
        received = Counter(json.loads(line)["order"] for line in wait_for(lambda: lines_of(inbox), expected))
    answered = Counter(line.rpartition(": ")[2] for line in said)
    return Seen(export_book(way, coordinator, folder), received, answered, 0)


def in_one_commit(way: Way, coordinator: Coordinator, folder: Path, orders: int, crashes: Crashes) -> Seen:
    """Orders in the PostgreSQL of the store, with a consumer there, which is killed at the same orders."""
    if coordinator.command("address", "add", way.address):
        raise DemoFailed(f"the address {way.address} could not be made")
    program = [sys.executable, str(EXAMPLES / way.program / "shipping.py"), "--database", coordinator.database]
    command = [*program, "--url", coordinator.url, "--address", way.address]
    last = way.file(folder, ".shipping")
    with ExitStack() as stack, ThreadPoolExecutor(1) as placing:
        placed = placing.submit(place_all, way, coordinator, folder, orders, crashes)
        again = []
        for number in crashes.at:
            point = crashes.point(number)
            again += kill_at(command, point, number)
            say(f"{way.name}: consumer killed {point.replace('-', ' its own ')} of order {number}")
        with last.open("w") as output:
            stack.callback(end, subprocess.Popen(command, stdout=output))
        placed.result()
        with psycopg.connect(coordinator.database, autocommit=True) as store:
            read = "select order_id::text from shipping.shipments"
            shipped = wait_for(lambda: [row[0] for row in store.execute(read)], orders)
    again += lines_of(last)
    return Seen(export_book(way, coordinator, folder), Counter(map(int, shipped)), Counter(), len(again))


WAYS = {BEST_EFFORT: in_two_steps, CHECK_BACK: in_two_steps, ONE_COMMIT: in_one_commit}


def describe_book(way: Way, folder: Path) -> Path:
    """Write the description of its book; ``orders_book.toml`` is the one of best effort."""
    own = EXAMPLES / way.program / "orders_book.toml"
    text = (own if own.exists() else EXAMPLES / "orders_book.toml").read_text()
    description = way.file(folder, ".toml")
    description.write_text(text.replace('"orders"', f'"{way.address}"').replace("orders.csv", f"{way.address}.csv"))
    return description


def reconcile(coordinator: Coordinator, books: list[Path], out: Path, *, findings: bool) -> list[dict[str, str]]:
    """Run ``coordinator reconcile``; return its findings."""
    given = [argument for book in books for argument in ("--book", str(book))]
    status = coordinator.command("reconcile", "--out", str(out), *given)
    if status != int(findings):
        raise DemoFailed(f"coordinator reconcile ended with {status}, expected {int(findings)}")
    with (out / "findings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def plan(orders: int, crashes: int) -> Crashes:
    """The same for all ways, and in every run: so many after the service's own commit, half as many before it."""
    source = random.Random(orders)
    at = sorted(source.sample(range(1, orders), crashes + crashes // 2))
    return Crashes(at, set(source.sample(at, crashes // 2)))


def run(orders: int, count: int, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    crashes = plan(orders, count)
    with ExitStack() as stack:
        coordinator = start_coordinator(stack, folder)
        say(f"the coordinator listens at {coordinator.url}")
        install_consumer()
        with ThreadPoolExecutor() as threads:  # all at once: each waits for disks most of the time
            work = {way: threads.submit(go, way, coordinator, folder, orders, crashes) for way, go in WAYS.items()}
            seen = {way: each.result() for way, each in work.items()}
        books = [describe_book(way, folder) for way in WAYS]
        found = reconcile(coordinator, books, folder / "report", findings=bool(crashes.unlucky))
    judge(orders, crashes, seen, found)
    say(f"report: {folder / 'report' / 'report.html'}")


def judge(orders: int, crashes: Crashes, seen: dict[Way, Seen], found: list[dict[str, str]]) -> None:
    """Check what has come against what was planted, and show it."""
    kinds = Counter(finding["kind"] for finding in found)
    check("all findings are lost messages", set(kinds) <= {"lost-message"}, kinds)
    named = [finding["txn_id"].replace("-", "") for finding in found]
    lost = {
        way: sorted(n for n, txn in each.book.items() if txn for _ in range(named.count(txn)))
        for way, each in seen.items()
    }
    check("all findings are of the books with txn-ids", sum(map(len, lost.values())) == len(found), found)
    for way, each in seen.items():
        expected = crashes.unlucky if way == BEST_EFFORT else []
        check(f"{way.name}: the book has every order", sorted(each.book) == list(range(1, orders + 1)))
        done = Counter(number for number in each.book if number not in expected)
        check(f"{way.name}: the consumer has every order once, but for {len(expected)}", each.inbox == done)
        check(f"{way.name}: the report finds {len(expected)} lost orders", lost[way] == expected, lost[way], expected)
        answers = Counter(commit=len(crashes.unlucky), rollback=len(crashes.harmless)) if way.group else Counter()
        check(f"{way.name}: {answers.total()} checks were answered", each.answers == answers, each.answers, answers)
    again = seen[ONE_COMMIT].again
    check(f"{ONE_COMMIT.name}: messages came again after their work", again >= len(crashes.unlucky), again)
    show(crashes, seen, lost)


def show(crashes: Crashes, seen: dict[Way, Seen], lost: dict[Way, list[int]]) -> None:
    """The ways beside each other."""
    killed = {way: crashes if way == ONE_COMMIT else Crashes([], set()) for way in seen}
    rows = [
        ("", [way.name for way in seen]),
        ("orders in the service's own book", [len(each.book) for each in seen.values()]),
        ("kills (-9) of the service before its own commit", [len(crashes.harmless)] * len(seen)),
        ("kills of the service after its own commit", [len(crashes.unlucky)] * len(seen)),
        ("of them repaired by a checker's answer", [each.answers["commit"] for each in seen.values()]),
        ("kills of the consumer before its own commit", [len(each.harmless) for each in killed.values()]),
        ("kills of the consumer between commit and accept", [len(each.unlucky) for each in killed.values()]),
        ("messages that came again after their work", [each.again for each in seen.values()]),
        ("orders that reached the consumer", [len(each.inbox) for each in seen.values()]),
        ("orders whose work was done twice", [sum(n > 1 for n in each.inbox.values()) for each in seen.values()]),
        ("lost messages that the report finds", [len(lost[way]) for way in seen]),
    ]
    for title, values in rows:
        print(f"{title:50}" + "".join(f"{value!s:>14}" for value in values), flush=True)


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
