"""``coordinator reconcile`` reads a standby: as of the last commit that the standby has of its primary (R1)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from spark.books.description import describe
from store.embedded.server import EmbeddedServer
from store.tables import SCHEMA
from tests.fix_command import PATIENCE_SECONDS, Command
from tests.fix_standby import TwoServers
from tests.fix_store_rows import NOW, StoreRows, encode_message
from tests.reconciling import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.rule("R1")

AT = NOW - timedelta(hours=3)
_COUNT = f"select count(*) from {SCHEMA}.half".encode()


@pytest.fixture
def servers(own_server: tuple[EmbeddedServer, str]) -> Iterator[TwoServers]:
    """The primary has a store with a delivery lost; the standby has it, too."""
    _, url = own_server
    rows = StoreRows(seed=41).healthy(30)
    rows.committed([rows.address("shop")], AT)
    rows.write(url)
    servers = TwoServers(*own_server)
    try:
        yield servers
    finally:
        servers.close()


def _caught_up(servers: TwoServers) -> None:
    """Wait until the standby has what the primary has."""
    with psycopg.connect(servers.first_url) as first, psycopg.connect(servers.second_url) as second:
        (there,) = first.execute("select pg_current_wal_flush_lsn()::text").fetchone() or ("",)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while second.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [there]).fetchone() != (True,):
            assert time.monotonic() < deadline, "the standby does not follow"
            time.sleep(0.02)


def _committed(servers: TwoServers) -> datetime:
    """Commit something on the primary; the moment after it, by the primary's clock."""
    with psycopg.connect(servers.first_url, autocommit=True) as first:
        first.execute(f"update {SCHEMA}.store_identity set id = id".encode())
        (now,) = first.execute("select clock_timestamp()").fetchone() or (None,)
    assert isinstance(now, datetime)
    _caught_up(servers)
    return now


def test_a_standby_has_the_same_findings(
    spark: SparkSession, servers: TwoServers, command: Command, tmp_path: Path
) -> None:
    _committed(servers)
    first, second = (run(spark, url, tmp_path / "out") for url in (servers.first_url, servers.second_url))
    assert (second.store.id, second.metrics.totals) == (first.store.id, first.metrics.totals)
    assert second.findings.by_kind == first.findings.by_kind == {"lost-delivery": 1, "unbalanced": 1}
    kept = command("reconcile", "--out", str(tmp_path / "kept"), "--database-url", servers.second_url, "--store")
    assert kept.returncode == 2
    assert "only reads" in kept.stderr


@pytest.mark.rule("R20", "R25")
def test_a_standby_that_is_behind_is_judged_as_of_what_it_has(
    spark: SparkSession, servers: TwoServers, tmp_path: Path
) -> None:
    """An order is paid and posted while the standby stands still: the book has it, the standby does not."""
    before = _committed(servers)
    with psycopg.connect(servers.second_url, autocommit=True) as second:
        second.execute("select pg_wal_replay_pause()")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while second.execute("select pg_get_wal_replay_pause_state()").fetchone() != ("paused",):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with psycopg.connect(servers.first_url) as first:
        (orders, group) = first.execute(
            f"select a.id, g.id from {SCHEMA}.address a join {SCHEMA}.consumer_group g on g.address_id = a.id"
            " where a.name = 'invoices'".encode()
        ).fetchone() or (0, 0)
        message = encode_message(properties={"order": "paid late"}, body={})
        half = first.execute(
            f"insert into {SCHEMA}.half (id, address_id, message) select max(id) + 1, %s, %s from {SCHEMA}.half"
            " returning id, posted_at".encode(),
            [orders, message],
        ).fetchone()
        assert half is not None
        first.execute(
            f"insert into {SCHEMA}.entry (group_id, id, half_id) values (%s, %s, %s)".encode(),
            [group, half[0], half[0]],
        )
        counts = [first.execute(_COUNT).fetchone()]
    (tmp_path / "shop.csv").write_text(f"id,at\npaid late,{half[1].isoformat()}\n", "utf-8")
    (tmp_path / "book.toml").write_text(
        'name = "shop"\nformat = "csv"\ncolumns = "id string, at timestamp"\naddresses = ["invoices"]\nkey = "id"\n'
        'message_key = "property:order"\ntime = "at"\ncommitted_when = "true"\ngrace = "0s"\n'
        'options.path = "shop.csv"\n',
        "utf-8",
    )
    with psycopg.connect(servers.second_url) as second:
        counts.append(second.execute(_COUNT).fetchone())
    assert counts[0] != counts[1], "the standby is not behind: the test shows nothing"
    found = run(spark, servers.second_url, tmp_path / "out", books=[describe(tmp_path / "book.toml")])
    assert "lost-message" not in found.findings.by_kind
    assert found.seen_at <= before < half[1]
    assert before - found.seen_at < timedelta(minutes=1)
    said = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))["seen_at"]
    assert datetime.fromisoformat(said) == found.seen_at
    with psycopg.connect(servers.second_url, autocommit=True) as second:
        second.execute("select pg_wal_replay_resume()")
    _committed(servers)
    later = run(spark, servers.second_url, tmp_path / "out", books=[describe(tmp_path / "book.toml")])
    assert later.seen_at > half[1]
    assert "lost-message" not in later.findings.by_kind
