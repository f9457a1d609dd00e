"""The inbox (X4): an application that does the work of a message in one transaction with asking does it once."""

from __future__ import annotations

import threading
from datetime import timedelta

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import Connection, text

from coordinator.commands.maintenance import maintain
from coordinator.settings import RetentionSettings, Settings
from store import inbox

pytestmark = pytest.mark.rule("X4")

RIVALS = 8
MESSAGES = 200


def first_time(connection: psycopg.Connection[tuple[bool]], consumer: str | None, message_id: str | None) -> bool:
    row = connection.execute("select coordinator.first_time(%s, %s)", [consumer, message_id]).fetchone()
    assert row is not None
    return row[0]


def test_true_once_for_each_consumer_and_message(database_url: str) -> None:
    with psycopg.connect(database_url) as application:
        asked = [first_time(application, *each) for each in [("a", "1"), ("a", "1"), ("a", "2"), ("b", "1")]]
    assert asked == [True, False, True, True]
    with psycopg.connect(database_url) as application:
        assert not first_time(application, "a", "1")


def test_work_that_was_rolled_back_is_done_again(database_url: str) -> None:
    with psycopg.connect(database_url) as application:
        assert first_time(application, "a", "1")
        application.rollback()
        assert first_time(application, "a", "1")


@pytest.mark.parametrize("commits", [True, False])
def test_one_that_asks_beside_another_waits_for_it(database_url: str, commits: bool) -> None:
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as other:
        assert first_time(one, "a", "1")
        answers: list[bool] = []
        asks = threading.Thread(target=lambda: answers.append(first_time(other, "a", "1")))
        asks.start()
        with psycopg.connect(database_url, autocommit=True) as looks:
            waits = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
            while looks.execute(waits, [other.info.backend_pid]).fetchone() is None:
                assert asks.is_alive()
        assert answers == []
        one.commit() if commits else one.rollback()
        asks.join()
    assert answers == [not commits]


def test_of_many_rivals_one_is_the_first(database_url: str) -> None:
    """Each message is asked for by all of them, in one transaction each; some of them roll back."""
    won: list[int] = []

    def consume(rival: int) -> None:
        with psycopg.connect(database_url) as application:
            for number in range(MESSAGES):
                first = first_time(application, "a", str(number))
                if (number + rival) % 3 == 0:
                    application.rollback()
                    first = first_time(application, "a", str(number))
                application.commit()
                won.extend([number] * first)

    rivals = [threading.Thread(target=consume, args=[rival]) for rival in range(RIVALS)]
    for each in rivals:
        each.start()
    for each in rivals:
        each.join()
    assert sorted(won) == list(range(MESSAGES))


@pytest.mark.parametrize(
    ("consumer", "message_id", "says"),
    [
        (None, "1", "expected a consumer of 1 to 1000 octets, not null"),
        ("", "1", "expected a consumer of 1 to 1000 octets, not 0 octets"),
        ("ä" * 501, "1", "expected a consumer of 1 to 1000 octets, not 1002 octets"),
        ("a", None, "expected a message-id of 1 to 1000 octets, not null"),
        ("a", "", "expected a message-id of 1 to 1000 octets, not 0 octets"),
        ("a", "m" * 1001, "expected a message-id of 1 to 1000 octets, not 1001 octets"),
    ],
)
def test_what_it_cannot_take_is_refused(
    database_url: str, consumer: str | None, message_id: str | None, says: str
) -> None:
    with psycopg.connect(database_url) as application:
        with pytest.raises(errors.InvalidParameterValue, match=f"coordinator.first_time: {says}"):
            first_time(application, consumer, message_id)
        application.rollback()
        assert first_time(application, "ä" * 500, "m" * 1000)


def test_a_role_of_the_application_needs_no_right_to_the_table(database_url: str) -> None:
    with psycopg.connect(database_url) as owner:
        owner.execute("create role application_of_inbox")
        owner.execute("grant usage on schema coordinator to application_of_inbox")
        owner.execute("grant execute on function coordinator.first_time(text, text) to application_of_inbox")
        owner.execute("set role application_of_inbox")
        owner.execute("create temporary table inbox (consumer text, message_id text, taken_at timestamptz)")
        assert first_time(owner, "a", "1")
        assert not first_time(owner, "a", "1")
        with pytest.raises(errors.InsufficientPrivilege):
            owner.execute("select * from coordinator.inbox")
        owner.rollback()


def test_it_is_forgotten_after_its_time(database: Connection, database_url: str) -> None:
    """What an application still holds is left for the next time."""
    rows = "select 'a', n, now() - make_interval(hours => n) from generate_series(1, 10) n"
    database.execute(text(f"insert into coordinator.inbox {rows}"))
    database.commit()
    with psycopg.connect(database_url) as application:
        application.execute("select 1 from coordinator.inbox where message_id = '10' for update")
        assert inbox.forget(database, timedelta(hours=5, minutes=30), chunk=2) == 4
    left = database.scalars(text("select message_id from coordinator.inbox order by taken_at desc")).all()
    database.rollback()
    assert left == ["1", "2", "3", "4", "5", "10"]
    settings = Settings(retention=RetentionSettings(hours=1, decisions_hours=1, inbox_hours=3.5))
    assert maintain(settings, database_url) == 0
    assert database.scalar(text("select count(*) from coordinator.inbox")) == 3
