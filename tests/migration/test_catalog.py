"""The migrated database is the declared one, up and down and up again."""

from __future__ import annotations

import difflib
import logging
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from store import migrations, partitions
from store.database import connected
from store.errors import SchemaMismatch
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
def migrated(database_url: str) -> str:
    """A store without the partitions of a day, which are no migration's."""
    migrations.downgrade(database_url)
    migrations.upgrade(database_url)
    return database_url


@pytest.fixture
def declared(empty_database_url: str) -> list[str]:
    _declare(empty_database_url)
    return _catalog(empty_database_url)


def test_the_declared_catalog_is_seen_whole(declared: list[str]) -> None:
    # Else an empty answer would equal an empty answer.
    for subject in _CATALOG:
        assert any(line.startswith(f"{subject}: ") for line in declared), subject


def test_migrated_equals_declared(declared: list[str], migrated: str) -> None:
    _same(declared, _catalog(migrated))


def test_up_down_and_up(declared: list[str], database_url: str) -> None:
    migrations.downgrade(database_url)
    assert _catalog(database_url) == []
    with connected(database_url) as connection:
        assert migrations.current(connection) is None
    migrations.upgrade(database_url)
    _same(declared, _catalog(database_url))


def test_a_second_upgrade_changes_nothing(database_url: str) -> None:
    with connected(database_url) as connection:
        before = connection.scalar(text("select id from coordinator.store_identity"))
    migrations.upgrade(database_url)
    with connected(database_url) as connection:
        assert connection.scalar(text("select id from coordinator.store_identity")) == before


def test_head_is_the_newest_revision(database_url: str) -> None:
    with connected(database_url) as connection:
        script = ScriptDirectory.from_config(migrations._config(connection))
    assert script.get_heads() == [migrations.HEAD]
    revisions = [revision.revision for revision in script.walk_revisions()]
    assert revisions == sorted(revisions, reverse=True), "revisions are numbered: the greater is the newer"


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
def test_a_database_that_holds_not_all_of_unicode_is_refused(server_url: str, encoding: str) -> None:
    """Names of addresses are Unicode; and what applications post in SQL would not be sent in UTF-8."""
    name = f"coordinator_{encoding.lower()}"
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0".encode())
        try:
            url = urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
            with pytest.raises(SchemaMismatch, match=f"the encoding of the database is {encoding}, expected UTF8"):
                migrations.upgrade(url)
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
    ("version", "checked", "changed"),
    [
        pytest.param("9999", "schema is at 9999, newer than", "newer than this version knows", id="newer"),
        pytest.param("0000", "at '0000', which no version", "no version of the coordinator has made", id="foreign"),
    ],
)
def test_a_schema_that_is_not_known_is_refused_and_left_alone(
    database_url: str, version: str, checked: str, changed: str
) -> None:
    with connected(database_url) as connection:
        connection.execute(text("update coordinator.alembic_version set version_num = :version"), {"version": version})
        connection.commit()
    before = _catalog(database_url)
    with connected(database_url) as connection, pytest.raises(SchemaMismatch, match=checked):
        migrations.check(connection)
    for change in (migrations.upgrade, migrations.downgrade):
        with pytest.raises(SchemaMismatch, match=changed):
            change(database_url)
    assert _catalog(database_url) == before


def test_an_older_schema_says_what_to_run(database_url: str) -> None:
    migrations.downgrade(database_url, "0001")
    with connected(database_url) as connection, pytest.raises(SchemaMismatch, match=r"at 0001.*coordinator migrate"):
        migrations.check(connection)


def test_each_revision_can_be_undone_and_done_again(
    declared: list[str], empty_database_url: str, migrated: str
) -> None:
    """A store that an earlier version has made, with a transaction in it."""
    assert declared == _catalog(empty_database_url)
    with connected(migrated) as connection:
        script = ScriptDirectory.from_config(migrations._config(connection))
        # as it was made then: what a downgrade leaves is held against that
        connection.execute(text(f"drop schema {SCHEMA} cascade"))
        connection.commit()
    revisions = [revision.revision for revision in script.walk_revisions()][::-1]
    migrations.upgrade(migrated, revisions[0])
    catalogs = [_catalog(migrated)]
    with connected(migrated) as connection:
        connection.execute(
            text(
                "insert into coordinator.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired) "
                "values (gen_random_uuid(), 1, 'client', now(), now(), 1, 0)"
            )
        )
        connection.commit()
    for revision in revisions[1:]:
        migrations.upgrade(migrated, revision)
        catalogs.append(_catalog(migrated))
    _same(declared, catalogs[-1])
    for revision, before in zip(revisions[-2::-1], catalogs[-2::-1], strict=True):
        migrations.downgrade(migrated, revision)
        _same(before, _catalog(migrated))
    with connected(migrated) as connection:
        assert connection.scalar(text("select posted from coordinator.txn")) == 1


#: Functions as an earlier 0013 has made them, in short: one of them with another parameter, one that there was not yet.
_EARLIER = """
drop function coordinator.may_promote(int8, int8);
create function coordinator.may_promote(lowest int8) returns boolean language sql as 'select true';
drop function coordinator.not_a_message_at(bytea);
create or replace function coordinator.send_outbox() returns trigger language plpgsql
as 'begin return null; end';
create or replace function coordinator.decide_enlisted() returns trigger language plpgsql
as 'begin return null; end';
grant execute on function coordinator.send_outbox(), coordinator.decide_enlisted() to public;
alter table coordinator.outbox enable trigger outbox_sent;
alter table coordinator.enlistment enable trigger enlistment_decided;
"""


@pytest.mark.parametrize("earlier", ["", _EARLIER], ids=["as-0013-is", "earlier"])
def test_functions_of_applications_that_were_changed_after_0013_are_made_again(
    declared: list[str], migrated: str, earlier: str
) -> None:
    migrations.downgrade(migrated, "0015")
    with connected(migrated) as connection:
        sends = text("select prosrc from pg_proc where proname = 'send_outbox'")
        assert "pg_try_advisory_xact_lock" not in str(connection.scalar(sends)), "each of them gave a notice then"
        connection.exec_driver_sql(earlier or "select")
        connection.commit()
    migrations.upgrade(migrated)
    _same(declared, _catalog(migrated))


def test_migrations_are_quiet(empty_database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        migrations.upgrade(empty_database_url)
    assert caplog.records == []
