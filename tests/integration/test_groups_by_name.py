"""What is asked by the name of a group alone costs the same however many groups there are (S5)."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, text

from store.asking import Query
from store.questions.addresses import HAS_CONSUMERS
from store.questions.consumer_groups import SUBSCRIPTION_OF


@pytest.mark.rule("S5")
@pytest.mark.parametrize("question", [HAS_CONSUMERS, SUBSCRIPTION_OF])
def test_a_group_is_found_by_its_name(database: Connection, question: Query[Any]) -> None:
    """And the default groups of queues, which have no name, are not in the index."""
    database.execute(text("insert into coordinator.address (name) select 'a' || i from generate_series(1, 5000) i"))
    for name in ("''", "'g' || id"):
        groups = f"insert into coordinator.consumer_group (address_id, name) select id, {name} from coordinator.address"
        database.execute(text(groups))
    database.execute(text("analyze coordinator.consumer_group, coordinator.address"))
    plan = database.exec_driver_sql("explain (generic_plan) " + question.sql).scalars().all()
    assert any("consumer_group_name_idx" in line for line in plan), plan
    assert not any("Seq Scan on consumer_group" in line for line in plan), plan
