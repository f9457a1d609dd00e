"""The migrated database is the declared one; a store of another version is refused, or migrated."""

from __future__ import annotations

import difflib
import logging
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from coordinator.commands.migrate import migrate
from store import migrations, partitions
from store.database import connected
from store.errors import SchemaMismatch
from store.locks import NAMES
from store.partitions import make_days, op_id_at
from store.retention import Policy, drop_old
from store.tables import SCHEMA, metadata

# Each query gives lines of text that describe one side of the catalog, in an order of its own.
_CATALOG = {
    "relations": """
        select c.relname, c.relkind::text, coalesce(array_to_string(c.reloptions, ','), ''),
               coalesce(pg_get_partkeydef(c.oid), ''), coalesce(pg_get_expr(c.relpartbound, c.oid), ''),
               coalesce((select i.inhparent::regclass::text from pg_inherits i where i.inhrelid = c.oid), '')
          from pg_class c where c.relnamespace = :schema ::regnamespace and c.relname !~ '^alembic_version'
         order by 1""",
    "columns": """
        select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text,
               a.attgenerated::text, a.attstorage::text, coalesce(pg_get_expr(d.adbin, d.adrelid), '')
          from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
          left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
         where c.relnamespace = :schema ::regnamespace and c.relkind in ('r', 'p', 'v')
               and c.relname !~ '^alembic_version'
         order by 1, a.attnum""",
    "constraints": """
        select conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(oid)
          from pg_constraint where connamespace = :schema ::regnamespace
               and conrelid::regclass::text !~ 'alembic_version'
         order by 1, 2""",
    "sequences": """
        select sequencename, data_type::text, start_value, min_value, max_value, increment_by, cycle from pg_sequences
         where schemaname = :schema order by 1""",
    "indexes": """
        select indexname, indexdef from pg_indexes where schemaname = :schema and tablename !~ '^alembic_version'
         order by 1""",
    "functions": """
        select proname, pg_get_functiondef(oid),
               array(select a::text from unnest(coalesce(proacl, acldefault('f', proowner))) a order by 1)
          from pg_proc where pronamespace = :schema ::regnamespace
         order by 1, 2""",
    "triggers": """
        select tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), tgenabled::text from pg_trigger
         where tgrelid in (select oid from pg_class where relnamespace = :schema ::regnamespace)
               and not (tgisinternal and tgconstraint <> 0)
         order by 1, 2""",
    "views": """
        select viewname, definition from pg_views where schemaname = :schema order by 1""",
}


def _catalog(url: str) -> list[str]:
    lines = []
    with connected(url) as connection:
        for subject, query in _CATALOG.items():
            rows = connection.execute(text(query), {"schema": SCHEMA})
            lines += [f"{subject}: " + " | ".join(str(value) for value in row) for row in rows]
    return lines


def _same(left: list[str], right: list[str]) -> None:
    difference = "\n".join(difflib.unified_diff(left, right, "declared", "migrated", lineterm="", n=0))
    assert not difference, difference


def _declare(url: str) -> None:
    with connected(url) as connection:
        connection.execute(text(f"create schema {SCHEMA}"))
        metadata.create_all(connection)
        connection.commit()


@pytest.fixture
def declared(empty_database_url: str) -> list[str]:
    """The database is empty again."""
    _declare(empty_database_url)
    catalog = _catalog(empty_database_url)
    with connected(empty_database_url) as connection:
        connection.execute(text(f"drop schema {SCHEMA} cascade"))
        connection.commit()
    return catalog


def test_the_declared_catalog_is_seen_whole(declared: list[str]) -> None:
    # Else an empty answer would equal an empty answer.
    for subject in _CATALOG:
        assert any(line.startswith(f"{subject}: ") for line in declared), subject


def test_migrated_equals_declared(declared: list[str], empty_database_url: str) -> None:
    migrations.upgrade(empty_database_url)
    _same(declared, _catalog(empty_database_url))


def _run(url: str, script: str) -> None:
    """As an administrator does with psql."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())


def test_what_is_printed_for_an_administrator_makes_the_same(
    empty_database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the days that ``migrate`` makes: applications may post before the first service starts."""
    migrate(show=True, database_url=empty_database_url)
    script = capsys.readouterr().out
    with connected(empty_database_url) as connection:
        assert migrations.current(connection) is None
    migrate(database_url=empty_database_url)
    capsys.readouterr()
    made = _catalog(empty_database_url)
    with connected(empty_database_url) as connection:
        connection.execute(text(f"drop schema {SCHEMA} cascade"))
        connection.commit()
    _run(empty_database_url, script)
    _same(made, _catalog(empty_database_url))
    with connected(empty_database_url) as connection:
        migrations.check(connection)
        assert connection.scalar(text("select count(*) from coordinator.lock")) == len(NAMES)
    migrate(show=True, database_url=empty_database_url)
    assert capsys.readouterr().out == "-- database schema is at 0.1 already\n"


@pytest.mark.rule("F6")
@pytest.mark.usefixtures("later_version")
def test_what_is_printed_has_the_steps_that_a_store_lacks(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate(show=True, database_url=database_url)
    printed = capsys.readouterr().out
    assert printed.startswith("BEGIN;")
    assert "create table" not in printed.lower()
    _run(database_url, printed)
    with connected(database_url) as connection:
        migrations.check(connection)
        connection.execute(text("select later from coordinator.half"))


def test_a_second_upgrade_changes_nothing(database_url: str) -> None:
    with connected(database_url) as connection:
        before = connection.scalar(text("select id from coordinator.store_identity"))
    migrations.upgrade(database_url)
    with connected(database_url) as connection:
        assert connection.scalar(text("select id from coordinator.store_identity")) == before


def test_each_revision_has_a_step(database_url: str) -> None:
    with connected(database_url) as connection:
        script = ScriptDirectory.from_config(migrations._config(connection))
    assert [step.revision for step in script.walk_revisions()][::-1] == list(migrations.REVISIONS)


@pytest.mark.rule("F6")
@pytest.mark.usefixtures("later_version")
def test_a_store_of_the_version_before_is_refused_until_it_is_migrated(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with connected(database_url) as connection:
        with pytest.raises(SchemaMismatch, match=r"is at 0\.1, this version needs 0\.2; run: coordinator migrate"):
            migrations.check(connection)
        connection.execute(
            text(
                "with new as (insert into coordinator.instance (slot, host, pid, process_start, version)"
                " values (7, 'elsewhere', 1, 1, '0') returning id)"
                " insert into coordinator.heartbeat (instance_id) select id from new"
            )
        )
        connection.commit()
    migrate(database_url=database_url)
    said = capsys.readouterr()
    assert said.out == "database schema is at 0.2 now, was at 0.1\n"
    assert said.err == "instances of the service that are alive: 1; stop those of the version before\n"
    with connected(database_url) as connection:
        migrations.check(connection)
    migrate(database_url=database_url)
    assert capsys.readouterr() == ("database schema is at 0.2 already\n", "")


@pytest.mark.rule("F6", "H16")
@pytest.mark.usefixtures("later_version")
def test_a_day_whose_removal_was_interrupted_is_removed_after_a_migration(
    database: Connection, database_url: str
) -> None:
    """PostgreSQL does not alter a partition that is being detached with its table, and detaches none that differs."""
    day = datetime.now(UTC).date() - timedelta(days=50)
    name, policy = f"op_{day:%Y%m%d}", Policy(messages=timedelta(hours=72), decisions=timedelta(days=30))
    drop_old(database, policy)  # the day of tests that count from 1
    database.execute(text("delete from coordinator.retention"))
    make_days(database, [day])
    database.close()
    with connected(database_url) as connection, psycopg.connect(database_url) as reader:
        reader.execute(f"select 1 from coordinator.op where id >= '{op_id_at(datetime.now(UTC))}'".encode())
        assert name in drop_old(connection, policy).waiting
    interrupted = text("select inhrelid::regclass::text from pg_inherits where inhdetachpending")
    with connected(database_url) as connection:
        assert list(connection.scalars(interrupted)) == [f"coordinator.{name}"]
    migrations.upgrade(database_url)
    with connected(database_url) as connection:
        assert not list(connection.scalars(interrupted))
        assert name in drop_old(connection, policy).removed


@pytest.mark.rule("S10")
def test_every_table_has_a_key_by_which_a_publication_names_its_rows(database_url: str) -> None:
    """Else PostgreSQL refuses to change or delete a row there while a publication is of all tables."""
    keyless = """select c.oid::regclass::text from pg_class c
                  where c.relnamespace = 'coordinator'::regnamespace and c.relkind in ('r', 'p')
                    and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)"""
    with connected(database_url) as connection:
        assert partitions.existing(connection)["half"], "the partitions are looked at, too"
        assert connection.scalars(text(keyless)).all() == []


def test_no_store_says_what_to_run(empty_database_url: str) -> None:
    with connected(empty_database_url) as connection, pytest.raises(SchemaMismatch, match="run: coordinator migrate"):
        migrations.check(connection)


def test_a_migrated_store_passes_the_check(database_url: str) -> None:
    with connected(database_url) as connection:
        migrations.check(connection)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_holds_not_all_of_unicode_is_refused(
    server_url: str, empty_database_url: str, encoding: str
) -> None:
    """Names of addresses are Unicode; and what applications post in SQL would not be sent in UTF-8."""
    name = f"coordinator_{encoding.lower()}"
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0".encode())
        try:
            url = urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
            with pytest.raises(SchemaMismatch, match=f"the encoding of the database is {encoding}, expected UTF8"):
                migrations.upgrade(url)
            with pytest.raises(SchemaMismatch, match=f"the encoding of the database is {encoding}, expected UTF8"):
                migrations.script(url)
            # the script was printed for another database
            with pytest.raises(psycopg.errors.RaiseException, match=f"the encoding of the database is {encoding}, ex"):
                _run(url, migrations.script(empty_database_url))
            with connected(url) as connection:
                assert migrations.current(connection) is None
        finally:
            server.execute(f"drop database {name} with (force)".encode())


def test_text_is_unicode_whatever_the_environment_says(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
    with connected(database_url) as connection:
        migrations.check(connection)
        assert connection.scalar(text("select chr(8364)")) == "€"


@pytest.mark.rule("F6")
@pytest.mark.parametrize(
    ("version", "says"),
    [
        pytest.param("9.9", "schema is at 9.9, which this version does not know", id="newer"),
        pytest.param("0038", r"a store of a development state \(0038\)", id="before-the-first-release"),
    ],
)
def test_a_schema_that_is_not_known_is_refused_and_left_alone(database_url: str, version: str, says: str) -> None:
    with connected(database_url) as connection:
        connection.execute(text("update coordinator.alembic_version set version_num = :version"), {"version": version})
        connection.commit()
    before = _catalog(database_url)
    with connected(database_url) as connection, pytest.raises(SchemaMismatch, match=says):
        migrations.check(connection)
    with pytest.raises(SchemaMismatch, match=says):
        migrations.upgrade(database_url)
    assert _catalog(database_url) == before


def test_migrations_are_quiet(empty_database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        migrations.upgrade(empty_database_url)
    assert caplog.records == []
