"""The inbox (X4): an application that does the work of a message in one transaction with asking does it once."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import Connection, text

from coordinator.commands.maintenance import maintain
from coordinator.settings import RetentionSettings, Settings
from store import retention, roles
from store.database import connected

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


def test_the_first_use_of_a_name_holds_up_no_other_message(database_url: str) -> None:
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as other:
        assert first_time(one, "new", "1")
        other.execute("set local lock_timeout = '10s'")
        assert first_time(other, "new", "2")


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
        assert retention.forget(database, timedelta(hours=5, minutes=30), chunk=2) == 4
    left = database.scalars(text("select message_id from coordinator.inbox order by taken_at desc")).all()
    database.rollback()
    assert left == ["1", "2", "3", "4", "5", "10"]
    settings = Settings(retention=RetentionSettings(hours=1, decisions_hours=1, inbox_hours=3.5))
    assert maintain(settings, database_url) == 0
    assert database.scalar(text("select count(*) from coordinator.inbox")) == 3


@pytest.mark.rule("P22")
def test_the_tags_of_producers_are_forgotten_after_as_long(database: Connection, database_url: str) -> None:
    rows = "select 1, '', 'shop', n::text::bytea, n, now() - make_interval(hours => n) from generate_series(1, 10) n"
    database.execute(text(f"insert into coordinator.posted {rows}"))
    database.commit()
    settings = Settings(retention=RetentionSettings(hours=1, decisions_hours=1, inbox_hours=3.5))
    assert maintain(settings, database_url) == 0
    assert database.scalars(text("select half_id from coordinator.posted order by half_id")).all() == [1, 2, 3]


class Applications:
    """Sessions of roles of applications: "one" and "two" are members of "team", "other" is not."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._names = {name: f"inbox_{name}_{secrets.token_hex(4)}" for name in ("team", "one", "two", "other")}

    def make(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as owner:
            for name in self._names.values():
                owner.execute(f"create role {name}".encode())
            owner.execute("grant {team} to {one}, {two}".format(**self._names).encode())
        for name in self._names:
            self.grant(name)

    def grant(self, name: str, *consumers: str) -> None:
        with connected(self._url) as connection:
            roles.grant_application(connection, self._names[name], consumers)

    def ask(self, name: str, consumer: str, message_id: str, *, how: str = "session authorization") -> bool:
        with psycopg.connect(self._url) as session:
            session.execute(f"set {how} {self._names[name]}".encode())
            return first_time(session, consumer, message_id)

    def drop(self, *names: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as owner:
            for name in names or self._names:
                owner.execute(f"drop role if exists {self._names[name]}".encode())


@pytest.fixture
def applications(database_url: str) -> Iterator[Applications]:
    made = Applications(database_url)
    made.make()
    yield made
    made.drop()


@pytest.mark.parametrize("how", ["session authorization", "role"])
def test_a_name_is_for_the_role_that_used_it_first(applications: Applications, how: str) -> None:
    """Else any role could make another's work count as done."""
    assert applications.ask("one", "billing", "1", how=how)
    for message_id in ("1", "2"):
        with pytest.raises(psycopg.Error, match=r'the consumer "billing" belongs to the role "inbox_one') as refused:
            applications.ask("other", "billing", message_id, how=how)
        assert refused.value.sqlstate == "CO011"
        assert "coordinator role grant --application ROLE --inbox NAME" in str(refused.value.diag.message_hint)
    assert applications.ask("one", "billing", "2", how=how)
    assert applications.ask("other", "shipping", "1", how=how)


def test_a_name_that_was_granted_is_for_all_members_of_the_role(applications: Applications) -> None:
    applications.grant("team", "billing", "shipping")
    assert applications.ask("one", "billing", "1")
    assert not applications.ask("two", "billing", "1")
    assert applications.ask("team", "shipping", "1")
    with pytest.raises(psycopg.Error, match="belongs to the role"):
        applications.ask("other", "billing", "2")


def test_a_name_is_handed_over(applications: Applications) -> None:
    assert applications.ask("one", "billing", "1")
    applications.grant("other", "billing")
    assert not applications.ask("other", "billing", "1")
    with pytest.raises(psycopg.Error, match="belongs to the role"):
        applications.ask("one", "billing", "2")


def test_the_name_of_a_role_that_is_gone_waits_for_a_grant(applications: Applications) -> None:
    assert applications.ask("one", "billing", "1")
    applications.drop("one")
    with pytest.raises(psycopg.Error, match="belongs to the role"):
        applications.ask("two", "billing", "1")
    applications.grant("two", "billing")
    assert not applications.ask("two", "billing", "1")


def test_a_first_question_that_was_undone_leaves_the_name_to_others(
    applications: Applications, database_url: str
) -> None:
    with psycopg.connect(database_url) as owner:
        assert first_time(owner, "billing", "1")
        owner.rollback()
    assert applications.ask("one", "billing", "1")
    with psycopg.connect(database_url) as owner:
        assert not first_time(owner, "billing", "1"), "a superuser is a member of all roles"


def test_after_its_first_use_a_name_costs_no_write(database_url: str) -> None:
    with psycopg.connect(database_url) as application:
        for number in range(3):
            first_time(application, "a", str(number))
            application.commit()
        written = "select n_tup_ins, n_tup_upd from pg_stat_user_tables where relname = 'inbox_owner'"
        application.execute("select pg_stat_force_next_flush()")
        application.commit()
        assert application.execute(written).fetchone() == (1, 0)
