"""Two servers, and every commit waits for the standby: what is answered is there when the primary is no more."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from store import partitions, recovery
from store.database import connected, engine
from store.decisions import Decision, Decisions
from store.embedded.server import EmbeddedServer
from store.errors import StoreError
from store.tables import SCHEMA
from tests.fix_postgres import signal_server
from tests.fix_proxy import Proxy
from tests.fix_standby import copy_to
from tests.fix_store_driver import (
    INSTANCE,
    ME,
    QUEUE,
    WAIT_FOR_STANDBY,
    Post,
    Store,
    Truth,
    let_commits_wait,
    running,
)


class Pair:
    """A primary and its standby. Clients connect through :attr:`proxy`; :attr:`truth` looks past it."""

    def __init__(self, primary: EmbeddedServer, url: str, standby: Path) -> None:
        self.primary = primary
        self.url = url
        self.standby = EmbeddedServer(standby)
        with connected(url) as connection:
            partitions.make_ahead(connection)
        self.proxy = Proxy(url)
        self.truth = Truth(url)
        self.truth.run(INSTANCE)
        self.truth.run(QUEUE)
        copy_to(primary, url, standby)
        self._standby_url = self.standby.start()

    def wait_for_standby(self, store: Store) -> None:
        """From now on every commit does."""
        let_commits_wait(self.truth, self.url)
        self.truth.run("alter system set synchronous_standby_names = '*'")
        self.truth.run("select pg_reload_conf()")
        synchronous = "select count(*) from pg_stat_replication where sync_state = 'sync'"
        store.loop.run_until(lambda: self.truth.rows(synchronous) == [(1,)])

    def signal_standby(self, number: signal.Signals) -> None:
        assert self.standby.pid
        signal_server(self.standby.pid, number)

    def waiting(self) -> list[int]:
        """Server processes whose commit waits for the standby."""
        return [row[0] for row in self.truth.rows(WAIT_FOR_STANDBY)]

    def fail_over(self) -> Truth:
        """The primary is killed and the standby takes its place."""
        self.lose_primary()
        return self.take_over()

    def lose_primary(self) -> None:
        assert self.primary.pid
        signal_server(self.primary.pid, signal.SIGKILL)
        self.primary.wait()

    def take_over(self) -> Truth:
        with psycopg.connect(self._standby_url) as connection:
            assert connection.execute(b"select pg_promote()").fetchone() == (True,)
        self.proxy.lead_to(self._standby_url)
        self.truth.close()
        self.truth = Truth(self._standby_url)
        return self.truth

    def close(self) -> None:
        self.proxy.close()
        self.truth.close()
        if self.standby.pid:
            self.signal_standby(signal.SIGCONT)
        self.standby.stop()


@pytest.fixture
def pair(own_server: tuple[EmbeddedServer, str]) -> Iterator[Pair]:
    primary, url = own_server
    pair = Pair(primary, url, primary.data_dir.with_name(f"{primary.data_dir.name}-standby"))
    yield pair
    pair.close()


@pytest.fixture
def store(pair: Pair) -> Iterator[Store]:
    """One commit has gone through both servers; then the standby stands still."""
    with running(pair.proxy.url) as store:
        pair.wait_for_standby(store)
        store.add(Post(store))
        store.settle()
        pair.signal_standby(signal.SIGSTOP)
        yield store


def _commit_in_doubt(pair: Pair, store: Store) -> Post:
    """Its commit waits for the standby, and its connection is gone."""
    unit = Post(store, 3)
    store.add(unit)
    store.loop.run_until(lambda: len(pair.waiting()) == 1)
    (pid,) = pair.waiting()
    pair.proxy.cut()
    store.loop.run_until(lambda: unit.txn_id in pair.truth.ops())
    store.loop.run_until(lambda: unit.heard or [each for each in pair.waiting() if each != pid])
    return unit


@pytest.mark.rule("T8", "T11", "H4")
def test_a_commit_in_doubt_is_answered_and_told_only_when_the_standby_has_it(pair: Pair, store: Store) -> None:
    unit = _commit_in_doubt(pair, store)
    assert unit.heard == []
    told: list[object] = []
    decisions = Decisions(store.loop, pair.proxy.url, ME)
    decisions.start()
    decisions.ask(unit.txn_id, told.append)
    store.loop.run_until(lambda: told or len(pair.waiting()) == 2)
    assert (told, unit.heard) == ([], [])
    pair.signal_standby(signal.SIGCONT)
    store.loop.run_until(lambda: told)
    store.settle()
    decisions.close()
    assert (told, unit.heard, unit.written) == ([Decision("commit", "")], [None], 1)
    truth = pair.fail_over()
    assert unit.txn_id in truth.ops()
    assert set(unit.ids) <= set(truth.halves())


@pytest.mark.rule("T8", "H4")
def test_a_batch_in_doubt_whose_primary_is_lost_is_in_the_store_that_takes_over(pair: Pair, store: Store) -> None:
    """Whether the standby had it or not: it is answered once, and there once."""
    unit = _commit_in_doubt(pair, store)
    pair.signal_standby(signal.SIGCONT)
    truth = pair.fail_over()
    later = Post(store)
    store.add(later)
    store.settle()
    assert (unit.heard, later.heard) == ([None], [None])
    assert truth.halves() == sorted(id_ for each in store.heard for id_ in each.ids)
    assert truth.entries() == truth.halves()


def _end(connection: Connection) -> object:
    return recovery.end(connection, ME)


def _give_up(connection: Connection) -> object:
    """As one whose heart does not beat: its server processes are ended, also one that waits for the standby."""
    return recovery.give_up_dead(connection, {ME: None})


class GivingUp:
    """Of the instance, in a thread."""

    def __init__(self, pair: Pair, how: Callable[[Connection], object]) -> None:
        self.done: object = None
        self.error: Exception | None = None
        self._pair = pair
        self._how = how
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with engine(self._pair.url, application_name="giving up").connect() as connection:
                self.done = self._how(connection)
        except (StoreError, DBAPIError) as error:
            self.error = error

    def waits(self) -> bool:
        """For the commit in doubt to end, or for the standby to have its own."""
        state = "select 1 from pg_stat_activity where application_name = 'giving up' and (wait_event_type = 'Lock' or "
        assert self.thread.is_alive(), self.error or self.done
        return self._pair.truth.rows(f"{state} wait_event = 'SyncRep')") == [(1,)]


def _waiting_commit(pair: Pair, store: Store) -> Post:
    unit = Post(store, 3)
    store.add(unit)
    store.loop.run_until(lambda: len(pair.waiting()) == 1)
    return unit


GIVING_UP = pytest.mark.parametrize("how", [_end, _give_up])


@pytest.mark.rule("T8", "T11", "H4", "H13")
@GIVING_UP
def test_an_instance_that_is_given_up_while_its_commit_waits(
    pair: Pair, store: Store, how: Callable[[Connection], object]
) -> None:
    """Neither the client nor who gives it up is answered before the standby has the commit; then it stands."""
    unit = _waiting_commit(pair, store)
    giving_up = GivingUp(pair, how)
    store.loop.run_until(giving_up.waits)
    store.loop.run_for(0.3)
    assert (unit.heard, giving_up.done) == ([], None)
    pair.signal_standby(signal.SIGCONT)
    store.loop.run_until(lambda: not giving_up.thread.is_alive())
    store.loop.run_until(lambda: unit.heard or store.fenced)
    assert giving_up.error is None
    assert unit.heard in ([None], [])  # it may have been given up before it could ask
    assert unit.written == 1
    late = Post(store)
    store.add(late)
    store.loop.run_until(lambda: store.fenced)
    truth = pair.fail_over()
    assert (late.heard, late.txn_id in truth.ops()) == ([], False)
    assert truth.rows(f"select decision from {SCHEMA}.op where id = %s", unit.txn_id.hex()) == [("commit",)]
    assert set(unit.ids) <= set(truth.halves())
    # given back
    assert set(
        truth.rows(f"select lease, holder from {SCHEMA}.entry join {SCHEMA}.consumer_group g on g.id = group_id")
    ) == {(0, 0)}


@pytest.mark.rule("T8", "T11", "H4", "H13")
@GIVING_UP
def test_a_primary_that_is_lost_while_an_instance_is_given_up(
    pair: Pair, store: Store, how: Callable[[Connection], object]
) -> None:
    """Whether the standby had the commit or not, and whether it had the other: a commit that is answered is there."""
    unit = _waiting_commit(pair, store)
    giving_up = GivingUp(pair, how)
    store.loop.run_until(giving_up.waits)
    assert (unit.heard, giving_up.done) == ([], None)
    pair.lose_primary()
    giving_up.thread.join()
    assert giving_up.error is not None
    pair.signal_standby(signal.SIGCONT)
    truth = pair.take_over()
    store.loop.run_until(lambda: unit.heard or store.fenced)
    given_up = truth.rows(f"select ended_at is not null from {SCHEMA}.instance") == [(True,)]
    assert unit.heard in ([None], []) if given_up else unit.heard == [None]
    first = store.heard[0]
    there = [first, unit] if unit.txn_id in truth.ops() else [first]
    assert not unit.heard or unit in there
    assert truth.halves() == truth.entries() == sorted(id_ for each in there for id_ in each.ids)
