"""The queries' connection on a real PostgreSQL: their order, and what becomes of them when it is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import psycopg
import pytest

from store import asking as asking_module
from store.commit import terms
from store.commit.terms import Rank
from store.errors import StoreUnavailable
from store.ids import id_at
from store.loop import TimeShare
from store.questions import consumer_groups, entries, message_groups
from store.tables import SCHEMA
from tests.fix_proxy import Proxy
from tests.fix_store_driver import GROUP, ME, Asking, Truth


def test_answers_come_in_the_order_of_the_questions(asking: Asking, truth: Truth) -> None:
    truth.fill(10)
    asking.lease(3)
    asking.ask(entries.leased, GROUP, ME)
    asking.lease(100)
    asking.loop.run_until(asking.answered(3))
    first, held, rest = asking.answers
    assert [len(first.rows), len(held), len(rest.rows)] == [3, 3, 7]


@pytest.mark.parametrize(("share", "order"), [(1, "aabb"), (1_000_000, "abba")])
def test_questions_aside_have_their_share_of_the_time_while_others_wait(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, share: int, order: str
) -> None:
    monkeypatch.setattr(asking_module, "ASIDE", TimeShare(parts=share))
    heard: list[str] = []
    for _ in range(2):
        entries.piece(asking.queries, 1, 0, 1, lambda _: heard.append("a"))
    for _ in range(2):
        consumer_groups.subscription_of(asking.queries, "none", 0, lambda _: heard.append("b"))
    asking.loop.run_until(lambda: len(heard) == 4)
    assert "".join(heard) == order


def test_a_question_that_changes_nothing_is_asked_again(asking: Asking, proxy: Proxy) -> None:
    asking.ask(consumer_groups.subscription_of, "none", 0)
    asking.loop.run_until(asking.answered(1))
    with proxy.held("replies"):
        asking.ask(consumer_groups.subscription_of, "none", 0)
        asking.loop.run_for(0.1)
        proxy.cut()
    asking.loop.run_until(asking.answered(2))
    assert asking.answers == [None, None]
    assert asking.connections == 2


@pytest.mark.parametrize("what", ["requests", "replies"])
def test_a_load_whose_reply_was_lost_says_so(asking: Asking, proxy: Proxy, truth: Truth, what: str) -> None:
    """The asker then looks what is held in its name: nothing where the question never came, all where only the answer
    did not.
    """
    asking.lease()  # of nothing: prepared from now on
    asking.loop.run_until(asking.answered(1))
    truth.fill(10)
    with proxy.held(what):
        asking.lease()
        asking.loop.run_for(0.2)
        proxy.cut()
    asking.loop.run_until(asking.answered(2))
    assert isinstance(asking.answers[1], StoreUnavailable)
    asking.ask(entries.leased, GROUP, ME)
    asking.loop.run_until(asking.answered(3))
    assert len(asking.answers[2]) == (10 if what == "replies" else 0)


def test_a_load_still_at_work_is_ended_before_it_is_given_up(
    asking: Asking, proxy: Proxy, truth: Truth, database_url: str
) -> None:
    """Else it would lease entries after we have looked, and they would never be delivered."""
    asking.lease()  # of nothing: prepared from now on
    asking.loop.run_until(asking.answered(1))
    truth.fill(10)
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


KEY = -5


def _release(asking: Asking) -> None:
    message_groups.release(asking.queries, GROUP, [KEY], ME, notify=False)


def _forget(asking: Asking) -> None:
    message_groups.forget(asking.queries, GROUP, [], ME, lambda _: None)


@pytest.mark.rule("P18")
@pytest.mark.parametrize("give_up", [_release, _forget])
@pytest.mark.usefixtures("pooled")
def test_a_message_group_that_is_claimed_anew_stays_claimed(
    asking: Asking, proxy: Proxy, truth: Truth, database_url: str, give_up: Callable[[Asking], None]
) -> None:
    """To give it up is asked again after the connection was lost, but not beside the process that is at work on the
    first question: that one would take a later claim away, and another instance could deliver the group as well.
    """
    first = id_at(datetime.now(UTC))
    truth.run(f"insert into {SCHEMA}.half (id, address_id, message) values ({first}, 1, 'm')")
    truth.run(
        f"insert into {SCHEMA}.entry (group_id, id, half_id, message_group) values ({GROUP}, {first}, {first}, {KEY})"
    )
    truth.run(f"insert into {SCHEMA}.message_group (group_id, key, instance_id) values ({GROUP}, {KEY}, {ME})")
    waiting = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with psycopg.connect(database_url) as blocker:
        blocker.execute(f"lock table {SCHEMA}.message_group in share mode".encode())  # a deletion waits
        give_up(asking)
        asking.loop.run_until(lambda: truth.rows(waiting))
        before = truth.rows(waiting)
        proxy.cut_client_side()
        asking.ask(message_groups.claim, GROUP, [KEY], ME)
        asking.loop.run_until(lambda: set(truth.rows(waiting)) - set(before))
        assert not set(truth.rows(waiting)) & set(before)
    asking.loop.run_until(asking.answered(1))
    assert asking.answers == [[KEY]]
    assert truth.rows(f"select key, instance_id from {SCHEMA}.message_group") == [(KEY, ME)]


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

    consumer_groups.subscription_of(asking.queries, "x", 0, fail)
    asking.ask(consumer_groups.subscription_of, "x", 0)
    asking.loop.run_until(asking.answered(1))
    assert asking.loop.contained == [fail]


@pytest.mark.rule("S5")
def test_those_who_look_through_messages_do_not_keep_others_waiting(asking: Asking, truth: Truth) -> None:
    """However many of them ask: another question is the next."""
    truth.fill(10)
    for _ in range(3):
        asking.ask(entries.browse, Rank.NORMAL, GROUP, (terms.DEFAULT, 0), 5, 1 << 20)
    asking.ask(consumer_groups.subscription_of, "none", 0)
    asking.loop.run_until(asking.answered(4))
    assert [each is None for each in asking.answers] == [False, True, False, False]
