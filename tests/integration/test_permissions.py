"""Permissions by the command line: what is stored, and what a person is told (rule S3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
from sqlalchemy import Connection

from store import permissions, users
from store.permissions import Grantee, Verb
from tests.fix_command import Command

Run = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def run(command: Command, database_url: str, database: Connection) -> Run:
    """Commands on the test's own store, which has two users."""
    for name in ("alice", "bob"):
        users.add(database, name, {})

    def on_store(*arguments: str) -> CompletedProcess[str]:
        return command(*arguments, COORDINATOR_DATABASE_URL=database_url)

    return on_store


def _all(database: Connection) -> list[tuple[str | None, str | None, str, str]]:
    return [(each.user, each.role, each.verb, each.pattern) for each in permissions.list_all(database)]


@pytest.mark.rule("S3")
def test_permissions_are_granted_listed_and_revoked(run: Run, database: Connection) -> None:
    done = run("permission", "grant", "send,receive", "orders*", "--user", "alice")
    assert (done.returncode, done.stdout, done.stderr) == (0, "alice may send, receive: orders*\n", "")
    assert run("permission", "grant", "send", "orders*", "--user", "alice").returncode == 0  # it stays once
    assert run("permission", "grant", "all", "*", "--role", "clerks").stdout.startswith("the role clerks may send, ")
    expected: list[tuple[str | None, str | None, str, str]] = [
        ("alice", None, "receive", "orders*"),
        ("alice", None, "send", "orders*"),
        *((None, "clerks", verb, "*") for verb in sorted(Verb)),
    ]
    assert _all(database) == expected
    listed = json.loads(run("permission", "list", "--json").stdout)
    assert [(each["user"], each["role"], each["verb"], each["pattern"]) for each in listed] == expected
    assert run("permission", "revoke", "all", "orders*", "--user", "alice").stdout == "revoked 2\n"
    assert _all(database) == expected[2:]
    again = run("permission", "revoke", "send", "orders*", "--user", "alice")
    assert (again.returncode, again.stderr) == (1, "error: alice has no such permission with the pattern orders*\n")


@pytest.mark.rule("S3")
def test_roles_are_names_that_users_have(run: Run, database: Connection) -> None:
    assert run("user", "set", "alice", "--role", "clerks").stdout == "alice: has the role clerks\n"
    assert run("user", "set", "alice", "--role", "clerks").returncode == 0
    assert [line["roles"] for line in json.loads(run("user", "list", "--json").stdout)] == [["clerks"], []]
    assert run("user", "set", "alice", "--without-role", "clerks").stdout == "alice: without the role clerks\n"
    done = run("user", "set", "alice", "--without-role", "clerks")
    assert (done.returncode, done.stderr) == (1, "error: there is no user alice with the role clerks\n")
    assert run("user", "set", "carol", "--role", "clerks").stderr == "error: there is no user carol\n"
    assert run("user", "set", "alice", "--role", "anonymous").returncode == 2


@pytest.mark.rule("S3")
def test_who_can(run: Run, database: Connection) -> None:
    def who(verb: str, name: str) -> list[tuple[str | None, str | None, str]]:
        rows = json.loads(run("permission", "list", "--who", verb, name, "--json").stdout)
        return [(row["user"], row["role"], row["pattern"]) for row in rows]

    every = [Verb.SEND, Verb.RECEIVE]
    assert permissions.grant(database, Grantee(user="alice"), every, "orders")
    assert permissions.grant(database, Grantee(role="clerks"), every, "ord*")
    assert permissions.grant(database, Grantee(role="anonymous"), [Verb.RECEIVE], "orders::web")
    assert permissions.give_role(database, "bob", "clerks")
    assert who("send", "orders") == [("alice", None, "orders"), ("bob", "clerks", "ord*")]
    assert who("send", "ordinary") == [("bob", "clerks", "ord*")]
    assert who("browse", "orders") == []
    assert who("receive", "orders::web") == [
        ("alice", None, "orders"),
        (None, "anonymous", "orders::web"),
        ("bob", "clerks", "ord*"),
    ]
    shown = run("permission", "list", "--who", "send", "orders").stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["user", "role", "pattern"],
        ["alice", "-", "orders"],
        ["bob", "clerks", "ord*"],
    ]


@pytest.mark.rule("S3")
def test_without_users_and_permissions_all_can(command: Command, database_url: str) -> None:
    done = command("permission", "list", "--who", "manage", "x", "--json", COORDINATOR_DATABASE_URL=database_url)
    assert json.loads(done.stdout) == [{"user": None, "role": "anonymous", "pattern": "*"}]


@pytest.mark.rule("S3", "S7")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fly", "x", "--user", "alice"), "VERBS: expected some of send, receive, browse, create, check, manage"),
        (("", "x", "--user", "alice"), "VERBS: expected some of send"),
        (("send", "", "--user", "alice"), "PATTERN: expected 1 to 2050 printable characters"),
        (("send", "a\nb", "--user", "alice"), "PATTERN: expected 1 to 2050 printable characters"),
        (("send", "x" * 2051, "--user", "alice"), "PATTERN: expected 1 to 2050 printable characters"),
        (("send", "a*b", "--user", "alice"), "PATTERN: a * can only be its last character"),
        (("send", "**", "--user", "alice"), "PATTERN: a * can only be its last character"),
        (("send", "x"), "give --user or --role"),
        (("send", "x", "--user", "alice", "--role", "r"), "give --user or --role"),
        (("send", "x", "--user", "a\x1b"), "this can be no name of a user: a control character"),
        (("send", "x", "--role", ""), "this can be no name of a role: it is empty"),
    ],
)
def test_what_can_be_no_permission(run: Run, database: Connection, arguments: tuple[str, ...], said: str) -> None:
    for command in ("grant", "revoke"):
        done = run("permission", command, *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert _all(database) == []


@pytest.mark.rule("S3")
@pytest.mark.parametrize("verb", ["fly", "all", "send,receive"])
def test_who_may_do_what_no_one_can(run: Run, verb: str) -> None:
    done = run("permission", "list", "--who", verb, "x")
    expected = "error: --who: expected one of send, receive, browse, create, check, manage\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.rule("S3")
def test_a_user_that_is_not_there_is_granted_nothing(run: Run, database: Connection) -> None:
    done = run("permission", "grant", "send", "x", "--user", "carol")
    assert (done.returncode, done.stderr) == (1, "error: there is no user carol\n")
    assert _all(database) == []


@pytest.mark.rule("S3", "S7")
@pytest.mark.parametrize("pattern", ["'; drop table x; --", "a%_", "\U0001f600" * 2050, '"<b>', "*"])
def test_hostile_patterns_are_stored_as_they_are(database: Connection, pattern: str) -> None:
    users.add(database, "alice", {})
    assert permissions.grant(database, Grantee(user="alice"), [Verb.SEND], pattern)
    assert _all(database) == [("alice", None, "send", pattern)]
    assert permissions.revoke(database, Grantee(user="alice"), list(Verb), pattern) == 1


@pytest.mark.rule("S3")
def test_a_removed_user_leaves_nothing(database: Connection) -> None:
    users.add(database, "alice", {})
    assert permissions.grant(database, Grantee(user="alice"), [Verb.SEND], "x")
    assert permissions.give_role(database, "alice", "clerks")
    assert users.remove(database, "alice")
    users.add(database, "alice", {})
    assert _all(database) == []
    assert permissions.users_of(database, "clerks") == []
