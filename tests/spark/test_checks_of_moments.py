"""Findings that hang on when something happened: just before, just after, at the edge of a period."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from spark.period import Period
from store.ids import id_at
from tests.fix_findings import AT, all_findings, own_queue
from tests.fix_store_rows import NOW, StoreRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _instances_that_ended(rows: StoreRows) -> int:
    """One that has just ended may hold entries; the half that the other holds."""
    address, group = own_queue(rows, "ended")
    for number, age in ((2, timedelta(minutes=1)), (3, timedelta(minutes=3))):
        rows.rows["instance"].append({**rows.rows["instance"][0], "id": number, "ended_at": NOW - age})
        half = rows.half(address, AT)
        rows.entry(group, half, lease=number)
    return half


def _passed_over(rows: StoreRows) -> list[int]:
    """Available for over an hour, and of what came later some was taken in the last hour."""
    address, group = own_queue(rows, "passed over")
    rows.rows["group_read"].append({"group_id": group, "instance_id": 1, "read_through": id_at(AT)})
    stuck = [rows.half(address, AT + timedelta(minutes=minute)) for minute in range(3)]
    # no consumer can have picked the first; the second lets what is urgent go first
    rows.entry(group, stuck[0])
    rows.entry(group, stuck[1], priority=3)
    # it came, and was due later
    rows.entry(group, stuck[2], available_at=AT + timedelta(hours=1))
    later = rows.half(address, AT + timedelta(hours=1))
    rows.op("accept", NOW - timedelta(minutes=50), covers=[(later, group)])
    return stuck


def _not_stuck(rows: StoreRows) -> None:
    """What is not available, or not passed over."""
    lately, young = NOW - timedelta(minutes=50), NOW - timedelta(minutes=55)

    def queue(
        name: str,
        *,
        posted: datetime = lately,
        taken: datetime = lately,
        by: str = "accept",
        reason: str | None = None,
    ) -> int:
        """A queue that has had a message."""
        address, group = own_queue(rows, name)
        covers = [(rows.half(address, posted), group)]
        if by == "commit":
            rows.decide(rows.uuid_v7(taken), by, taken, 0, covers)
        else:
            rows.op(by, taken, covers=covers, reason=reason)
        return address

    def waits(address: int, at: datetime = AT, **values: object) -> None:
        rows.entry(rows.groups_of(address, NOW)[0], rows.half(address, at), **values)

    # those that nothing was taken from, or nothing later, or nothing lately
    waits(own_queue(rows, "no-consumers")[0])
    waits(queue("a backlog", posted=AT - timedelta(hours=1)))
    before = NOW - timedelta(minutes=70)
    waits(queue("not lately", posted=before, taken=before), NOW - timedelta(minutes=80))
    waits(queue("expires", by="expire"))
    waits(queue("no-local", reason="no-local"))
    # young ones, by when they were posted, committed or due
    waits(queue("young", by="commit"), young)
    address = queue("committed lately")
    half = rows.half(address, AT)
    rows.entry(rows.groups_of(address, NOW)[0], half, id=id_at(young))
    waits(queue("due lately"), available_at=young)
    # in hand, behind its message group, failed, given back, delayed
    waits(queue("leased"), lease=1)
    waits(queue("fifo"), message_group=7)
    waits(queue("given back"), acquired=True)
    waits(queue("delayed"), available_at=NOW + timedelta(hours=1))
    waits(queue("failed"), failed="app:bad-order", failures=1)
    # held by the only instance, which has read the group up to there
    held = queue("held")
    (group,) = rows.groups_of(held, NOW)
    next(row for row in rows.rows["consumer_group"] if row["id"] == group)["holder"] = 1
    rows.rows["group_read"] += [
        {"group_id": group, "instance_id": 1, "read_through": id_at(AT + timedelta(seconds=step))} for step in (5, 1)
    ]
    waits(held, AT + timedelta(seconds=3))


def _clocks(rows: StoreRows) -> int:
    """The clock of the database may be set, by a minute; the half that is too early."""
    address, group = own_queue(rows, "clocks")
    for seconds in (59, 61):
        half = rows.half(address, AT)
        rows.op("accept", AT - timedelta(seconds=seconds), covers=[(half, group)])
    return half


def _letters(rows: StoreRows) -> list[int]:
    """Messages that ended in a queue of dead letters that is not there, around a moment."""
    address, group = own_queue(rows, "letters")
    halves = []
    for minutes in (-90, -30, 30, 90):
        halves.append(rows.half(address, AT - timedelta(hours=2)))
        rows.op("dead-letter", AT + timedelta(minutes=minutes), covers=[(halves[-1], group)], reason="tried")
    return halves


@pytest.mark.rule("R16", "R17", "R18")
def test_what_came_to_pass_too_late_or_too_early_is_found(spark: SparkSession) -> None:
    """And nothing of what did so in time."""
    rows = StoreRows()
    held, stuck, early, letters = _instances_that_ended(rows), _passed_over(rows), _clocks(rows), _letters(rows)
    _not_stuck(rows)
    listed = all_findings(rows, spark)
    assert sorted((each.kind, each.half_id, each.severity) for each in listed) == sorted(
        [
            ("stuck-delivery", held, "error"),
            *zip(["stuck-delivery"] * 3, stuck, ("note", "warning", "note"), strict=True),
            ("order", early, "warning"),
            *(("dead-letter-mismatch", letter, "error") for letter in letters),
        ]
    )
    found = {each.half_id: each for each in listed}
    assert "instance 3" in found[held].detail
    assert {found[half].consumer_group for half in stuck} == {""}
    assert "available for 3.0 h" in found[stuck[0]].detail
    assert "61 s before it was committed" in found[early].detail


@pytest.mark.rule("R17")
def test_letters_around_the_edge_of_a_period_are_of_no_run(spark: SparkSession) -> None:
    rows = StoreRows()
    halves = _letters(rows)

    def found(period: Period) -> list[int | None]:
        return [
            item.half_id for item in all_findings(rows, spark, period=period) if item.kind == "dead-letter-mismatch"
        ]

    assert found(Period(until=AT)) == halves[:1]
    # the period has no letters but these: it is known that there are some by the address
    rows.address("%DLQ%letters")
    assert found(Period(since=AT)) == halves[3:]
