"""Rows of the audit of commands that change many things, and of logins by certificate (rule S10)."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, delete, func, insert, update
from typer.testing import CliRunner, Result

from coordinator.__main__ import app
from coordinator.address.dead_letters import ORIGINAL_ADDRESS
from coordinator.login.logins import External
from coordinator.login.password import Challenge, Code, Outcome
from coordinator.login.penalties import Failures
from coordinator.login.users import Users
from store import audit, runs, users
from store.codec.encoding import encode_map, encode_string, encode_symbol
from store.codec.message import annotate
from store.ids import UuidV7
from store.tables import consumer_group, entry, half, op
from tests.fix_reports import finding
from tests.fix_runs import a_run

if TYPE_CHECKING:
    from tests.fix_store import Rows
    from tests.fix_store_driver import Asking

pytestmark = pytest.mark.rule("S10")

#: An AMQP message without annotations.
_MESSAGE = b"\x00\x53\x75\xa0\x01x"
_HOST = "10.0.0.9"


def _all(connection: Connection) -> list[audit.AuditLine]:
    return audit.read(connection, audit.Wanted(), 100)


def _run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COORDINATOR_DATABASE_URL": url})


# -- dead letters


def _letter(rows: Rows, box: int, origin: str) -> int:
    story = encode_map([encode_symbol(ORIGINAL_ADDRESS) + encode_string(origin)])
    half_id = rows.half_ids.next()
    message = annotate(b"", story) + _MESSAGE
    rows.connection.execute(insert(half).values(id=half_id, address_id=rows.address_of(box), message=message))
    rows.connection.execute(insert(entry).values(group_id=box, id=half_id, half_id=half_id))
    rows.connection.commit()
    return half_id


def test_replays_by_the_command(database: Connection, database_url: str, rows: Rows) -> None:
    """Letters by their ids, all of them, and to another address; what replays nothing has no row."""
    rows.queue("orders")
    rows.queue("others")
    box = rows.queue("%DLQ%orders", origin="dead-letter")
    first, second, third = (_letter(rows, box, "orders") for _ in range(3))
    stays = _letter(rows, box, "gone")
    for arguments, replayed in [
        ((str(first), str(second), "--to", "others", "--reason", "for the others"), 2),
        (("--all", "--reason", "the shop is up again"), 1),
        (("--all", "--reason", "none goes anywhere"), 0),
        ((str(stays), "--reason", "nor does this"), 0),
        ((str(third), "--reason", "gone already"), 0),
    ]:
        done = _run(database_url, "dead-letters", "replay", "orders", *arguments, "--json")
        assert len(json.loads(done.stdout)["ids"]) == replayed
    assert [(line.action, line.subject, line.detail, line.reason) for line in _all(database)] == [
        ("replay", "%DLQ%orders", {"ids": [first, second]}, "for the others"),
        ("replay", "%DLQ%orders", {"ids": None}, "the shop is up again"),
    ]
    assert all(line.os_user and line.place for line in _all(database))


# -- repairs


def _without_entry(rows: Rows, group: int) -> int:
    half_id = rows.entry(group)
    rows.connection.execute(delete(entry).where(entry.c.half_id == half_id))
    rows.connection.commit()
    return half_id


def _given_up(rows: Rows, group: int) -> int:
    """Its letter is lost."""
    half_id = _without_entry(rows, group)
    values = {"id": UUID(bytes=UuidV7().next()), "decision": "dead-letter", "reason": "app:bad"}
    rows.connection.execute(insert(op).values(**values, half_ids=[half_id], group_ids=[group]))
    rows.connection.commit()
    return half_id


def test_repairs_of_deliveries_by_the_command(database: Connection, database_url: str, rows: Rows) -> None:
    """One row for each delivery: what the run has found, and what the person says. A second time changes nothing."""
    orders, gone = rows.queue("orders"), rows.instance(ended_at=func.now() - timedelta(minutes=10))
    rows.connection.execute(update(consumer_group).values(created_at=func.now() - timedelta(hours=1)))
    rows.connection.commit()
    stuck, lost, buried = rows.entry(orders, lease=gone), _without_entry(rows, orders), _given_up(rows, orders)
    found = [
        finding("stuck-delivery", half_id=stuck, address="orders", consumer_group=""),
        finding("lost-delivery", half_id=lost, address="orders", consumer_group=""),
        finding("dead-letter-mismatch", half_id=buried, consumer_group=""),
    ]
    of = a_run()
    number = runs.store(rows.connection, of, [vars(each) for each in found])
    repair = "repair", "--run", str(number), "--reason", "told to"
    assert _run(database_url, *repair).exit_code == 1
    assert _all(database) == []
    for _ in range(2):
        done = _run(database_url, *repair, "--apply")
        assert done.exit_code == 0, done.stdout + done.stderr
    why = f"reconciliation run {number}, {of.seen_at.isoformat()}"
    said = [(line.action, line.subject, line.detail, line.reason) for line in _all(database)]
    assert sorted(said, key=lambda each: str(each[1])) == [
        ("repair", f"message {half_id} to orders", {"repair": how, "reason": why}, "told to")
        for half_id, how in sorted([(stuck, "release"), (lost, "deliver"), (buried, "replay")])
    ]


# -- logins


def _subject(*names: str) -> dict[str, Any]:
    """A certificate, as TLS tells of it."""
    return {"subject": tuple((("commonName", name),) for name in names)}


@pytest.mark.rule("S1")
def test_logins_that_fail_by_certificate(asking: Asking, database: Connection) -> None:
    """The name that a certificate says is in the row, though no such user is there: the certificate is genuine."""
    instance: Any = SimpleNamespace(queries=asking.queries, loop=asking.loop)
    them = Users(instance, b"secret")
    them.failures = Failures(instance, first_seconds=0, between_seconds=0)
    users.add(database, "alice", {})
    users.add(database, "bob", {})
    assert users.disable(database, "bob")
    said: list[Challenge | Outcome] = []
    for certificate, response in [
        (_subject("alice"), b""),
        (_subject("alice"), b"bob"),
        (_subject("bob"), b""),
        (_subject("bob"), None),
        (_subject("not.there"), b""),
        (_subject("alice", "bob"), b""),
        ({}, b""),
    ]:
        External(them, _HOST, certificate, said.append, lambda: None).take(response)
    failed = audit.Wanted(action=audit.Action.LOGIN_FAILED)
    asking.loop.run_until(lambda: len(said) == 7 and sum(line.times for line in audit.read(database, failed, 99)) == 6)
    assert sorted(each.code for each in said if isinstance(each, Outcome)) == [Code.OK, *[Code.AUTH] * 6]
    told: Counter[tuple[str | None, str | None]] = Counter()
    for line in audit.read(database, failed, 99):
        told[line.client_user, line.place] += line.times
    assert told == {("alice", _HOST): 1, ("bob", _HOST): 2, ("not.there", _HOST): 1, (None, _HOST): 2}
