"""What a database, a role or the environment sets for its sessions changes nothing in ours."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import text

from spark import watching
from spark.source import Session
from store import figures, migrations
from store.asking import Query, Row
from store.database import connected
from tests.acceptance.engine_client import Client
from tests.fix_command import Command
from tests.fix_service import PATIENCE, running_service
from tests.fix_standby import TwoServers
from tests.fix_store_driver import Asking
from tests.fix_store_rows import NOW, StoreRows
from tests.reconciling import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _set(url: str, name: str, value: str) -> None:
    """For the sessions that begin from now on."""
    with psycopg.connect(url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"alter database {database} set {name} = '{value}'".encode())


def _asked(url: str, sql: str) -> list[Row]:
    """The answer on a connection of the service."""
    asking = Asking(url)
    asking.queries.start()
    asking.queries.ask(Query(b"asked", sql, lambda rows: rows), (), asking.answers.append)
    asking.loop.run_until(lambda: asking.answers)
    asking.queries.close()
    asking.loop.close()
    (answer,) = asking.answers
    assert isinstance(answer, list), answer
    return answer


@pytest.fixture
def german_url(database_url: str) -> str:
    """A store whose sessions write text, names, moments, intervals and numbers in a way that drivers do not read."""
    _set(database_url, "client_encoding", "LATIN1")
    _set(database_url, "quote_all_identifiers", "on")
    _set(database_url, "datestyle", "German")
    _set(database_url, "intervalstyle", "iso_8601")
    _set(database_url, "extra_float_digits", "-10")
    return database_url


@pytest.mark.parametrize("style", ["German", "SQL, DMY", "Postgres"])
def test_moments_are_read_whatever_the_environment_says(
    database_url: str, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    monkeypatch.setenv("PGDATESTYLE", style)
    with connected(database_url) as connection:
        moment = connection.scalar(text("select now()"))
    assert isinstance(moment, datetime)
    assert datetime.now(UTC) - moment < timedelta(hours=1)
    assert _asked(database_url, "select now()::date::text") == [(f"{moment:%Y-%m-%d}",)]


def test_transactions_are_of_one_kind_whatever_the_database_says(database_url: str) -> None:
    """A batch that is serializable may be undone by any that is at work beside it."""
    for name, value in (("isolation", "serializable"), ("deferrable", "on")):
        _set(database_url, f"default_transaction_{name}", value)
    kind = "select current_setting('transaction_isolation'), current_setting('transaction_deferrable')"
    assert _asked(database_url, kind) == [("read committed", "off")]
    with connected(database_url) as connection:
        assert tuple(connection.execute(text(kind)).one()) == ("read committed", "off")


def test_moments_are_of_one_zone_whatever_the_database_says(database_url: str) -> None:
    """So what a command writes as JSON is the same on each server."""
    _set(database_url, "timezone", "Asia/Kolkata")
    moment = "select (timestamptz '2026-01-02 03:04:05Z')"
    assert _asked(database_url, f"{moment}::text") == [("2026-01-02 03:04:05+00",)]
    with connected(database_url) as connection:
        assert connection.scalar(text(moment)).isoformat() == "2026-01-02T03:04:05+00:00"


@pytest.mark.rule("H19")
def test_a_database_that_only_reads_is_told(database_url: str, command: Command) -> None:
    """No instance can write that it is alive."""
    _set(database_url, "default_transaction_read_only", "on")
    only_reads = "the database only reads: a standby, or a role or database set to read only (SQLSTATE 25006)"
    with connected(database_url) as connection:
        assert figures.state(connection).only_reads
    checked = command("check", "--database-url", database_url, "--fewest-free", "0")
    assert (checked.returncode, checked.stderr) == (1, "")
    assert f"wrong: no instance is alive, or can say so: {only_reads}\n" in checked.stdout


def test_a_standby_is_known_whatever_the_database_says(two_servers: TwoServers, command: Command) -> None:
    """Which refuses each question of a session whose transactions are serializable."""
    _set(two_servers.first_url, "default_transaction_isolation", "serializable")
    given = "select from pg_db_role_setting where 'default_transaction_isolation=serializable' = any(setconfig)"
    read_committed = r"-c default_transaction_isolation=read\ committed"
    with psycopg.connect(two_servers.second_url, autocommit=True, options=read_committed) as standby:
        deadline = time.monotonic() + PATIENCE
        while standby.execute(given).fetchone() is None:
            assert time.monotonic() < deadline, "the standby has not followed"
            time.sleep(0.05)
    read = command("transaction", "list", "--database-url", two_servers.second_url)
    assert (read.returncode, read.stderr) == (0, "")
    changed = command("address", "add", "orders", "--database-url", two_servers.second_url)
    assert (changed.returncode, "the database only reads" in changed.stderr) == (1, True), changed.stderr


def test_a_backslash_is_one_whatever_the_database_says(empty_database_url: str) -> None:
    """Else the schema of a new store could not be made, and no pattern that has one found what it is for."""
    database_url = empty_database_url
    _set(database_url, "standard_conforming_strings", "off")
    _set(database_url, "escape_string_warning", "off")
    backslashes = r"select length('\\')::text"
    assert _asked(database_url, backslashes) == [("2",)]
    with connected(database_url) as connection:
        assert connection.scalar(text(backslashes)) == "2"
    migrations.upgrade(database_url)


def test_values_are_read_whatever_the_database_says(german_url: str) -> None:
    values = "'\u00e4', timestamptz '2026-01-02 03:04:05Z' at time zone 'UTC', interval '90 s', 0.123456789012::float8"
    with connected(german_url) as connection:
        row = connection.execute(text(f"select {values}")).one()
    assert tuple(row) == ("\u00e4", datetime(2026, 1, 2, 3, 4, 5), timedelta(seconds=90), 0.123456789012)  # noqa: DTZ001
    texts = ", ".join(f"({each})::text" for each in values.split(", "))
    assert _asked(german_url, f"select {texts}") == [("\u00e4", "2026-01-02 03:04:05", "00:01:30", "0.123456789012")]


def test_the_service_and_its_commands_work_in_any_style(german_url: str) -> None:
    with running_service({"database_url": german_url}) as service:
        client = Client(service.port, "german", producer_group="g")
        sender = client.sender("orders")
        txn_id = client.declare()
        post = client.post(sender, "x", txn=txn_id)
        client.until(lambda: post.remote_state)
        assert txn_id.hex() in service.cli("transaction", "list", "--json").replace("-", "")
        assert client.discharge(txn_id, fail=False).accepted
        client.close()
        assert '"commit"' in service.cli("transaction", "show", txn_id.hex(), "--json")
        service.cli("transaction", "show", txn_id.hex())


def test_a_limit_of_the_database_ends_no_session(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        known = connection.execute("select name from pg_settings where name ~ '^(idle_session|transaction)_timeout$'")
        limits = [name for (name,) in known]
    for name in limits:
        _set(database_url, name, "300ms")
    asking = Asking(database_url)
    asking.queries.start()
    asking.loop.run_for(1.0)
    asking.queries.ask(Query(b"asked", "select pg_sleep(0.6)::text", len), (), asking.answers.append)
    asking.loop.run_until(lambda: asking.answers)
    asking.queries.close()
    asking.loop.close()
    assert (asking.answers, asking.connections) == ([1], 1)
    with connected(database_url) as command:
        time.sleep(0.6)
        assert command.execute(text("select pg_sleep(0.6)")).rowcount == 1


@pytest.mark.rule("R10")
def test_spark_reads_it_in_any_style(
    spark: SparkSession, german_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = StoreRows(seed=3).healthy(20)
    late = rows.uuid_v7(NOW - timedelta(hours=1))
    rows.half(rows.address("late"), NOW - timedelta(hours=1), late)
    rows.undecided(late, NOW - timedelta(hours=1), next_check_at=NOW - timedelta(minutes=50))
    rows.write(german_url)
    run(spark, german_url, tmp_path / "report")
    assert [each.txn_id for each in watching.overdue(german_url)] == [late]
    for name in ("client_encoding", "standard_conforming_strings", "search_path", "bytea_output"):
        _set(german_url, name, {"client_encoding": "SQL_ASCII", "bytea_output": "escape"}.get(name, "off"))
    monkeypatch.setenv("COORDINATOR_DATABASE_URL", german_url)
    with Session(None) as session:
        read = "'\u00e4' as text, $$\\x5c$$::bytea, timestamptz '2026-01-02 03:04:05Z', 1::int8"
        assert session.rows(f"select {read}") == [("\u00e4", b"\\", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), 1)]
