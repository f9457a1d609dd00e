"""The times of what ``coordinator.post`` posts (X2): the commit's, and none that programs cannot read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import Connection, select, text

from store.codec.message import examine
from store.ids import moment_of
from store.tables import entry, half
from tests.fix_application import Application, post, stored
from tests.fix_store import Rows
from tests.wire.messages import data

pytestmark = pytest.mark.rule("X2")

#: 9999-12-31, whose hours are those of the year 10000 in some time zones; and a time of this century.
_NO_PROGRAM_SAYS, _FAR = 253_402_214_400_000, 4_102_444_800_000


@pytest.mark.rule("P12")
def test_no_expiry_is_none_and_so_is_one_later_than_programs_can_say(application: Application, rows: Rows) -> None:
    """Clients say never with 0, or with the greatest number."""
    group = rows.queue("orders")
    given: list[int | None] = [None, 0, 2**63 - 1, _NO_PROGRAM_SAYS, _FAR]
    for last in given:
        post(application, "orders", "tea", properties=Jsonb({"absolute-expiry-time": last}))
    application.execute("select coordinator.post('orders', 'tea')")
    application.execute("select coordinator.post_octets('orders', %s, expires_at => '20000-01-01')", [data(b"tea")])
    application.execute("select coordinator.post_octets('orders', %s, expires_at => '4714-11-24 BC')", [data(b"tea")])
    application.commit()
    assert [examine(each).absolute_expiry_ms for each in stored(application)] == [*given, None, None, None]
    found = application.execute("select expires_at from coordinator.entry where group_id = %s order by id", [group])
    told = [row[0] and row[0].timestamp() * 1000 for row in found]
    assert told == [None, None, None, None, _FAR, None, None, datetime(2000, 1, 1, tzinfo=UTC).timestamp() * 1000]


@pytest.mark.rule("D7")
def test_none_is_delivered_later_than_programs_can_say(application: Application, rows: Rows) -> None:
    group = rows.queue("orders")
    for moment in ("294276-12-31", "9999-12-31", "9999-12-29"):
        application.execute("select coordinator.post('orders', 'tea', deliver_at => %s)", [moment])
    application.commit()
    found = application.execute("select available_at from coordinator.entry where group_id = %s order by id", [group])
    assert [row[0].astimezone(UTC).day for row in found] == [30, 30, 29]


def test_all_its_times_are_those_of_the_commit(application: Application, rows: Rows, database: Connection) -> None:
    """However long the SQL transaction was open, over midnight, too: the day of a half is that of its id."""
    group = rows.queue("orders")
    post(application, "orders", "tea")
    before = database.scalar(text("select clock_timestamp()"))
    application.commit()
    (stored_half,) = database.execute(select(half.c.id, half.c.posted_at)).all()
    available = database.scalar(select(entry.c.available_at).where(entry.c.group_id == group))
    assert before < stored_half.posted_at == available
    assert moment_of(stored_half.id) > before - timedelta(milliseconds=1)
