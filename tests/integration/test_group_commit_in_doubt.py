"""The group commit on a real PostgreSQL: every way to lose its connection, and a store in trouble."""

from __future__ import annotations

import random

import psycopg
import pytest

from store.embedded.server import EmbeddedServer
from store.libpq import BEGAN, Backend, LostBackend
from store.tables import SCHEMA
from tests.fix_proxy import Proxy
from tests.fix_store_driver import ME, Post, Store, Truth, running, truth_of


@pytest.mark.rule("T8", "H4")
def test_a_batch_that_was_committed_and_its_reply_lost_is_not_written_again(
    cuttable: Store, proxy: Proxy, truth: Truth
) -> None:
    store = cuttable
    store.add(Post(store), Post(store))  # their statement is prepared
    store.settle()
    units = [Post(store, 2) for _ in range(10)]
    with proxy.held("replies"):
        store.add(*units)
        store.loop.run_until(lambda: len(truth.ops()) == 12)
        assert not any(unit.heard for unit in units)
        proxy.cut()
    later = Post(store)
    store.add(later)
    store.settle()
    assert store.heard[2:] == [*units, later]
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


@pytest.mark.rule("T8", "T11", "H4")
@pytest.mark.usefixtures("pooled")
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


@pytest.mark.rule("T8", "T11")
@pytest.mark.parametrize(
    ("later", "name", "lives"),
    [(0, "", False), (1, "", True), (0, " of another", True)],
    ids=["ours", "later", "another"],
)
def test_a_later_process_of_the_same_number_is_left_alone(
    store: Store, truth: Truth, database_url: str, later: int, name: str, lives: bool
) -> None:
    """Numbers of processes come again: when a process began, and its name, say whether it is the one that was lost."""
    with psycopg.connect(database_url, application_name=f"coordinator batch {ME}{name}") as session:
        pid = session.info.backend_pid
        ((began,),) = truth.rows(f"select {BEGAN} from pg_stat_activity where pid = %s", pid)
        ended: list[bool] = []
        store.loop.run_until(lambda: store.commit.connection.idle)
        LostBackend(store.loop, store.commit.connection).terminate(
            Backend(pid, began - later), lambda: ended.append(True)
        )
        store.loop.run_until(lambda: ended)
        assert bool(truth.rows("select from pg_stat_activity where pid = %s", pid)) == lives


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
def test_a_warning_of_the_server_is_no_doubt(store: Store, truth: Truth) -> None:
    """Of transaction ids that run out, or of what a trigger wants said: the commit is a commit, and the wire stays."""
    truth.run(
        f"""create function public.warns() returns trigger language plpgsql as $$
            begin raise warning 'database must be vacuumed within 39999999 transactions'; return new; end $$;
            create trigger warns before insert on {SCHEMA}.half for each row execute function public.warns()"""
    )
    store.add(Post(store))
    store.settle()
    backend = store.commit.connection.backend
    units = [Post(store) for _ in range(3)]
    for unit in units:
        store.add(unit)
        store.settle()
    assert [unit.heard for unit in units] == [[None]] * 3
    assert store.commit.connection.backend == backend


@pytest.mark.rule("T8")
@pytest.mark.parametrize("state", ["53100", "53200", "58030", "40P01", "40001", "55P03"])
def test_a_store_in_trouble_is_waited_for(store: Store, truth: Truth, state: str) -> None:
    """A full disk, no memory, a broken file, a deadlock, a serialization failure, a lock timeout: no unit's fault."""
    truth.run(_FAILING.format(most=4, state=state, schema=SCHEMA))
    units = [Post(store) for _ in range(10)]
    store.add(*units)
    store.settle()
    assert store.heard == units
    assert all(unit.heard == [None] for unit in units)
    assert truth.halves() == sorted(id_ for unit in units for id_ in unit.ids)
