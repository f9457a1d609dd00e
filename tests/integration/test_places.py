"""Where a consumer group can be moved to: since when messages are kept, and which are of its address (rule H17)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from store import addresses, seeks
from store.ids import id_at
from store.seeks import Group
from store.tables import SCHEMA
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("H17")


def _group(rows: Rows, name: str = "orders") -> Group:
    found = addresses.find_group(rows.connection, name, "")
    assert found is not None
    assert found.group is not None
    return seeks.group(rows.connection, found.group)


def test_what_is_kept_since_when(rows: Rows) -> None:
    rows.queue("orders")
    rows.queue("kept", retention_hours=48)
    orders, kept = _group(rows), _group(rows, "kept")
    hours = timedelta(hours=24)
    assert seeks.oldest(rows.connection, orders, hours) is None
    today = rows.now().replace(hour=0, minute=0, second=0, microsecond=0)
    rows.connection.execute(text(f"insert into {SCHEMA}.retention values ('half', '{today:%Y-%m-%d}', now())"))
    rows.connection.commit()
    now = rows.now()
    found = [seeks.oldest(rows.connection, group, hours) for group in (orders, kept)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0] <= today
    assert abs(found[0] - min(today, now - hours)) < timedelta(minutes=1)
    assert abs(found[1] - (now - 2 * hours)) < timedelta(minutes=1)
    assert seeks.first_id(today) == id_at(today)


def test_which_messages_are_of_the_address(rows: Rows) -> None:
    rows.queue("orders")
    half_id = rows.entry(rows.queue("others"))
    assert seeks.has_message(rows.connection, _group(rows, "others"), half_id)
    assert not seeks.has_message(rows.connection, _group(rows), half_id)
