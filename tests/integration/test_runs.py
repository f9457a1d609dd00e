"""Runs of a reconciliation in the store: repeated, stopped, too many, and as a person reads them (rule R32)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text

from spark.kinds import KINDS
from store import runs
from store.database import connected
from store.errors import StoreError
from tests.fix_reports import SEEN_AT, finding, lost
from tests.fix_runs import a_run, store_run
from tests.fix_store import until_it_waits

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tests.fix_command import Command

pytestmark = pytest.mark.rule("R32")

LATER = SEEN_AT + timedelta(hours=1)


def _kept(connection: Connection) -> list[tuple[Any, ...]]:
    """What a person reads, in order."""
    found = connection.execute(
        text("select run, number, kind, half_id, consumer_group from coordinator.findings order by 1, 2")
    ).all()
    connection.rollback()
    return [tuple(row) for row in found]


def test_a_run_is_read_as_it_was_stored(database: Connection) -> None:
    txn_id = uuid4()
    odd = finding("lost-message", "post\tit\nagain", txn_id=str(txn_id), address="a\\b")
    odd = type(odd)(**{**asdict(odd), "detail": "key \0, \\N", "severity": "note"})
    number = store_run(database, [lost(7, "billing"), odd])
    (found,) = runs.runs(database)
    assert (found.id, found.since, found.until, found.books) == (number, None, None, ())
    assert (found.seen_at, found.version, found.findings) == (SEEN_AT, "1.2.3", 2)
    assert found.counts == {("lost-delivery", "error"): 1, ("lost-message", "note"): 1}
    one, two = runs.findings(database, found)
    assert (one.number, one.kind, one.half_id, one.address, one.consumer_group) == (
        *(1, "lost-delivery", 7, "orders", "billing"),
    )
    assert (one.txn_id, one.detail, one.suggested_repair) == (None, "d", "look")
    assert (two.number, two.txn_id, two.half_id, two.consumer_group) == (2, txn_id, None, None)
    # PostgreSQL's text has no NUL
    assert (two.detail, two.address, two.suggested_repair) == (
        "key \N{REPLACEMENT CHARACTER}, \\N",
        "a\\b",
        odd.suggested_repair,
    )
    assert [each.number for each in runs.findings(database, found, kinds=["lost-message"])] == [2]


def test_a_run_repeated_has_its_last_report(database: Connection) -> None:
    number = store_run(database, [lost(1)], report=b"first")
    assert runs.report_of(database, number) == b"first"
    store_run(database, [lost(1)], a_run(LATER), report=b"second")
    assert runs.report_of(database, number) == b"second"


def test_a_run_repeated_leaves_no_doubles(database: Connection) -> None:
    """The same period and books: findings that are there no longer go, and others come; in any other order of books."""
    number = store_run(database, [lost(1), lost(2), lost(3)], a_run(books=("shop", "inbox")))
    assert store_run(database, [lost(1), lost(2), lost(3)], a_run(books=("inbox", "shop"))) == number
    assert _kept(database) == [(number, each, "lost-delivery", each, "") for each in (1, 2, 3)]
    assert store_run(database, [lost(1), lost(3, "new")], a_run(LATER, books=("shop", "inbox"))) == number
    assert _kept(database) == [(number, 1, "lost-delivery", 1, ""), (number, 2, "lost-delivery", 3, "new")]
    (found,) = runs.runs(database)
    assert (found.seen_at, found.findings) == (LATER, 2)


@pytest.mark.parametrize(
    "other",
    [{"since": SEEN_AT - timedelta(days=1)}, {"until": SEEN_AT}, {"books": ("shop",)}],
    ids=["since", "until", "books"],
)
def test_a_run_over_another_period_is_another(database: Connection, other: dict[str, Any]) -> None:
    first, second = store_run(database, [lost(1)]), store_run(database, [lost(1)], a_run(**other))
    assert first != second
    assert [row[0] for row in _kept(database)] == [first, second]
    assert store_run(database, [], a_run(LATER, **other)) == second
    assert [row[0] for row in _kept(database)] == [first]


def test_what_read_the_store_later_stands(database: Connection) -> None:
    number = store_run(database, [lost(1)], a_run(LATER))
    with pytest.raises(runs.Superseded, match="read the store later"):
        store_run(database, [lost(2), lost(3)])
    assert _kept(database) == [(number, 1, "lost-delivery", 1, "")]
    assert [each.seen_at for each in runs.runs(database)] == [LATER]


def test_of_two_at_once_the_later_stands(database: Connection, database_url: str) -> None:
    """The earlier waits for the later, which has not committed; then it finds it."""
    lines: list[str] = []
    with psycopg.connect(database_url) as other:
        other.execute(
            "insert into coordinator.run (seen_at, books, version, counts) values (%s, '{}', '1', '[]')", [LATER]
        )

        def earlier() -> None:
            with connected(database_url, application_name="earlier") as mine, pytest.raises(runs.Superseded) as refused:
                store_run(mine, [lost(1)])
            lines.append(str(refused.value))

        thread = threading.Thread(target=earlier)
        thread.start()
        until_it_waits(database, "earlier")
        other.commit()
        thread.join()
    assert (len(lines), len(runs.runs(database)), _kept(database)) == (1, 1, [])


def test_one_that_is_stopped_leaves_all_as_it_was(database: Connection, database_url: str) -> None:
    """Its session ends in the middle of its findings, as with kill -9; and its findings end in an error."""
    number = store_run(database, [lost(1)])

    def killed(connection: Connection) -> Iterator[dict[str, Any]]:
        yield asdict(lost(5))
        pid = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        database.execute(text("select pg_terminate_backend(:pid, 60000)"), {"pid": pid})
        database.commit()
        for half_id in range(100_000):
            yield asdict(lost(half_id))

    with pytest.raises(StoreError, match=r"lost|closing"), connected(database_url) as mine:
        runs.store(mine, a_run(LATER), killed(mine))

    def broken() -> Iterator[dict[str, Any]]:
        yield asdict(lost(5))
        raise OSError("the file ends here")

    with pytest.raises(OSError, match="ends here"), connected(database_url) as mine:
        runs.store(mine, a_run(LATER), broken())
    assert _kept(database) == [(number, 1, "lost-delivery", 1, "")]
    assert [each.seen_at for each in runs.runs(database)] == [SEEN_AT]


def test_the_oldest_runs_go(database: Connection) -> None:
    numbers = [
        store_run(database, [lost(hour)], a_run(SEEN_AT + timedelta(hours=hour), books=(str(hour),)), kept=3)
        for hour in (5, 1, 2, 3, 4)
    ]
    assert [each.id for each in runs.runs(database)] == [numbers[place] for place in (0, 4, 3)]
    assert {row[0] for row in _kept(database)} == {numbers[place] for place in (0, 4, 3)}
    last = runs.last(database)
    assert last is not None
    assert last.id == numbers[0]


def test_a_large_run_is_taken_and_given_in_pieces(database: Connection) -> None:
    """Of 100,000 findings no more than a page is held, on either side."""
    many = 100_000
    held: list[int] = []

    def found() -> Iterator[dict[str, Any]]:
        one = asdict(lost(1))
        for number in range(many):
            yield one | {"half_id": number}

    number = runs.store(database, a_run(), found())
    stored = runs.run_of(database, number)
    assert stored is not None
    given = runs.findings(database, stored)
    held.append(next(given).number)
    # a page is read, and no cursor or transaction is open
    assert not database.in_transaction()
    held += [each.number for each in given]
    assert (len(held), held[-1], stored.findings) == (many, many, many)


def test_a_run_that_is_repeated_while_it_is_read_is_said(database: Connection, database_url: str) -> None:
    number = store_run(database, [lost(each) for each in range(1_500)])
    stored = runs.run_of(database, number)
    assert stored is not None
    given = runs.findings(database, stored)
    next(given)
    with connected(database_url) as other:
        store_run(other, [], a_run(LATER))
    with pytest.raises(runs.Superseded, match=f"run {number} was repeated"):
        list(given)


def test_it_is_listed_and_shown_by_command(command: Command, database: Connection, database_url: str) -> None:
    since = SEEN_AT - timedelta(days=1)
    first = store_run(database, [lost(1), finding("overdue", txn_id=str(uuid4()))], a_run(since=since, books=("shop",)))
    second = store_run(database, [], a_run(LATER))
    listed = command("findings", "list", "--database-url", database_url)
    assert listed.returncode == 0, listed.stderr
    head, *lines = [line.split() for line in listed.stdout.splitlines()]
    assert head == ["run", "seen-at", "since", "until", "books", "findings", "kinds"]
    assert [line[0] for line in lines] == [str(second), str(first)]
    assert lines[1][-7:] == ["-", "shop", "2", "1", "lost-delivery,", "1", "overdue"]
    said = json.loads(command("findings", "list", "--json", "--database-url", database_url).stdout)
    assert [(each["run"], each["findings"], each["kinds"]) for each in said] == [
        (second, 0, {}),
        (first, 2, {"lost-delivery": 1, "overdue": 1}),
    ]
    shown = command("findings", "show", str(first), "--kind", "lost-delivery", "--json", "--database-url", database_url)
    assert [(each["kind"], each["half_id"]) for each in map(json.loads, shown.stdout.splitlines())] == [
        ("lost-delivery", 1)
    ]
    table = command("findings", "show", str(first), "--limit", "1", "--database-url", database_url)
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["kind", "lost-delivery"]
    of_none = command("findings", "show", str(first), "--kind", "order", "--database-url", database_url)
    assert (of_none.returncode, len(of_none.stdout.splitlines())) == (0, 1)
    none = command("findings", "show", "99", "--database-url", database_url)
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr == "error: there is no run 99: coordinator findings list has those that are stored\n"


def test_a_kind_that_there_is_not_is_refused(command: Command, database: Connection, database_url: str) -> None:
    """A kind of another version is shown, where the run has it."""
    number = str(store_run(database, [finding("of-tomorrow")]))
    refused = command("findings", "show", number, "--kind", "order", "--kind", "nosuch", "--database-url", database_url)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == f"error: --kind: expected one of {', '.join(KINDS)}, not 'nosuch'\n"
    shown = command("findings", "show", number, "--kind", "of-tomorrow", "--database-url", database_url)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["kind", "of-tomorrow"]
