"""The checks on rows made in memory: everything planted is found, nothing else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from spark.finding import Finding
from spark.period import Period
from tests.fix_findings import AT, all_findings, own_queue
from tests.fix_night import by_night
from tests.fix_store_rows import NOW, StoreRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EACH = 5
MILLISECOND = timedelta(milliseconds=1)

#: (kind, txn_id, half_id, address)
Key = tuple[str, str | None, int | None, str | None]


def plant_check_that_is_late(rows: StoreRows) -> set[Key]:
    address, _ = own_queue(rows, "late-check")
    txn = rows.uuid_v7(AT)
    rows.half(address, AT, txn)
    rows.undecided(txn, AT, checks=3, next_check_at=NOW - timedelta(minutes=10))
    return {("overdue", txn, None, "late-check")}


def plant_timeout_without_a_check(rows: StoreRows) -> set[Key]:
    address, _ = own_queue(rows, "no-check")
    txn = rows.uuid_v7(AT)
    rows.half(address, AT, txn)
    rows.undecided(txn, AT, timeout_at=NOW - timedelta(hours=1))
    return {("overdue", txn, None, "no-check")}


def plant_forgotten_transaction(rows: StoreRows) -> set[Key]:
    address, _ = own_queue(rows, "forgotten")
    txn = rows.uuid_v7(AT)
    rows.half(address, AT, txn)
    return {("overdue", txn, None, "forgotten"), ("unbalanced", None, None, "forgotten")}


def plant_op_of_a_missing_half(rows: StoreRows) -> set[Key]:
    _, group = own_queue(rows, "orphan-op")
    half = rows.half(1, AT)
    rows.rows["half"].pop()
    rows.op("accept", AT, covers=[(half, group)])
    return {("orphan-op", None, half, None)}


def plant_commit_with_a_missing_half(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "short-commit")
    txn, halves = rows.committed([address, address], AT)
    rows.rows["half"].pop()
    rows.op("accept", NOW, covers=[(halves[0], group)])
    return {("orphan-op", txn, None, "short-commit")}


def plant_two_decisions(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "two-decisions")
    txn, halves = rows.committed([address], AT)
    rows.decide(txn, "rollback", AT, 1)
    rows.entry(group, halves[0])
    return {("double-decision", txn, None, "two-decisions"), ("unbalanced", None, None, "two-decisions")}


def plant_lost_delivery(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "lost")
    txn, halves = rows.committed([address], AT)
    rows.op("release", AT, covers=[(halves[0], group)])
    return {("lost-delivery", txn, halves[0], "lost"), ("unbalanced", None, None, "lost")}


def plant_lost_plain_post(rows: StoreRows) -> set[Key]:
    address, _ = own_queue(rows, "lost-plain")
    half = rows.half(address, AT)
    return {("lost-delivery", None, half, "lost-plain"), ("unbalanced", None, None, "lost-plain")}


def plant_entry_of_a_group_that_is_gone(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "orphan")
    half = rows.half(address, AT)
    rows.op("accept", NOW, covers=[(half, group)])
    rows.entry(1_000_000 + half % 1000, half)
    return {("orphan-entry", None, half, "orphan")}


def plant_entry_of_a_rollback(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "phantom-entry")
    txn = rows.uuid_v7(AT)
    half = rows.half(address, AT, txn)
    rows.decide(txn, "rollback", AT, 1)
    rows.entry(group, half)
    return {("phantom-delivery", txn, half, "phantom-entry")}


def plant_delivery_of_an_undecided(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "phantom-op")
    txn = rows.uuid_v7(AT)
    half = rows.half(address, AT, txn)
    rows.undecided(txn, AT, next_check_at=NOW + timedelta(seconds=30))
    rows.op("accept", NOW, covers=[(half, group)])
    return {("phantom-delivery", txn, half, "phantom-op")}


def plant_entry_without_a_half(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "no-half")
    half = rows.half(address, AT)
    rows.rows["half"].pop()
    rows.entry(group, half)
    return {("phantom-delivery", None, half, None)}


def plant_two_acceptances(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "accepted-twice")
    txn, halves = rows.committed([address], AT)
    rows.op("accept", NOW, covers=[(halves[0], group)])
    rows.decide(rows.uuid_v7(AT), "commit", NOW, 0, [(halves[0], group)])
    return {("double-delivery", txn, halves[0], "accepted-twice"), ("unbalanced", None, None, "accepted-twice")}


def plant_entry_of_an_accepted(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "again")
    txn, halves = rows.committed([address], AT)
    rows.op("expire", NOW, covers=[(halves[0], group)])
    rows.entry(group, halves[0])
    return {("double-delivery", txn, halves[0], "again"), ("unbalanced", None, None, "again")}


def plant_more_halves_than_posted(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "surplus")
    txn, halves = rows.committed([address], AT)
    halves.append(rows.half(address, AT, txn))
    for half in halves:
        rows.entry(group, half)
    return {("unbalanced", txn, None, "surplus")}


def plant_lease_of_an_instance_that_is_gone(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "left")
    rows.rows["instance"].append({**rows.rows["instance"][0], "id": 70 + rows._next("gone"), "ended_at": AT})
    gone = rows.rows["instance"][-1]["id"]
    txn, halves = rows.committed([address, address], AT)
    rows.entry(group, halves[0], lease=gone)
    rows.entry(group, halves[1], lease=1)
    return {("stuck-delivery", txn, halves[0], "left")}


def plant_lease_of_an_instance_that_never_was(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "foreign")
    half = rows.half(address, AT)
    rows.entry(group, half, lease=4711, failed="app:bad-order")
    return {("stuck-delivery", None, half, "foreign")}


def plant_dead_letter_without_its_message(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "unburied")
    half = rows.half(address, AT)
    rows.op("dead-letter", AT + timedelta(microseconds=rows._next("moment")), covers=[(half, group)], reason="tried")
    return {("dead-letter-mismatch", None, half, None)}


def plant_message_without_its_dead_letter(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "%DLQ%unknown")
    half = rows.half(address, AT + timedelta(microseconds=500_000 + rows._next("moment")))
    rows.entry(group, half)
    return {("dead-letter-mismatch", None, half, None)}


def plant_acceptance_before_the_commit(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "early")
    txn, halves = rows.committed([address], AT, seconds=3600)
    rows.op("accept", AT + timedelta(minutes=1), covers=[(halves[0], group)])
    return {("order", txn, halves[0], "early")}


def plant_op_before_its_half(rows: StoreRows) -> set[Key]:
    address, group = own_queue(rows, "earlier")
    half = rows.half(address, AT)
    rows.op("release", AT - timedelta(minutes=2), covers=[(half, group)])
    rows.op("accept", AT, covers=[(half, group)])
    return {("order", None, half, "earlier")}


PLANTS: dict[str, list[Callable[[StoreRows], set[Key]]]] = {
    "R10": [plant_check_that_is_late, plant_timeout_without_a_check, plant_forgotten_transaction],
    "R11": [plant_op_of_a_missing_half, plant_commit_with_a_missing_half],
    "R12": [plant_two_decisions],
    "R13": [plant_lost_delivery, plant_lost_plain_post, plant_entry_of_a_group_that_is_gone],
    "R14": [plant_entry_of_a_rollback, plant_delivery_of_an_undecided, plant_entry_without_a_half],
    "R15": [plant_two_acceptances, plant_entry_of_an_accepted],
    "R16, leases": [plant_lease_of_an_instance_that_is_gone, plant_lease_of_an_instance_that_never_was],
    "R17": [plant_dead_letter_without_its_message, plant_message_without_its_dead_letter],
    "R18": [plant_acceptance_before_the_commit, plant_op_before_its_half],
    "R19": [plant_more_halves_than_posted],
}


def _key(found: Finding) -> Key:
    return found.kind, found.txn_id, found.half_id, found.address


@pytest.mark.rule("R10", "R11", "R12", "R13", "R14", "R15", "R17", "R18", "R19")
@pytest.mark.parametrize("slices", [None, by_night(MILLISECOND)], ids=["small", "large"])
def test_all_that_is_planted_is_found_and_nothing_else(spark: SparkSession, slices: timedelta | None) -> None:
    """Nothing of what is healthy, either."""
    rows = StoreRows(seed=3).healthy(400)
    expected: set[Key] = set()
    for rule, plants in PLANTS.items():
        # of a store that is looked at in slices, the primary keys refuse a second decision
        for plant in plants if slices is None or rule != "R12" else []:
            for number in range(EACH):
                # an address of its own each time
                expected |= {
                    (kind, txn, half, f"{name}-{number}" if name else None)
                    for kind, txn, half, name in _renamed(plant, rows, number)
                }
    found = all_findings(rows, spark, slices=slices)
    keys = {_key(each) for each in found}
    assert expected - keys == set(), "planted, not found"
    assert keys - expected == set(), "found, not planted"
    assert len(found) == len(expected), "found more than once"
    assert all(item.detail and item.suggested_repair for item in found)


def _renamed(plant: Callable[[StoreRows], set[Key]], rows: StoreRows, number: int) -> set[Key]:
    before = len(rows.rows["address"])
    keys = plant(rows)
    for row in rows.rows["address"][before:]:
        row["name"] = f"{row['name']}-{number}"
    return keys


def edge_of_a_group_that_was_added_later(rows: StoreRows) -> dict[Key, str]:
    """It owes nothing for what came before it, or while it was being added."""
    topic = rows.address("topic", routing="topic")
    rows.group(topic, "later", created_at=AT + timedelta(seconds=1))
    rows.committed([topic], AT)
    rows.committed([topic], AT + timedelta(seconds=5))
    txn, (owed,) = rows.committed([topic], AT + timedelta(minutes=1))
    return {("lost-delivery", txn, owed, "topic"): "group 'later'", ("unbalanced", None, None, "topic"): ""}


def edge_of_a_removed_group(rows: StoreRows) -> dict[Key, str]:
    """Its entries may be there for a while."""
    address, group = own_queue(rows, "removed")
    halves = []
    for number, age in enumerate((timedelta(minutes=30), timedelta(hours=2))):
        half = rows.half(address, AT)
        halves.append(half)
        rows.op("accept", NOW, covers=[(half, group)])
        removed = {"id": 5000 + number, "address_id": address, "name": f"g{number}", "lasting": True}
        rows.rows["removed_group"].append({**removed, "removed_at": NOW - age})
        rows.entry(5000 + number, half)
    return {("orphan-entry", None, halves[1], "removed"): "group 'g1'"}


def edge_of_ops_with_null_ids(rows: StoreRows) -> dict[Key, str]:
    """Of its half, or of its group: the service writes neither, and by hand it can be done."""
    address, group = own_queue(rows, "null-ids")
    rows.op("accept", AT, covers=[(None, group)])
    _, halves = rows.committed([address], AT)
    rows.entry(group, halves[0])
    rows.op("accept", NOW, covers=[(halves[0], None)])
    return {("orphan-op", None, 0, None): "1 ops name no half"}


def edge_of_an_address_that_is_gone(rows: StoreRows) -> dict[Key, str]:
    _, (half,) = rows.committed([7700], AT)
    rows.op("accept", NOW, covers=[(half, 9900)])
    return {}


def edge_of_checks(rows: StoreRows) -> dict[Key, str]:
    """A check is overdue only after the allowance."""
    address = rows.address("checks")
    for late, name in (
        (timedelta(seconds=-30), "soon"),
        (timedelta(seconds=60), "just"),
        (timedelta(minutes=3), "late"),
    ):
        txn = rows.uuid_v7(AT)
        rows.half(address, AT, txn)
        rows.undecided(txn, AT, producer_group=name, checks=1, next_check_at=NOW - late)
    rows.undecided(rows.uuid_v7(AT), AT, producer_group=None, posted=0)
    return {("overdue", txn, None, "checks"): "producer group late"}


def edge_of_what_an_undecided_transaction_has_retired(rows: StoreRows) -> dict[Key, str]:
    address, group = own_queue(rows, "retired")
    rows.undecided(rows.uuid_v7(AT), AT, next_check_at=NOW + timedelta(seconds=30), posted=0)
    rows.entry(group, rows.half(address, AT), lease=-1)
    return {}


def edge_of_a_plain_rollback(rows: StoreRows) -> dict[Key, str]:
    """It is counted by its op alone."""
    rows.decide(rows.uuid_v7(AT), "rollback", AT, 7, reason="client")
    return {}


def edge_of_a_pair_of_many_ops(rows: StoreRows) -> dict[Key, str]:
    """So many failed attempts do not fit into what is summed for a pair; it is counted apart, as one of few is."""
    expected: dict[Key, str] = {}
    for times in (2, 3_000):
        address, group = own_queue(rows, name := f"tried-{times}")
        txn, (ended, twice) = rows.committed([address, address], AT)
        for half in (ended, twice):
            for _ in range(times):
                rows.op("modify", NOW, covers=[(half, group)])
        for half in (ended, twice, twice):
            rows.op("accept", NOW, covers=[(half, group)])
        expected[("double-delivery", txn, twice, name)] = "2 accepted"
        expected[("unbalanced", None, None, name)] = ""
    return expected


@pytest.mark.rule("H20", "R10", "R13", "R14", "R15", "R19")
def test_what_is_just_in_order_is_told_from_what_is_not(spark: SparkSession) -> None:
    rows = StoreRows()
    expected = (
        edge_of_a_group_that_was_added_later(rows)
        | edge_of_a_removed_group(rows)
        | edge_of_ops_with_null_ids(rows)
        | edge_of_an_address_that_is_gone(rows)
        | edge_of_checks(rows)
        | edge_of_what_an_undecided_transaction_has_retired(rows)
        | edge_of_a_plain_rollback(rows)
        | edge_of_a_pair_of_many_ops(rows)
    )
    found = all_findings(rows, spark)
    assert Counter(_key(each) for each in found) == Counter(list(expected))
    said = {_key(each): f"{each.detail}; group {each.consumer_group!r}" for each in found}
    assert {key: words for key, words in expected.items() if words not in said[key]} == {}


@pytest.mark.rule("R13", "R19")
@pytest.mark.parametrize("slices", [by_night(None), MILLISECOND], ids=["small", "large"])
def test_a_message_is_of_the_period_of_its_transaction_whenever_it_was_posted(
    spark: SparkSession, slices: timedelta | None
) -> None:
    rows = StoreRows()
    address, group = own_queue(rows, "orders")
    _, delivered = rows.committed([address], AT - timedelta(seconds=1), seconds=2)
    rows.op("accept", NOW, covers=[(delivered[0], group)])
    _, entered = rows.committed([address], AT - timedelta(seconds=1), seconds=2)
    rows.entry(group, entered[0])
    _, lost = rows.committed([address], AT - timedelta(seconds=1), seconds=2)
    # of the time after: another run's
    rows.committed([address], AT)
    rows.entry(group + 1, rows.half(address, AT))
    found = all_findings(rows, spark, slices=slices, period=Period(until=AT))
    assert [item.half_id for item in found if item.kind != "unbalanced"] == lost
    (sums,) = (item for item in found if item.kind == "unbalanced")
    assert "committed x groups = 3, accounted for 1 accepted" in sums.detail
