"""What people decide is in the audit: in the SQL transaction of the change, for good, and printed safely (rule S10)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, text
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from coordinator.__main__ import app
from coordinator.login.penalties import MOST_TOLD, Failures
from store import (
    addresses,
    audit,
    connections,
    dead_letters,
    permissions,
    removal,
    retirement,
    roles,
    seeks,
    undecided,
    users,
)
from store.audit import Action, Actor, Wanted, act_as, note, read
from store.commit.terms import PLAIN
from store.errors import AppendOnly, StoreError, UserExists, boundary
from store.permissions import Grantee, Verb
from store.purge import purge
from store.repairs import Decide, Release, Resume, State
from store.seeks import group as place
from tests.fix_store import Rows
from tests.fix_store_driver import ME, Asking

pytestmark = pytest.mark.rule("S10")

#: ``coordinator`` with arguments, in this process
Run = Callable[..., Result]

CAROL = Actor(os_user="carol", host="desk", reason="told to")
#: SQL, HTML, an escape of a terminal, a forged line, a text that turns its direction
HOSTILE = "'; drop table x; --<b>\x1b[2J\r\nat  who\u202egnp"


def _all(connection: Connection) -> list[audit.AuditLine]:
    return read(connection, Wanted(), 1000)


def _users(connection: Connection) -> list[tuple[Action, str, dict[str, Any]]]:
    users.add(connection, "alice", {})
    (made,) = users.list_all(connection)
    assert users.set_verifiers(connection, "alice", {})
    assert users.disable(connection, "alice")
    assert users.enable(connection, "alice")
    assert permissions.give_role(connection, "alice", "clerks")
    assert permissions.take_role(connection, "alice", "clerks")
    assert permissions.grant(connection, Grantee(user="alice"), [Verb.SEND], "x*")
    assert permissions.grant(connection, Grantee(role="clerks"), [Verb.SEND, Verb.BROWSE], "y")
    assert permissions.revoke(connection, Grantee(user="alice"), [Verb.SEND], "x*")
    assert users.remove(connection, "alice")
    return [
        (Action.USER_ADD, "alice", {"id": made.id, "mechanisms": []}),
        (Action.USER_PASSWORD, "alice", {}),
        (Action.USER_DISABLE, "alice", {}),
        (Action.USER_ENABLE, "alice", {}),
        (Action.ROLE_GIVE, "alice", {"role": "clerks"}),
        (Action.ROLE_TAKE, "alice", {"role": "clerks"}),
        (Action.GRANT, "x*", {"user": "alice", "verbs": ["send"]}),
        (Action.GRANT, "y", {"role": "clerks", "verbs": ["send", "browse"]}),
        (Action.REVOKE, "x*", {"user": "alice", "verbs": ["send"]}),
        (Action.USER_REMOVE, "alice", {}),
    ]


def _addresses(connection: Connection, rows: Rows) -> list[tuple[Action, str, dict[str, Any]]]:
    terms: dict[str, Any] = {"routing": "queue", "kind": "normal", "on_expiry": "drop", "max_attempts": 16}
    addresses.add(connection, name="orders", **terms)
    assert addresses.change(connection, "orders", {"max_attempts": 3})
    group = rows.queue("orders", group="billing")
    assert addresses.change_group(connection, "orders", group, {"retry": "ladder"})
    assert addresses.pause_group(connection, "orders", group) is not None
    assert addresses.resume_group(connection, "orders", group) is not None
    by_hand = rows.entry(group)
    found = retirement.waiting(connection, group, by_hand)
    assert found is not None
    retirement.retire(connection, group, by_hand, found, failed=None, named="orders::billing")
    for _ in range(3):
        rows.entry(group)
    assert (done := purge(connection, "orders", chunk=1)) is not None
    assert done.purged == 3
    seeks.move_forth(connection, place(connection, group), 1 << 40, version="1")
    assert (gone := removal.remove(connection, "orders", force=True)) is not None
    assert gone.removed
    return [
        (Action.ADDRESS_ADD, "orders", {**terms, "retry": "immediate", "retention_hours": None}),
        (Action.ADDRESS_SET, "orders", {"max_attempts": 3}),
        (Action.GROUP_SET, "orders", {"group": "billing", "retry": "ladder"}),
        (Action.GROUP_PAUSE, "orders", {"group": "billing"}),
        (Action.GROUP_RESUME, "orders", {"group": "billing"}),
        (Action.RETIRE, str(by_hand), {"group": "orders::billing", "outcome": "accepted"}),
        (Action.PURGE, "orders", {}),
        (Action.SEEK, "orders", {"group": "billing", "direction": "forth", "to_id": 1 << 40}),
        (Action.ADDRESS_REMOVE, "orders", {"force": True}),
    ]


def _transactions(connection: Connection, rows: Rows) -> list[tuple[Action, str, dict[str, Any]]]:
    address = rows.address_of(rows.queue("jobs"))
    plain, commits, overdue, repaired = (
        rows.txn(ME),
        *(rows.checkable(ME, address) for _ in range(3)),
    )
    undecided.roll_back(connection, plain, "why")
    undecided.commit(connection, commits, "why")
    undecided.resume(connection, overdue)
    assert Decide(repaired, "rollback").apply(connection, "run 1").state is State.DONE
    return [
        (Action.RESOLVE, str(plain), {"decision": "rollback", "reason": "why"}),
        (Action.RESOLVE, str(commits), {"decision": "commit", "reason": "why"}),
        (Action.RESUME, str(overdue), {}),
        (Action.REPAIR, str(repaired), {"decision": "rollback", "reason": "run 1"}),
    ]


def _letters(connection: Connection, rows: Rows) -> list[tuple[Action, str, dict[str, Any]]]:
    box = rows.queue("%DLQ%jobs", origin="dead-letter")
    letters = [rows.entry(box) for _ in range(2)]
    goal = dead_letters.goal(connection, "jobs", "")
    assert goal is not None
    done = dead_letters.replay(connection, box, letters, lambda _: (goal, PLAIN))
    assert list(done.ids) == letters
    return [(Action.REPLAY, "%DLQ%jobs", {"ids": letters})]


def _connections(connection: Connection, rows: Rows) -> list[tuple[Action, str, dict[str, Any]]]:
    there = rows.listed(rows.instance())
    connections.ask_to_close(connection, there, "why")
    return [(Action.CONNECTION_CLOSE, str(there), {"user": None, "host": "10.0.0.9", "port": None, "container": "c"})]


def _roles(connection: Connection) -> list[tuple[Action, str, dict[str, Any]]]:
    """Of the database: those of the whole server, so this one is removed again."""
    role = f"test_{secrets.token_hex(4)}"
    connection.execute(text(f"create role {role}"))
    connection.commit()
    try:
        roles.grant_application(connection, role)
        roles.grant(connection, roles.READER, role)
    finally:
        connection.rollback()
        connection.execute(text(f"drop role {role}"))
        connection.commit()
    return [(Action.GRANT_SQL, role, {}), (Action.GRANT_ROLES, role, {"group": roles.READER})]


def test_each_decision_has_a_row(database: Connection, rows: Rows) -> None:
    act_as(database, CAROL)
    expected = [
        *_users(database),
        *_addresses(database, rows),
        *_transactions(database, rows),
        *_letters(database, rows),
        *_connections(database, rows),
        *_roles(database),
    ]
    assert [(line.action, line.subject, line.detail) for line in _all(database)] == expected
    assert {action for action, _, _ in expected} == set(Action) - {Action.LOGIN_FAILED}, "one has no case here"
    mine = {(line.os_user, line.place, line.reason, line.database_role, line.times) for line in _all(database)}
    role = database.scalar(text("select session_user"))
    assert mine == {("carol", "desk", "told to", role, 1)}


def test_repairs_of_deliveries_and_of_checks_have_rows(database: Connection, rows: Rows) -> None:
    group = rows.queue("orders")
    gone = rows.instance(ended_at=datetime.now(UTC))
    stuck = rows.entry(group, lease=gone)
    overdue = rows.checkable(ME, rows.address_of(group))
    database.execute(text("update coordinator.txn set checks = most_checks, next_check_at = now() - interval '1 min'"))
    database.commit()
    released = Release(stuck, "orders", "").apply(database, "run 2")
    resumed = Resume(overdue, datetime.now(UTC)).apply(database, "run 2")
    assert (released.state, resumed.state) == (State.DONE, State.DONE)
    assert [(line.action, line.subject, line.detail) for line in _all(database)] == [
        (Action.REPAIR, f"message {stuck} to orders", {"repair": "release", "reason": "run 2"}),
        (Action.REPAIR, str(overdue), {"repair": "resume", "reason": "run 2"}),
    ]


#: The transaction that wrote the row of the change, and that of the audit.
_WRITTEN = {
    "user_account": "name = 'alice'",
    "permission": "pattern = 'x'",
    "user_role": "role = 'clerks'",
    "address": "name = 'orders'",
    "op": "decision = 'rollback'",
}


def test_a_row_is_written_in_the_transaction_of_its_change(database: Connection, rows: Rows) -> None:
    txn_id = rows.txn(ME)
    users.add(database, "alice", {})
    permissions.grant(database, Grantee(user="alice"), [Verb.SEND], "x")
    permissions.give_role(database, "alice", "clerks")
    addresses.add(database, name="orders", routing="queue", kind="normal", on_expiry="drop", max_attempts=16)
    undecided.roll_back(database, txn_id, "why")
    changes = [
        database.scalar(text(f"select xmin::text from coordinator.{table} where {which}"))
        for table, which in _WRITTEN.items()
    ]
    told = database.scalars(text("select xmin::text from coordinator.audit order by id")).all()
    assert told == changes
    assert len(set(changes)) == len(changes)


def test_what_is_not_done_has_no_row(database: Connection, rows: Rows) -> None:
    users.add(database, "alice", {})
    with pytest.raises(UserExists):
        users.add(database, "alice", {})
    database.rollback()
    for change in (users.disable, users.enable, users.remove):
        assert not change(database, "bob")
    assert not permissions.give_role(database, "bob", "clerks")
    assert not permissions.revoke(database, Grantee(user="alice"), list(Verb), "x")
    assert not addresses.change(database, "orders", {"max_attempts": 3})
    assert purge(database, "orders") is None
    with pytest.raises(StoreError):
        undecided.resume(database, UUID(int=7 << 76))
    database.rollback()
    group = rows.queue("unused", origin="use")
    database.execute(text("update coordinator.address set created_at = now() - interval '9 days'"))
    database.commit()
    assert removal.remove_unused(database, timedelta(days=1)) == 1, f"the group {group} has no messages"
    assert [line.action for line in _all(database)] == [Action.USER_ADD], "an address that is unused, no one removes"


@pytest.mark.parametrize(
    "statement",
    [
        "update coordinator.audit set reason = 'another'",
        "delete from coordinator.audit",
        "truncate coordinator.audit",
        "truncate coordinator.audit cascade",
    ],
)
def test_rows_are_only_added(database: Connection, statement: str) -> None:
    users.add(database, "alice", {})
    with pytest.raises(AppendOnly), boundary():
        database.execute(text(statement))
    database.rollback()
    assert [line.subject for line in _all(database)] == ["alice"]


def test_old_rows_are_forgotten(database: Connection) -> None:
    for days in (400, 31, 29, 0):
        inserted = "insert into coordinator.audit (at, action, subject) values (now() - :age, 'purge', :days)"
        database.execute(text(inserted), {"age": timedelta(days=days), "days": str(days)})
    database.commit()
    assert audit.forget(database, timedelta(days=365), chunk=1) == 1
    assert [line.subject for line in _all(database)] == ["31", "29", "0"]
    assert audit.forget(database, audit.SHORTEST_KEPT) == 1
    with pytest.raises(AppendOnly):
        audit.forget(database, timedelta(days=20))
    database.rollback()
    assert [line.subject for line in _all(database)] == ["29", "0"]


# -- the command


@pytest.fixture
def run(database_url: str) -> Run:
    return lambda *arguments: CliRunner().invoke(app, arguments, env={"COORDINATOR_DATABASE_URL": database_url})


def test_the_command_prints_who_when_where_what_and_why(run: Run, database: Connection) -> None:
    assert run("user", "add", "alice", "--without-password", "--reason", "a new colleague").exit_code == 0
    act_as(database, CAROL)
    permissions.grant(database, Grantee(user="alice"), [Verb.SEND], "orders")
    printed = run("audit", "--json").stdout
    assert printed == run("audit", "--format", "json").stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [(line["action"], line["subject"], line["reason"]) for line in lines] == [
        ("user-add", "alice", "a new colleague"),
        ("grant", "orders", "told to"),
    ]
    assert datetime.fromisoformat(lines[0]["at"]).tzinfo is not None
    assert lines[0]["os_user"]
    assert lines[0]["place"]
    head, *shown = run("audit", "--who", "carol", "--what", "grant", "--since", "1h").stdout.splitlines()
    assert head.split() == ["at", "who", "place", "what", "subject", "detail", "times", "why"]
    assert len(shown) == 1
    assert shown[0].split()[2:] == [
        "carol",
        "desk",
        "grant",
        "orders",
        "user=alice",
        'verbs=["send"]',
        "1",
        "told",
        "to",
    ]
    assert run("audit", "--limit", "1").stdout.splitlines()[1:] == shown
    assert len(run("audit", "--until", "1h").stdout.splitlines()) == 1


@pytest.mark.rule("S7")
def test_hostile_values_are_printed_safely(run: Run, database: Connection) -> None:
    act_as(database, Actor(os_user=HOSTILE, host=HOSTILE, reason=HOSTILE))
    note(database, Action.PURGE, HOSTILE, {"names": [HOSTILE], "name": HOSTILE})
    database.commit()
    for form in ("table", "json"):
        printed = run("audit", "--format", form).stdout
        *head, line = printed.splitlines()
        assert len(head) == (form == "table"), "one row is one line"
        assert line.isprintable()
        assert "drop table x" in line
    (found,) = _all(database)
    assert (found.subject, found.detail["name"], found.place) == (HOSTILE, HOSTILE, HOSTILE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audit", "--what", "dance"), "--what: expected one of login-failed, resolve"),
        (("audit", "--since", "soon"), "--since: 'soon' is no time"),
        (("audit", "--until", "9999999999d"), "--until: '9999999999d' is no time"),
        (
            ("address", "purge", "orders", "--reason", "x" * 1001),
            "--reason: expected 1 to 1000 characters of printable text",
        ),
        (("user", "remove", "alice", "--reason", " "), "--reason: expected 1 to 1000 characters of printable text"),
        (
            ("permission", "revoke", "all", "x", "--user", "a", "--reason", "a\nb"),
            "--reason: expected 1 to 1000 characters",
        ),
        (("repair", "--run", "1", "--reason", "\x1b"), "--reason: expected 1 to 1000 characters"),
    ],
)
def test_what_the_commands_refuse(run: Run, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


# -- logins that failed


def _failures(asking: Asking) -> Failures:
    instance: Any = SimpleNamespace(queries=asking.queries, loop=asking.loop)
    return Failures(instance, first_seconds=0, between_seconds=0)


def test_logins_that_fail_alike_are_one_row(asking: Asking, database: Connection) -> None:
    failures = _failures(asking)
    for host, user in [("10.0.0.1", "alice")] * 3 + [("10.0.0.1", None)] * 2 + [("10.0.0.2", "alice")]:
        failures.count(host, user)
    asking.loop.run_until(lambda: len(_all(database)) == 3)
    failures.count("10.0.0.1", "alice")
    asking.loop.run_until(lambda: len(_all(database)) == 4)
    told = [(line.action, line.client_user, line.place, line.times) for line in _all(database)]
    assert told == [
        ("login-failed", "alice", "10.0.0.1", 3),
        ("login-failed", None, "10.0.0.1", 2),
        ("login-failed", "alice", "10.0.0.2", 1),
        ("login-failed", "alice", "10.0.0.1", 1),
    ]


def test_logins_that_fail_while_the_store_takes_no_row_are_told_later(asking: Asking, database: Connection) -> None:
    failures = _failures(asking)
    database.exec_driver_sql("alter table coordinator.audit rename to away")
    database.commit()
    for _ in range(2):
        failures.count("10.0.0.1", "alice")
        asking.loop.run_for(0.1)
    database.exec_driver_sql("alter table coordinator.away rename to audit")
    database.commit()
    asking.loop.run_until(lambda: _all(database))
    assert [(line.client_user, line.times) for line in _all(database)] == [("alice", 2)]


@pytest.mark.rule("S10", "F5")
def test_a_worker_that_ends_tries_once_where_the_store_takes_no_row(asking: Asking, database: Connection) -> None:
    """It does not go on for as long as it has to end, with a line of the log for each try."""
    failures = _failures(asking)
    database.exec_driver_sql("alter table coordinator.audit rename to away")
    database.commit()
    failures.count("10.0.0.1", "alice")
    with capture_logs() as lines:
        asking.loop.run_until(failures.end)
    assert [line["event"] for line in lines] == ["query refused", "logins that failed are not in the audit"]


@pytest.mark.rule("S2")
def test_certificates_that_are_not_trusted_are_told_apart(asking: Asking, database: Connection) -> None:
    failures = _failures(asking)
    for why in ("certificate has expired", "certificate has expired", "self-signed certificate", ""):
        failures.count("10.0.0.1", None, why)
    asking.loop.run_until(lambda: len(_all(database)) == 3)
    told = [(line.client_user, line.place, line.detail, line.times) for line in _all(database)]
    assert told == [
        (None, "10.0.0.1", {"why": "certificate has expired"}, 2),
        (None, "10.0.0.1", {"why": "self-signed certificate"}, 1),
        (None, "10.0.0.1", {}, 1),
    ]


@pytest.mark.rule("S4")
def test_a_flood_of_logins_that_fail_is_a_few_rows(asking: Asking, database: Connection) -> None:
    failures = _failures(asking)
    for number in range(10_000):
        failures.count(f"10.0.{number >> 8}.{number & 255}", None, "certificate has expired" if number % 2 else "")
    asking.loop.run_until(lambda: _all(database))
    asking.loop.run_for(0.1)
    told = _all(database)
    assert len(told) == MOST_TOLD + 1
    assert sum(line.times for line in told) == 10_000
    assert (told[-1].place, told[-1].times) == (None, 10_000 - MOST_TOLD)
