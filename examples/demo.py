"""The demonstration: orders with crashes in between, once by best effort and once with check-back, and a report that
finds exactly what the crashes lost.

Starts the coordinator on a free port with a store of its own. For each of the two ways it starts the consumer in
JavaScript, and the order service in Python, which is killed (-9) again and again at the same orders: some times before
the commit of its own row, which must leave nothing, and ``--crashes`` times between its own commit and the discharge,
which by best effort leaves a row without its message. With check-back a checker answers for what the kills have left.
Then both books of orders are held against the coordinator. Exit status 0: the findings are exactly the planted crashes
of best effort, and none of check-back.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).resolve().parent
REPOSITORY = EXAMPLES.parent

#: Seconds for what must happen, on a slow machine.
PATIENCE = 300.0


class DemoFailed(Exception):
    """A result is not what it must be."""


class Way(NamedTuple):
    """Of placing orders. ``group``: the producer group that is asked about them; empty: none is."""

    name: str
    address: str
    group: str

    def file(self, folder: Path, suffix: str) -> Path:
        return folder / f"{self.address}{suffix}"

    def service(self, folder: Path, *arguments: str) -> list[str]:
        """The command of its order service."""
        program = [sys.executable, str(EXAMPLES / "orders_python" / "orders.py")]
        return [*program, "--database", f"sqlite:///{self.file(folder, '.db')}", *arguments]

    def place(self, folder: Path, url: str, orders: int, *more: str) -> list[str]:
        group = ["--producer-group", self.group] if self.group else []
        into = ["--url", url, "--address", self.address, "--orders", str(orders)]
        return self.service(folder, "place", *into, *group, *more)


WAYS = (Way("best effort", "orders", ""), Way("check-back", "orders-checked", "order-service"))


class Crashes(NamedTuple):
    """``at``: the orders at which the service is killed; ``harmless``: those of them before its own commit."""

    at: list[int]
    harmless: set[int]

    @property
    def lost(self) -> list[int]:
        return [number for number in self.at if number not in self.harmless]


class Seen(NamedTuple):
    """``book``: the txn-id of each order; ``inbox``: how often each reached the consumer; ``answers``: of the checker,
    how often each.
    """

    book: dict[int, str]
    inbox: Counter[int]
    answers: Counter[str]


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


def place_until_killed(command: list[str], point: str, number: int) -> None:
    """Place orders; kill the service where it holds at ``point`` of order ``number``."""
    process = subprocess.Popen([*command, "--hold", f"{point}:{number}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline().strip()
        process.kill()
        process.wait()
    if line != f"holding {point} {number}":
        raise DemoFailed(f"the order service was to hold {point} of order {number}; it said {line!r}")


def wait_for_lines(file: Path, count: int) -> list[str]:
    """Its lines, once there are ``count``."""
    deadline = time.monotonic() + PATIENCE
    while True:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count or time.monotonic() > deadline:
            return lines
        time.sleep(0.1)


def place_all(url: str, way: Way, folder: Path, orders: int, crashes: Crashes) -> Seen:
    """Place the orders, with a kill at each crash, and wait for all that can come."""
    inbox = way.file(folder, ".inbox")
    with ExitStack() as stack:
        start_consumer(stack, url, way.address, inbox)
        command = way.place(folder, url, orders)
        begun = time.monotonic()
        answers = None
        for number in crashes.at:
            point = "before-commit" if number in crashes.harmless else "after-commit"
            place_until_killed(command, point, number)
            say(f"{way.name}: order service killed {point.replace('-', ' its own ')} of order {number}")
            if way.group and answers is None:  # the book is there now
                answers = start_checker(stack, url, way, folder)
        subprocess.run(command, check=True)
        say(f"{way.name}: {orders} orders, {len(crashes.at)} crashes, {time.monotonic() - begun:.0f} s")
        said = wait_for_lines(answers, len(crashes.at)) if answers else []
        expected = orders - (0 if way.group else len(crashes.lost))
        received = Counter(json.loads(line)["order"] for line in wait_for_lines(inbox, expected))
    export = way.file(folder, ".csv")
    subprocess.run(way.service(folder, "export", str(export)), check=True)
    with export.open(newline="") as file:
        book = {int(row["id"]): row["txn_id"] for row in csv.DictReader(file)}
    return Seen(book, received, Counter(line.rpartition(": ")[2] for line in said))


def describe_book(way: Way, folder: Path) -> Path:
    """Write the description of its book; ``orders_book.toml`` is the one of best effort."""
    text = (EXAMPLES / "orders_book.toml").read_text()
    description = way.file(folder, ".toml")
    description.write_text(text.replace('"orders"', f'"{way.address}"').replace("orders.csv", f"{way.address}.csv"))
    return description


def reconcile(data_dir: Path, books: list[Path], out: Path, *, findings: bool) -> list[dict[str, str]]:
    """Run ``coordinator reconcile``; return its findings."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "coordinator", "reconcile", "--data-dir", str(data_dir), "--out", str(out)),
            *(argument for book in books for argument in ("--book", str(book))),
        ],
        cwd=REPOSITORY,
        check=False,
    )
    if done.returncode != int(findings):
        raise DemoFailed(f"coordinator reconcile ended with {done.returncode}, expected {int(findings)}")
    with (out / "findings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def plan(orders: int, crashes: int) -> Crashes:
    """The same for both ways, and in every run: so many after the service's own commit, half as many before it."""
    source = random.Random(orders)
    at = sorted(source.sample(range(1, orders), crashes + crashes // 2))
    return Crashes(at, set(source.sample(at, crashes // 2)))


def run(orders: int, count: int, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    crashes = plan(orders, count)
    with ExitStack() as stack:
        url, data_dir = start_service(stack, folder)
        say(f"the coordinator listens at {url}")
        install_consumer()
        with ThreadPoolExecutor() as threads:  # both at once: each waits for disks most of the time
            seen = dict(
                zip(WAYS, threads.map(lambda way: place_all(url, way, folder, orders, crashes), WAYS), strict=True)
            )
        books = [describe_book(way, folder) for way in WAYS]
        found = reconcile(data_dir, books, folder / "report", findings=bool(crashes.lost))

    kinds = Counter(finding["kind"] for finding in found)
    check("all findings are lost messages", set(kinds) <= {"lost-message"}, kinds)
    named = [finding["txn_id"].replace("-", "") for finding in found]
    lost = {
        way: sorted(n for n, txn in each.book.items() for _ in range(named.count(txn))) for way, each in seen.items()
    }
    check("all findings are of the two books", sum(map(len, lost.values())) == len(found), found)
    for way, each in seen.items():
        expected = [] if way.group else crashes.lost
        check(f"{way.name}: the book has every order", sorted(each.book) == list(range(1, orders + 1)))
        delivered = Counter(number for number in each.book if number not in expected)
        check(f"{way.name}: the consumer has every order once, but for {len(expected)}", each.inbox == delivered)
        check(f"{way.name}: the report finds {len(expected)} lost orders", lost[way] == expected, lost[way], expected)
        answers = Counter(commit=len(crashes.lost), rollback=len(crashes.harmless)) if way.group else Counter()
        check(f"{way.name}: {answers.total()} checks were answered", each.answers == answers, each.answers, answers)
    show(crashes, seen, lost)
    say(f"report: {folder / 'report' / 'report.html'}")


def show(crashes: Crashes, seen: dict[Way, Seen], lost: dict[Way, list[int]]) -> None:
    """Both ways beside each other."""
    rows = [
        ("", [way.name for way in seen]),
        ("orders in the service's own book", [len(each.book) for each in seen.values()]),
        ("kills (-9) of the service before its own commit", [len(crashes.harmless)] * len(seen)),
        ("kills between its own commit and the discharge", [len(crashes.lost)] * len(seen)),
        ("of them repaired by a checker's answer", [each.answers["commit"] for each in seen.values()]),
        ("orders that reached the consumer", [len(each.inbox) for each in seen.values()]),
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
