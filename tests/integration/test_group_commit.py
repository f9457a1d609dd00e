"""The group commit on a real PostgreSQL: order, bounds, refusals, and defects of ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from store.commit import group_commit
from store.commit.batch import Batch
from store.commit.group_commit import Limits
from store.errors import AddressGone, AlreadyDecided, Conflict, GroupsChanged, NoPartition, NotLeased
from store.ids import id_at
from store.partitions import op_id_at
from store.tables import SCHEMA
from tests.fix_night import by_night
from tests.fix_store_driver import GROUP, Nothing, Post, Retire, Store, Truth, running


class PostOf(Post):
    """Unit: a transaction with one message of a day."""

    def __init__(self, store: Store, day: datetime) -> None:
        super().__init__(store, txn_id=op_id_at(day).bytes)
        self.ids = [id_at(day)]


# -- units


@pytest.mark.rule("T8", "H4")
def test_units_are_durable_in_their_order(store: Store, truth: Truth) -> None:
    units = [Post(store, 1 + number % 3) for number in range(500)]
    for number, unit in enumerate(units):
        store.add(unit)
        if number % 7 == 0:
            store.loop.turn(0)
    store.settle()
    assert store.heard == units
    assert all(unit.heard == [None] for unit in units)
    assert truth.halves() == truth.entries() == sorted(id_ for unit in units for id_ in unit.ids)
    assert truth.ops() == {unit.txn_id for unit in units}
    assert sum(store.commit.sizes.counts) < len(units)


@pytest.mark.rule("T8")
def test_nothing_is_heard_before_it_is_there(store: Store, truth: Truth) -> None:
    for _ in range(50):
        unit = Post(store)
        store.add(unit)
        store.settle()
        assert unit.heard == [None]
        assert truth.rows(f"select 1 from {SCHEMA}.half where id = %s", unit.ids[0])


def _partitions(truth: Truth, day: datetime) -> int:
    found = truth.rows("select count(*) from pg_class where relname like %s", f"%\\_{day:%Y%m%d}")
    return int(found[0][0])


@pytest.mark.rule("H16")
def test_a_missing_partition_is_made_and_the_batch_goes_on(store: Store, truth: Truth) -> None:
    store.add(Post(store))
    store.settle()
    day = datetime.now(UTC) + timedelta(days=30)
    unit, beside = PostOf(store, day), Post(store)
    assert _partitions(truth, day) == 0
    store.add(unit, beside)
    store.settle()
    assert (unit.heard, beside.heard) == ([None], [None])
    assert unit.written == 1
    assert _partitions(truth, day) == 2
    assert set(unit.ids) < set(truth.halves())


@pytest.mark.rule("H16")
def test_a_day_that_was_dropped_is_refused_alone(store: Store, truth: Truth) -> None:
    day = datetime.now(UTC) - timedelta(days=30)
    truth.run(f"insert into {SCHEMA}.retention (table_name, kept_from) values ('half', now()::date - 3)")
    unit, beside = PostOf(store, day), Post(store)
    store.add(unit, beside)
    store.settle()
    assert beside.heard == [None]
    assert [type(each) for each in unit.heard] == [NoPartition]
    assert truth.halves() == beside.ids


@pytest.mark.rule("H16")
def test_a_partition_that_cannot_be_made_is_a_refusal_too(store: Store, truth: Truth, database_url: str) -> None:
    day = datetime.now(UTC) + timedelta(days=30)
    unit, later = PostOf(store, day), PostOf(store, day + timedelta(seconds=1))
    with psycopg.connect(database_url) as blocker:
        blocker.execute(f"lock table {SCHEMA}.half in share update exclusive mode".encode())
        store.add(unit)
        store.settle()
    assert [type(each) for each in unit.heard] == [NoPartition]
    store.add(later)
    store.settle()
    assert later.heard == [None]


@pytest.mark.usefixtures("truth")
def test_batches_are_bounded(database_url: str) -> None:
    for limits, size, most in ((Limits(messages=10), 10, 10), (Limits(octets=5000), 1000, 5)):
        with running(database_url, limits) as store:
            sizes: list[int] = []
            send = store.commit._send

            def sending(batch: Batch, send: Any = send, sizes: list[int] = sizes) -> None:
                sizes.append(batch.rows)
                send(batch)

            store.commit._send = sending  # type: ignore[method-assign]
            units = [Post(store, size=size) for _ in range(95)]
            store.add(*units)
            store.settle()
            assert store.heard == units
            assert sum(sizes) == 95
            assert max(sizes) == most


@pytest.mark.rule("T8", "H5")
def test_statements_are_bounded(store: Store, truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each combination of what a batch has: there are thousands."""
    monkeypatch.setattr(group_commit, "MOST_STATEMENTS", 2)
    for _ in range(3):
        first, second = Post(store), Post(store)
        for units in ([first, second], [Retire(store, first.ids[0])], [Post(store), Retire(store, second.ids[0])]):
            store.add(*units)
            store.settle()
            assert len(store.commit._statements) <= 2
    assert [unit.heard for unit in store.heard] == [[None]] * 15
    assert len(truth.entries()) == 3


def test_a_decision_that_is_there_fails_itself_only(store: Store, truth: Truth) -> None:
    first = Post(store)
    store.add(first)
    store.settle()
    units = [Post(store) for _ in range(100)]
    again = Post(store, txn_id=first.txn_id)
    units.insert(37, again)
    store.add(*units)
    store.settle()
    assert store.heard[1:] == units
    for unit in units:
        if unit is again:
            (error,) = unit.heard
            assert isinstance(error, AlreadyDecided)
        else:
            assert unit.heard == [None]
    assert not set(again.ids) & set(truth.halves())
    # by halves: the culprit is written at most once for each halving of a hundred
    assert again.written <= 9


@pytest.mark.rule("H5", "T26")
def test_an_entry_that_is_not_leased_fails_itself_only(store: Store, truth: Truth) -> None:
    posts = [Post(store) for _ in range(20)]
    store.add(*posts)
    store.settle()
    truth.run(f"update {SCHEMA}.entry set lease = 8 where id = {posts[3].ids[0]}")
    truth.run(f"delete from {SCHEMA}.entry where id = {posts[11].ids[0]}")
    retired = [Retire(store, post.ids[0]) for post in posts]
    store.add(*retired)
    store.settle()
    assert store.heard[20:] == retired
    for number, unit in enumerate(retired):
        if number in (3, 11):
            assert isinstance(unit.heard[0], NotLeased)
            assert unit.txn_id not in truth.ops()
        else:
            assert unit.heard == [None]
    assert truth.entries() == [posts[3].ids[0]]


@pytest.mark.rule("T8")
@pytest.mark.parametrize("many", [1, 2])
def test_a_post_to_a_queue_that_has_another_group_by_now_is_refused(store: Store, truth: Truth, many: int) -> None:
    """Alone in its batch, and not: it would not come to that group."""
    columns = "(id, address_id, name) overriding system value"
    truth.run(f"insert into {SCHEMA}.consumer_group {columns} values ({GROUP + 1}, 1, 'later')")
    units = [Post(store) for _ in range(many)]
    store.add(*units)
    store.settle()
    assert [type(heard) for unit in units for heard in unit.heard] == [GroupsChanged] * many
    assert (truth.ops(), truth.halves(), truth.entries()) == (set(), [], [])


@pytest.mark.rule("T8")
@pytest.mark.parametrize("many", [1, 2])
def test_a_post_to_an_address_that_is_gone_is_refused(store: Store, truth: Truth, many: int) -> None:
    truth.run(f"delete from {SCHEMA}.address where id = 1")
    units = [Post(store) for _ in range(many)]
    store.add(*units)
    store.settle()
    assert [type(heard) for unit in units for heard in unit.heard] == [AddressGone] * many
    assert (truth.ops(), truth.halves()) == (set(), [])


class PostElsewhere(Post):
    """Unit: a transaction with one message for another queue."""

    def write(self, batch: Batch) -> None:
        super().write(batch)
        batch.half_addresses[-1] = 2
        batch.queue_addresses.add(2)


@pytest.mark.rule("T8")
@pytest.mark.parametrize("group", ["default", "another", "none"])
def test_each_queue_that_a_batch_posts_to_is_looked_at(store: Store, truth: Truth, group: str) -> None:
    if group != "none":
        truth.run(f"insert into {SCHEMA}.address (id, name) overriding system value values (2, 'other')")
    if group == "another":
        columns = "(id, address_id, name) overriding system value"
        truth.run(f"insert into {SCHEMA}.consumer_group {columns} values ({GROUP + 1}, 2, 'later')")
    here, there = Post(store), PostElsewhere(store)
    store.add(here, there)
    store.settle()
    assert here.heard == [None]
    wanted = {"default": type(None), "another": GroupsChanged, "none": AddressGone}[group]
    assert [type(heard) for heard in there.heard] == [wanted]


@pytest.mark.rule("T8")
@pytest.mark.parametrize("many", [1, 2])
def test_a_post_does_not_wait_for_a_change_of_its_address(
    store: Store, truth: Truth, database_url: str, many: int
) -> None:
    with psycopg.connect(database_url) as administration:
        administration.execute(f"update {SCHEMA}.address set max_attempts = 3 where id = 1".encode())
        units = [Post(store) for _ in range(many)]
        store.add(*units)
        store.settle()
        assert [unit.heard for unit in units] == [[None]] * many


class Rollback(Post):
    """Unit: a rollback for a reason, which covers no delivery."""

    def write(self, batch: Batch) -> None:
        batch.op(self.txn_id, b"rollback", reason="why", posted=3)


@pytest.mark.rule("H5")
@pytest.mark.parametrize("kind", [Post, Rollback, Retire])
def test_an_op_alone_in_its_batch_is_as_one_among_others(store: Store, truth: Truth, kind: type[Post]) -> None:
    posts = [Post(store) for _ in range(3)]
    store.add(*posts)
    store.settle()
    units = [Retire(store, post.ids[0]) for post in posts] if kind is Retire else [kind(store) for _ in posts]
    for together in (units[:1], units[1:]):
        store.add(*together)
        store.settle()
    columns = "decision, txn_id, reason, posted, cardinality(half_ids), group_ids, instance_id"
    rows = [truth.rows(f"select {columns} from {SCHEMA}.op where id = %s", unit.txn_id.hex()) for unit in units]
    assert len(rows[0]) == 1
    assert rows[0] == rows[1] == rows[2]


def test_another_constraint_fails_itself_only(store: Store) -> None:
    units = [Post(store) for _ in range(5)]
    double = Post(store)
    double.ids = units[0].ids
    store.add(*units, double)
    store.settle()
    assert [unit.heard for unit in units] == [[None]] * 5
    assert isinstance(double.heard[0], Conflict)


def test_units_without_rows_wait_for_those_before_them(store: Store) -> None:
    """Such a unit is answered after every unit before it, also where one of those is refused."""
    first = Post(store)
    store.add(first)
    store.settle()
    units = [first]
    for _ in range(30):
        for unit in (Post(store), Post(store, txn_id=first.txn_id), Nothing(store), Post(store), Nothing(store)):
            store.add(unit)
            units.append(unit)
            store.loop.turn(0)
    store.settle()
    assert store.heard == units
    assert sum(isinstance(unit.heard[0], AlreadyDecided) for unit in units) == 30


_POISON = """
create function public.poison() returns trigger language plpgsql as $$
begin
  if new.message = 'poison' then {what}; end if;
  return new;
end $$;
create trigger poison before insert on {schema}.half for each row execute function public.poison()
"""


@pytest.mark.rule("S5")
@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize(
    "what",
    [
        *(f"raise exception 'no' using errcode = '{state}'" for state in ("XX000", "53200", "58030", "40001", "54000")),
        "perform pg_terminate_backend(pg_backend_pid())",
    ],
)
def test_what_the_server_can_never_take_is_refused_alone(store: Store, truth: Truth, what: str) -> None:
    """An internal error, no memory, a broken file, a conflict without end, and what ends the connection each time."""
    truth.run(_POISON.format(what=what, schema=SCHEMA))
    units = [Post(store) for _ in range(40)]
    for unit in (units[7], units[30]):
        unit.message = b"poison"
    store.add(*units[:20])
    store.loop.turn(0.01)
    store.add(*units[20:])
    store.settle()
    assert [unit for unit in units if unit.heard != [None]] == [units[7], units[30]]
    assert all(len(unit.heard) == 1 for unit in units)
    store.add(later := Post(store))
    store.settle()
    assert later.heard == [None]
    assert truth.halves() == sorted(id_ for unit in store.heard if unit.heard == [None] for id_ in unit.ids)


# -- defects of ours


class Broken(Post):
    """Unit: fails ``where``, in ``write`` after its first rows."""

    def __init__(self, store: Store, where: str) -> None:
        super().__init__(store, 2)
        self.where = where

    def write(self, batch: Batch) -> None:
        super().write(batch)
        if self.where == "write":
            raise ZeroDivisionError
        if self.where == "parts":
            batch.half(1 << 70, self.txn_id, 1, b"")

    def durable(self) -> None:
        super().durable()
        if self.where == "durable":
            raise ZeroDivisionError


@pytest.mark.rule("P14")
@pytest.mark.parametrize("where", ["write", "parts"])
@pytest.mark.parametrize("most", [by_night(1), 5, by_night(2000)])
def test_a_unit_that_cannot_be_written_leaves_nothing(database_url: str, truth: Truth, where: str, most: int) -> None:
    """Whether it is written into the next batch at once, when its turn comes, or again after a refusal."""
    with running(database_url, Limits(messages=most)) as store:
        units: list[Post] = [Broken(store, where) if number % 3 == 0 else Post(store) for number in range(12)]
        units.append(Post(store, txn_id=units[1].txn_id))
        store.add(*units)
        store.settle()
        assert all(len(unit.heard) == 1 for unit in units)
        good = [unit for unit in units if unit.heard == [None]]
        assert good == [unit for unit in units[:-1] if not isinstance(unit, Broken)]
        assert truth.ops() == {unit.txn_id for unit in good}
        assert truth.halves() == sorted(id_ for unit in good for id_ in unit.ids)


@pytest.mark.rule("P14")
def test_a_unit_that_fails_when_it_hears(store: Store, truth: Truth) -> None:
    store.loop.contained = []
    units = [Post(store), Broken(store, "durable"), Post(store)]
    store.add(*units)
    store.settle()
    store.add(later := Post(store))
    store.settle()
    assert store.heard == [*units, later]
    assert store.loop.contained == [units[1]]
    assert len(truth.ops()) == 4
