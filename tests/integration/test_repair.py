"""``coordinator repair``: what a report has found, repaired by the store's own decisions (rule R34)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Connection, delete, func, insert, select, update

from coordinator.repairs import proposal
from spark.finding import Finding
from store import traces, undecided
from store.database import connected
from store.ids import UuidV7
from store.repairs import Decide, Repair, Resume, State
from store.tables import consumer_group, entry, half, op, store_identity, txn
from tests.fix_command import PATIENCE_SECONDS, ROOT, Command, environment
from tests.fix_reports import RUN, SEEN_AT, finding, known, lost, write_report
from tests.fix_store import Rows

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.rule("R34")

#: Runs ``coordinator repair`` with the report of these findings.
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(command: Command, database: Connection, database_url: str, tmp_path: Path) -> Run:
    store_id = database.scalars(select(store_identity.c.id)).one()
    database.rollback()

    def repair(findings: Iterable[Finding], *more: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "report"
        if not folder.exists():
            write_report(folder, list(findings), store_id)
        return command("repair", str(folder), "--database-url", database_url, *more)

    return repair


def _reasons(rows: Rows) -> list[tuple[str, str | None]]:
    return [(row.decision, row.reason) for row in rows.ops()]


@pytest.mark.rule("R22")
def test_it_decides_as_the_book_says(rows: Rows, run: Run) -> None:
    """Dry by default; then each by an op that names the run; and run again nothing twice."""
    orders = rows.queue("orders")
    sent, not_sent = (rows.checkable(1, rows.address_of(orders), rows.address_of(orders)) for _ in range(2))
    plain, of_client = rows.txn(1), rows.txn(1)
    only_its_client = finding("undecided-but-known", "let its client commit it", txn_id=str(of_client))
    findings = [known(sent, "commit"), known(not_sent, "rollback"), known(plain, "rollback"), only_its_client]
    dry = run(findings)
    assert dry.returncode == 1, dry.stderr
    assert sorted(dry.stdout.splitlines()) == sorted(
        [
            f"would commit transaction {sent} (undecided-but-known)",
            f"would rollback transaction {not_sent} (undecided-but-known)",
            f"would rollback transaction {plain} (undecided-but-known)",
            "by hand: 1 undecided-but-known: let its client commit it",
        ]
    )
    assert rows.ops() == []
    done = run(findings, "--apply")
    assert f"done: transaction {sent} is decided now: commit" in done.stdout
    assert (done.returncode, done.stdout.count("done: ")) == (1, 3)
    assert sorted(_reasons(rows)) == [("commit", RUN), ("rollback", RUN), ("rollback", RUN)]
    assert len(rows.entries(orders)) == 2
    again = run(findings, "--apply")
    assert again.stdout.count("is decided already: ") == 3
    assert len(rows.ops()) == 3


def test_all_repaired_is_status_0(rows: Rows, run: Run) -> None:
    txn_id = rows.checkable(1, rows.address_of(rows.queue("orders")))
    done = run([known(txn_id, "commit")], "--apply", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    ((line,), by_hand) = said["repairs"], said["by_hand"]
    assert (said["applied"], line["state"], line["txn_id"], by_hand) == (True, "done", str(txn_id), [])
    assert run([]).returncode == 0


@pytest.mark.rule("R22")
def test_what_was_decided_otherwise_stands(rows: Rows, run: Run) -> None:
    sent, gone = rows.checkable(1, rows.address_of(rows.queue("orders"))), uuid4()
    undecided.roll_back(rows.connection, sent, "by hand")
    rows.connection.rollback()
    done = run([known(sent, "commit"), known(gone, "commit")], "--apply")
    assert done.returncode == 1
    assert f"left: transaction {sent} is decided already: rollback (by hand) at " in done.stdout
    assert f"left: transaction {gone} is not known any more" in done.stdout


@pytest.mark.parametrize(("decision", "state"), [("commit", State.DONE), ("rollback", State.CANNOT)])
def test_one_that_loses_the_race_says_so(rows: Rows, database_url: str, decision: str, state: State) -> None:
    """Another decides between the look and the decision."""
    txn_id = rows.checkable(1, rows.address_of(rows.queue("orders")))
    repair = Decide(txn_id, decision)
    assert repair.examine(rows.connection).state is State.CAN
    verdicts = []
    with psycopg.connect(database_url) as other, connected(database_url) as mine:
        other.execute("select coordinator.decide(%s, 'commit', 'first')", [txn_id])
        waits = threading.Thread(target=lambda: verdicts.append(repair.apply(mine, RUN)))
        waits.start()
        other.commit()
        waits.join()
    (verdict,) = verdicts
    assert (verdict.state, verdict.said.startswith("lost the race: ")) == (state, state is State.CANNOT)
    assert f"transaction {txn_id} is decided already: commit (first) at " in verdict.said
    assert _reasons(rows) == [("commit", "first")]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_it_goes_on_after_it_was_ended_in_the_middle(
    rows: Rows, run: Run, database_url: str, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """The four others were decided together; it waits for the third, which another locks, when the signal comes."""
    orders = rows.address_of(rows.queue("orders"))
    txns = [rows.checkable(1, orders) for _ in range(5)]
    assert run([known(each, "commit") for each in txns]).returncode == 1
    arguments = ("repair", str(tmp_path / "report"), "--apply", "--database-url", database_url)
    with psycopg.connect(database_url) as other:
        other.execute("select from coordinator.txn where id = %s for update", [txns[2]])
        process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", *arguments],
            cwd=ROOT,
            env=environment(PYTHONUNBUFFERED="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(2)]
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert [str(txns[place]) in line for place, line in enumerate(told)] == [True, True]
    assert (process.returncode, errors) == (
        status,
        "error: interrupted; run it again for the others\n" if status == 130 else "",
    )
    assert len(rows.ops()) == 4
    done = run([], "--apply")
    assert (done.returncode, done.stdout.count("is decided already"), done.stdout.count("is decided now")) == (0, 4, 1)
    assert _reasons(rows) == [("commit", RUN)] * 5


def test_a_commit_whose_address_is_gone_stays(rows: Rows) -> None:
    txn_id = rows.checkable(1, 999)
    verdict = Decide(txn_id, "commit").apply(rows.connection, RUN)
    assert (verdict.state, "an address that it posted to was removed" in verdict.said) == (State.CANNOT, True)
    plain = Decide(rows.txn(1), "commit")
    assert plain.examine(rows.connection).said.startswith("only its client can commit the plain transaction ")
    assert plain.apply(rows.connection, RUN).state is State.CANNOT


def test_checks_begin_anew_once(rows: Rows, run: Run) -> None:
    orders = rows.address_of(rows.queue("orders"))
    over, waiting, held = (rows.checkable(1, orders) for _ in range(3))
    decided, unlisted = rows.decision("commit"), uuid4()
    hour = func.now() - timedelta(hours=1)
    for txn_id, values in ((over, {"checks": 15}), (waiting, {"checks": 3}), (held, {})):
        due = None if txn_id == held else hour
        rows.connection.execute(update(txn).where(txn.c.id == txn_id).values(next_check_at=due, **values))
    rows.connection.commit()
    findings = [finding("overdue", txn_id=str(each)) for each in (over, waiting, held, decided, unlisted)]
    assert f"would check transaction {over} again, from the first check on" in run(findings).stdout
    done = run(findings, "--apply")
    assert done.returncode == 1
    assert f"done: transaction {over} is checked again" in done.stdout
    assert f"left: transaction {waiting} waits for a checker of its producer group shop: start one" in done.stdout
    assert f"left: transaction {held} is not to be checked" in done.stdout
    assert f"done: transaction {decided} is decided meanwhile: commit" in done.stdout
    assert f"left: transaction {unlisted} is listed nowhere" in done.stdout
    checks = {row.id: row.checks for row in rows.connection.execute(select(txn))}
    assert checks == {over: 0, waiting: 3, held: 0}
    rows.connection.rollback()
    later = Resume(over, rows.now() - timedelta(seconds=30))  # as of a report from before
    rows.connection.execute(update(txn).where(txn.c.id == over).values(checks=15, next_check_at=func.now()))
    rows.connection.commit()
    assert later.examine(rows.connection).said.endswith("was checked, or its checks resumed, meanwhile")
    assert later.apply(rows.connection, RUN).state is State.DONE
    assert rows.connection.scalar(select(txn.c.checks).where(txn.c.id == over)) == 15


def test_one_that_another_is_long_at_work_on_holds_up_no_other(rows: Rows, run: Run, database_url: str) -> None:
    """An application's commit (X3), or one that waits for its standby, holds the transaction."""
    orders = rows.address_of(rows.queue("orders"))
    held, free = (rows.checkable(1, orders) for _ in range(2))
    due = func.now() - timedelta(hours=1)
    rows.connection.execute(update(txn).values(checks=15, next_check_at=due))
    rows.connection.commit()
    with psycopg.connect(database_url) as application:
        application.execute("select from coordinator.txn where id = %s for update", [held])
        done = run([finding("overdue", txn_id=str(each)) for each in (held, free)], "--apply")
    first, second = done.stdout.splitlines()
    assert (done.returncode, second) == (
        1,
        f"done: transaction {free} is checked again, from the first check on (overdue)",
    )
    assert first.startswith(f"left: not check transaction {held} again, from the first check on: transaction {held} is")
    assert first.endswith(
        " is being decided by another, whose commit takes long: ask for its outcome later; run it again (overdue)"
    )
    checks = {row.id: row.checks for row in rows.connection.execute(select(txn))}
    assert checks == {held: 15, free: 0}
    rows.connection.rollback()


def _half(rows: Rows, group: int, **values: Any) -> int:
    """A committed message without an entry in any group."""
    half_id = rows.entry(group, **values)
    rows.connection.execute(delete(entry).where(entry.c.half_id == half_id))
    rows.connection.commit()
    return half_id


def test_a_lost_delivery_comes_again_once(rows: Rows, run: Run) -> None:
    orders, billing = rows.queue("orders"), rows.queue("orders", group="billing")
    rows.connection.execute(update(consumer_group).values(created_at=func.now() - timedelta(hours=1)))
    rows.connection.commit()
    away, ended, waiting = (_half(rows, orders) for _ in range(3))
    rows.connection.execute(insert(op).values(_op("accept", ended, orders)))
    rows.connection.execute(insert(entry).values(group_id=orders, id=waiting + 7, half_id=waiting))
    rows.connection.commit()
    findings = [lost(away), lost(away, "billing"), lost(ended), lost(waiting), lost(1), lost(away, "none")]
    assert run(findings).stdout.count("would deliver ") == 2
    assert len(rows.entries(orders)) == 1
    done = run(findings, "--apply")
    assert done.returncode == 1
    assert sorted(line.split(": ", 1)[1] for line in done.stdout.splitlines()) == sorted(
        [
            f"delivered again: message {away} to orders (lost-delivery)",
            f"delivered again: message {away} to orders::billing (lost-delivery)",
            f"came to its end: message {ended} to orders (lost-delivery)",
            f"waits, or is on its way: message {waiting} to orders (lost-delivery)",
            "the message is not there any more: message 1 to orders (lost-delivery)",
            f"the group is not there any more: message {away} to orders::none (lost-delivery)",
        ]
    )
    made = rows.connection.execute(select(entry).where(entry.c.half_id == away)).all()
    assert [(row.lease, row.attempts, row.acquired, row.available_at is not None) for row in made] == [
        (0, 0, True, True)
    ] * 2
    rows.connection.rollback()
    assert [each for each in _reasons(rows) if each[1] is not None] == [("release", RUN)] * 2
    run(findings, "--apply")
    assert (len(rows.entries(orders)), len(rows.entries(billing))) == (2, 1)


def _op(decision: str, half_id: int, group: int) -> dict[str, Any]:
    return {"id": UUID(bytes=UuidV7().next()), "decision": decision, "half_ids": [half_id], "group_ids": [group]}


def test_two_repairs_of_one_delivery_make_one_entry(rows: Rows, database_url: str) -> None:
    orders = rows.queue("orders")
    half_id = _half(rows, orders)
    repair = _repair(lost(half_id))
    states = []

    def apply() -> None:
        with connected(database_url) as connection:
            states.append(repair.apply(connection, RUN).state)

    threads = [threading.Thread(target=apply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states == [State.DONE] * 4
    assert (len(rows.entries(orders)), len(rows.ops())) == (1, 1)


def test_one_that_was_lost_after_it_was_taken_back_comes_again(rows: Rows) -> None:
    orders = rows.queue("orders")
    half_id = _half(rows, orders)
    repair = _repair(lost(half_id))
    for decision, state in (("accept", State.DONE), ("replay", State.CAN), ("expire", State.DONE)):
        rows.connection.execute(insert(op).values(_op(decision, half_id, orders)))
        rows.connection.commit()
        assert repair.examine(rows.connection).state is state


def test_one_that_ends_while_it_is_looked_for_does_not_come_again(
    rows: Rows, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer accepts it after ops were read, and before entries that have ids of their own are."""
    orders = rows.queue("orders")
    rows.connection.execute(update(consumer_group).values(created_at=func.now() - timedelta(hours=1)))
    half_id = _half(rows, orders)
    rows.connection.execute(insert(entry).values(group_id=orders, id=half_id + 7, half_id=half_id))
    rows.connection.commit()
    look_at_all = traces._Search._search_all
    accepted: list[object] = []

    def accept(search: traces._Search) -> None:
        if not accepted:
            with connected(database_url) as other:
                other.execute(delete(entry).where(entry.c.half_id == half_id))
                accepted.append(other.execute(insert(op).values(_op("accept", half_id, orders))))
                other.commit()
        look_at_all(search)

    monkeypatch.setattr(traces._Search, "_search_all", accept)
    assert _repair(lost(half_id)).apply(rows.connection, RUN).state is State.DONE
    assert (len(accepted), rows.entries(orders), _reasons(rows)) == (1, [], [("accept", None)])


def _repair(finding: Finding) -> Repair:
    found = proposal(vars(finding), SEEN_AT)
    assert found is not None
    return found


def test_it_comes_on_the_terms_that_it_was_posted_on(rows: Rows) -> None:
    """Priority, message group of a fifo address; not when its time is over, nor when it is not committed."""
    orders, fifo = rows.queue("orders"), rows.queue("lines", kind="fifo")
    high = b"\x00\x53\x70\xc0\x04\x02\x41\x50\x09" + b"\x00\x53\x75\xa0\x01x"
    dead = b"\x00\x53\x70\xc0\x05\x03\x41\x40\x52\x01" + b"\x00\x53\x75\xa0\x01x"
    halves = {}
    for name, message, group in (
        ("high", high, orders),
        ("dead", dead, orders),
        ("line", b"\x00\x53\x75\xa0\x01x", fifo),
    ):
        halves[name] = rows.half_ids.next()
        row = {"id": halves[name], "address_id": rows.address_of(group), "message": message}
        rows.connection.execute(insert(half).values(row))
    rows.connection.commit()
    assert _repair(lost(halves["high"])).apply(rows.connection, RUN).state is State.DONE
    assert _repair(lost(halves["line"], address="lines")).apply(rows.connection, RUN).state is State.DONE
    assert _repair(lost(halves["dead"])).examine(rows.connection).said.startswith("its time is over: ")
    made = {row.half_id: row for row in rows.connection.execute(select(entry))}
    rows.connection.rollback()
    assert (made[halves["high"]].priority, made[halves["line"]].message_group) == (9, halves["line"])
    (pending,) = rows.pending(rows.checkable(1, rows.address_of(orders)))
    assert _repair(lost(pending)).examine(rows.connection).said.startswith("its transaction is not committed: ")
    assert halves["dead"] not in made


@pytest.mark.parametrize(
    "finding",
    [
        finding("undecided-but-known", "coordinator transaction resolve x --commit ", txn_id="x"),
        finding(
            "undecided-but-known", f"coordinator transaction resolve {UUID(int=1)} --commit ", txn_id=str(UUID(int=2))
        ),
        finding("overdue", txn_id="x"),
        finding("overdue"),
        finding("lost-delivery", half_id=1, address=None, consumer_group=""),
        finding("lost-delivery", half_id=1, address="orders"),
        finding("double-decision", txn_id=str(UUID(int=1))),
    ],
    ids=["no txn-id", "of another", "overdue of none", "overdue", "of no address", "of no group", "two decisions"],
)
def test_what_the_store_cannot_do_is_left_to_a_person(finding: Finding) -> None:
    assert proposal(vars(finding), SEEN_AT) is None
