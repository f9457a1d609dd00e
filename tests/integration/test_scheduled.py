"""What groups are to get later is listed by group, and by time, at the cost of what is shown (rule D7)."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Connection, text
from typer.testing import CliRunner

from coordinator.__main__ import app
from store import scheduled
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("D7")

_MANY = 20_000
_READ = (
    "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int from pg_stat_user_tables"
    " where relname ~ '^(entry|half)'"
)


@pytest.fixture
def long_schedules(database: Connection, rows: Rows) -> list[int]:
    """Two groups with many messages that are to come later, behind as many that wait; they come two at a time. Before
    and between them by name a group that only has what waits; at the end one with two messages.
    """
    groups = {name: rows.queue(name) for name in ("bare", "long", "long-wait", "long2", "two")}
    made = (
        "insert into coordinator.{} from generate_series(1, :many) n cross join unnest(cast(:groups as int4[])) g"
        " order by n"
    )
    long = [groups["long"], groups["long2"]]
    first = rows.entry(groups["two"], available_at=rows.now() + timedelta(hours=1), failures=1)
    rows.entry(groups["two"], available_at=rows.now() + timedelta(hours=2))
    for statement, of in (
        ("half (id, address_id, message) select :first - :many * g - n, g, 'four'", long),
        ("entry (group_id, id, half_id) select g, n, n", [groups["bare"], groups["long-wait"], *long]),
        (
            "entry (group_id, id, half_id, available_at) select g, :many + n, :first - :many * g - n,"
            " now() + n / 2 * interval '1 minute' + interval '1 hour'",
            long,
        ),
    ):
        database.execute(text(made.format(statement)), {"many": _MANY, "first": first, "groups": of})
    database.execute(text("analyze coordinator.entry"))
    database.commit()
    return long


def _read(database: Connection) -> int:
    database.execute(text("select pg_stat_force_next_flush()"))
    database.commit()
    return int(database.scalar(text(_READ)) or 0)


def test_so_many_of_each_group_are_counted_and_no_more_is_read(
    database: Connection, database_url: str, long_schedules: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled, "_MOST_COUNTED", 60)
    monkeypatch.setattr(scheduled, "_MOST_OF_MANY", 4)
    before = _read(database)
    long, long2, two = scheduled.groups(database)
    assert _read(database) - before < 300
    assert (long.address, long.messages, long.more, long.retries, long.octets) == ("long", 20, 0, 0, 80)
    assert long.last_due - long.first_due == timedelta(minutes=_MANY / 2)
    assert (long2.messages, long2.more) == (20, 0)
    assert (two.address, two.messages, two.more, two.retries) == ("two", 2, None, 1)
    told = partial(CliRunner().invoke, app, ["schedule", "list", "--database-url", database_url])
    printed = [line.split() for line in told().stdout.splitlines()]
    assert printed[0][:5] == ["address", "group", "messages", "more", "retries"]
    assert [line[:4] for line in printed[1:]] == [
        ["long", "(default)", "20", "some"],
        ["long2", "(default)", "20", "some"],
        ["two", "(default)", "2", "-"],
    ]
    monkeypatch.setattr(scheduled, "_MOST_COUNTED", 3 * _MANY)
    assert [(each.messages, each.more) for each in scheduled.groups(database)] == [(_MANY, None)] * 2 + [(2, None)]
    assert told().stdout.split()[:4] == ["address", "group", "messages", "retries"]


def test_groups_come_page_by_page(database: Connection, long_schedules: list[int]) -> None:
    before = _read(database)
    (first,) = scheduled.groups(database, most=1)
    assert (first.address, first.messages, first.more) == ("long", _MANY, None)
    second, third = scheduled.groups(database, after=("long", ""), most=2)
    assert (second.address, third.address) == ("long2", "two")
    assert scheduled.groups(database, after=("two", "")) == []
    assert _read(database) - before < 5 * _MANY


def test_messages_come_page_by_page_and_no_others_are_read(database: Connection, long_schedules: list[int]) -> None:
    whole = scheduled.messages(database, long_schedules[0])
    assert [each.entry for each in whole] == list(range(_MANY + 1, 2 * _MANY + 1))
    before = _read(database)
    found = scheduled.messages(database, long_schedules[0], most=5)
    while len(found) < 25:
        found += scheduled.messages(database, long_schedules[0], after=(found[-1].due, found[-1].entry), most=5)
    assert found == whole[:25]
    assert _read(database) - before < 100
