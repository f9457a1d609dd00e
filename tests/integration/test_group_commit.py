"""The group commit on a real PostgreSQL: order, bounds, refusals, and every way to lose the connection."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from store import queries
from store.commit import group_commit
from store.commit.batch import Batch
from store.commit.group_commit import Limits
from store.embedded import EmbeddedServer
from store.errors import AlreadyDecided, Conflict, NoPartition, NotLeased, StoreUnavailable
from store.ids import id_at
from store.partitions import op_id_at
from store.tables import SCHEMA
from tests.fix_proxy import Proxy
from tests.fix_store_driver import GROUP, ME, Asking, Nothing, Post, Retire, Store, Truth, running, truth_of


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
    assert store.commit.batches < len(units)


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


def test_another_constraint_fails_itself_only(store: Store) -> None:
    units = [Post(store) for _ in range(5)]
    double = Post(store)
    double.ids = units[0].ids
    store.add(*units, double)
    store.settle()
    assert [unit.heard for unit in units] == [[None]] * 5
    assert isinstance(double.heard[0], Conflict)


def test_units_without_rows_wait_for_those_before_them(store: Store) -> None:
    """What a unit hears is true of every unit before it; also where one of these is refused."""
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
    store.loop.turn()
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
@pytest.mark.parametrize("most", [1, 5, 2000])
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


# -- the connection


@pytest.mark.rule("T8", "H4")
def test_a_batch_that_was_committed_and_its_reply_lost_is_not_written_again(
    cuttable: Store, proxy: Proxy, truth: Truth
) -> None:
    store = cuttable
    store.add(Post(store))
    store.settle()
    units = [Post(store, 2) for _ in range(10)]
    with proxy.held("replies"):
        store.add(*units)
        store.loop.run_until(lambda: len(truth.ops()) == 11)
        assert not any(unit.heard for unit in units)
        proxy.cut()
    later = Post(store)
    store.add(later)
    store.settle()
    assert store.heard[1:] == [*units, later]
    assert all(unit.heard == [None] and unit.written == 1 for unit in units)
    assert truth.halves() == sorted(id_ for unit in store.heard for id_ in unit.ids)


@pytest.mark.rule("T8", "H4")
def test_a_batch_that_was_lost_on_its_way_is_written_once(cuttable: Store, proxy: Proxy, truth: Truth) -> None:
    store = cuttable
    store.add(Post(store))
    store.settle()
    units = [Post(store, 2) for _ in range(10)]
    with proxy.held("requests"):
        store.add(*units)
        store.loop.run_for(0.2)
        assert len(truth.ops()) == 1
        proxy.cut()
    store.settle()
    assert store.heard[1:] == units
    assert truth.halves() == sorted(id_ for unit in store.heard for id_ in unit.ids)


@pytest.mark.rule("T8", "H4")
def test_a_server_process_that_is_still_at_work_is_ended_before_the_look(
    cuttable: Store, proxy: Proxy, truth: Truth, database_url: str
) -> None:
    """It could commit after we have looked: the answer would be "absent", and the batch be there twice."""
    store = cuttable
    store.add(Post(store))
    store.settle()
    units = [Post(store) for _ in range(10)]
    with psycopg.connect(database_url) as blocker:
        blocker.execute(f"lock table {SCHEMA}.op in exclusive mode".encode())
        store.add(*units)
        store.loop.run_until(lambda: truth.waiting_backends() == 1)
        (old,) = truth.rows("select pid from pg_stat_activity where wait_event_type = 'Lock'")
        proxy.cut_client_side()
        store.loop.run_until(
            lambda: (
                truth.waiting_backends() == 1
                and truth.rows("select pid from pg_stat_activity where wait_event_type = 'Lock'") != [old]
            )
        )
        assert not any(unit.heard for unit in units)
    store.settle()
    assert store.heard[1:] == units
    assert all(unit.heard == [None] for unit in units)
    assert truth.halves() == sorted(id_ for unit in store.heard for id_ in unit.ids)


@pytest.mark.usefixtures("quick_retries")
def test_the_wire_is_lost_again_while_the_batch_is_looked_for(cuttable: Store, proxy: Proxy, truth: Truth) -> None:
    store = cuttable
    dice = random.Random(5)
    units: list[Post] = []
    cuts = 0

    def cut_sometimes(_: bytes) -> None:
        nonlocal cuts
        if cuts < 60 and dice.random() < 0.3:
            cuts += 1
            proxy.cut()

    store.add(Post(store))
    store.settle()
    proxy.on_request = cut_sometimes
    for _ in range(40):
        batch = [Post(store) for _ in range(5)]
        units += batch
        store.add(*batch)
        store.settle()
    assert store.heard[1:] == units
    assert cuts == 60
    assert truth.halves() == sorted(id_ for unit in store.heard for id_ in unit.ids)


@pytest.mark.rule("T8", "H4", "H13")
@pytest.mark.usefixtures("quick_retries")
def test_server_processes_killed_at_random_moments(store: Store, truth: Truth) -> None:
    dice = random.Random(11)
    units: list[Post] = []
    kills = 0
    refused = 0
    for _ in range(150):
        batch: list[Post] = [Post(store, dice.randrange(1, 4)) for _ in range(dice.randrange(1, 30))]
        if units:
            double = Post(store, txn_id=units[0].txn_id)
            batch.insert(dice.randrange(len(batch)), double)
            refused += 1
        units += batch
        store.add(*batch)
        for _ in range(dice.randrange(4)):
            store.loop.turn(dice.random() * 0.001)
        kills += truth.kill_backends()
    store.settle()
    assert kills > 20
    good = [unit for unit in units if unit.heard == [None]]
    assert len(units) - len(good) == refused
    assert all(len(unit.heard) == 1 for unit in units)
    assert truth.halves() == sorted(id_ for unit in good for id_ in unit.ids)
    assert truth.ops() == {unit.txn_id for unit in good}


@pytest.mark.rule("T8", "H13")
def test_postgresql_stopped_and_started(own_server: tuple[EmbeddedServer, str]) -> None:
    server, url = own_server
    with truth_of(url), running(url) as store:
        units = []
        for round_ in range(3):
            batch = [Post(store) for _ in range(50)]
            units += batch
            store.add(*batch)
            for _ in range(round_):
                store.loop.turn(0.001)
            server.stop(grace_seconds=0)
            more = [Post(store) for _ in range(50)]
            units += more
            store.add(*more)
            heard = len(store.heard)
            store.loop.run_for(0.3)
            assert len(store.heard) - heard <= 50  # of the batch before, which may have been committed
            assert not any(unit.heard for unit in more)
            server.start()
        store.settle()
        assert store.heard == units
    truth = Truth(url)
    assert truth.halves() == sorted(id_ for unit in units for id_ in unit.ids)
    truth.close()


_FAILING = """
create function public.fail_for_a_while() returns trigger language plpgsql as $$
begin
  if nextval('public.failures') <= {most} then
    raise exception 'not now' using errcode = '{state}';
  end if;
  return new;
end $$;
create sequence public.failures;
create trigger failing before insert on {schema}.half for each statement execute function public.fail_for_a_while()
"""


@pytest.mark.rule("T8")
@pytest.mark.parametrize("state", ["53100", "53200", "58030", "40P01", "40001", "55P03"])
def test_a_store_in_trouble_is_waited_for(store: Store, truth: Truth, state: str) -> None:
    """A full disk, no memory, a broken file, a deadlock, a serialization failure, a lock timeout: no unit's fault."""
    truth.run(_FAILING.format(most=4, state=state, schema=SCHEMA))
    units = [Post(store) for _ in range(10)]
    store.add(*units)
    store.settle()
    assert store.heard == units
    assert all(unit.heard == [None] and unit.written == 1 for unit in units)
    assert truth.halves() == sorted(id_ for unit in units for id_ in unit.ids)


# -- the other questions


def _fill(truth: Truth, count: int) -> None:
    first = id_at(datetime.now(UTC))
    numbers = f"from generate_series({first}, {first} + {count} - 1) i"
    truth.run(f"insert into {SCHEMA}.half (id, address_id, message) select i, 1, 'm' {numbers}")
    truth.run(f"insert into {SCHEMA}.entry (group_id, id, half_id) select {GROUP}, i, i {numbers}")


def test_answers_come_in_the_order_of_the_questions(asking: Asking, truth: Truth) -> None:
    _fill(truth, 10)
    asking.lease(3)
    asking.ask(queries.HELD, GROUP.to_bytes(4, "big"), ME.to_bytes(4, "big"))
    asking.lease(100)
    asking.loop.run_until(asking.answered(3))
    first, held, rest = asking.answers
    assert isinstance(first, list)
    assert isinstance(held, list)
    assert isinstance(rest, list)
    assert [len(first), len(held), len(rest)] == [3, 3, 7]


def test_a_question_that_harms_nobody_is_asked_again(asking: Asking, proxy: Proxy) -> None:
    asking.ask(queries.FIND_SUBSCRIPTION, b"none")
    asking.loop.run_until(asking.answered(1))
    with proxy.held("replies"):
        asking.ask(queries.FIND_SUBSCRIPTION, b"none")
        asking.loop.run_for(0.1)
        proxy.cut()
    asking.loop.run_until(asking.answered(2))
    assert asking.answers == [[], []]
    assert asking.connections == 2


@pytest.mark.parametrize("what", ["requests", "replies"])
def test_a_load_whose_reply_was_lost_says_so(asking: Asking, proxy: Proxy, truth: Truth, what: str) -> None:
    """The asker then looks what is held in its name: nothing where the question never came, all where only the answer
    did not.
    """
    asking.lease()  # of nothing: prepared from now on
    asking.loop.run_until(asking.answered(1))
    _fill(truth, 10)
    with proxy.held(what):
        asking.lease()
        asking.loop.run_for(0.2)
        proxy.cut()
    asking.loop.run_until(asking.answered(2))
    assert isinstance(asking.answers[1], StoreUnavailable)
    asking.ask(queries.HELD, GROUP.to_bytes(4, "big"), ME.to_bytes(4, "big"))
    asking.loop.run_until(asking.answered(3))
    held = asking.answers[2]
    assert isinstance(held, list)
    assert len(held) == (10 if what == "replies" else 0)


def test_a_load_still_at_work_is_ended_before_it_is_given_up(
    asking: Asking, proxy: Proxy, truth: Truth, database_url: str
) -> None:
    """Else it would lease entries after we have looked, and they would never be delivered."""
    asking.lease()  # of nothing: prepared from now on
    asking.loop.run_until(asking.answered(1))
    _fill(truth, 10)
    with psycopg.connect(database_url) as blocker:
        blocker.execute(f"lock table {SCHEMA}.entry in share mode".encode())  # an update waits, a look does not
        asking.lease()
        busy = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        asking.loop.run_until(lambda: truth.rows(busy) == [(1,)])
        proxy.cut_client_side()
        asking.loop.run_until(asking.answered(2))
        assert truth.rows(busy) == [(0,)]
    assert isinstance(asking.answers[1], StoreUnavailable)
    assert truth.rows(f"select count(*) from {SCHEMA}.entry where lease <> 0") == [(0,)]


def test_notices_are_heard_after_a_lost_connection_too(asking: Asking, proxy: Proxy, truth: Truth) -> None:
    asking.loop.run_until(lambda: asking.connections == 1)
    proxy.cut()
    asking.loop.run_until(lambda: asking.connections == 2)
    truth.run("select pg_notify('coordinator_ready', '5')")
    asking.loop.run_until(lambda: asking.notices)
    assert asking.notices == [("coordinator_ready", "5")]


@pytest.mark.rule("P14")
def test_an_asker_that_fails_does_not_keep_the_next(asking: Asking) -> None:
    asking.loop.contained = []

    def fail(_: object) -> None:
        raise ZeroDivisionError

    asking.queries.ask(queries.FIND_SUBSCRIPTION, [b"x"], fail)
    asking.ask(queries.FIND_SUBSCRIPTION, b"x")
    asking.loop.run_until(asking.answered(1))
    assert asking.loop.contained == [fail]
