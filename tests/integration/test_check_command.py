"""``coordinator check`` and ``coordinator address set``: what they say, and how they end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, text

from store import figures, health, partitions, recovery
from store.database import connected
from store.embedded import running
from store.embedded.server import EmbeddedServer
from tests.fix_command import Command
from tests.fix_proxy import Proxy
from tests.fix_standby import TwoServers
from tests.fix_store import Rows
from tests.fix_store_driver import Truth, let_commits_wait


@pytest.fixture
def alive(database: Connection) -> int:
    """An instance that beats for longer than any test takes."""
    number = recovery.register(database, "1").instance_id
    database.execute(text("update coordinator.heartbeat set beaten_at = now() + interval '1 hour'"))
    database.commit()
    return number


def test_a_store_that_is_well(command: Command, database_url: str, rows: Rows, alive: int) -> None:
    rows.entry(rows.queue("orders"))
    done = command("check", "--database-url", database_url, "--json", "--fewest-free", "0")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["partitions_ahead"] >= partitions.DAYS_AHEAD - 1
    assert (found["instances_alive"], found["undecided"], found["orphans"]) == (1, 0, 0)
    assert 0 <= found["free_percent"] <= 100


def test_what_is_wrong_is_said_and_is_the_exit_status(command: Command, database_url: str, rows: Rows) -> None:
    rows.instance()
    rows.connection.execute(text("update coordinator.heartbeat set beaten_at = now() - interval '60 seconds'"))
    rows.txn(1)
    rows.entry(rows.queue("orders"))
    rows.connection.execute(text("update coordinator.txn set timeout_at = now() - interval '1 hour'"))
    rows.connection.execute(text("update coordinator.entry set group_id = group_id + 1000"))
    for day in range(3, 20):
        name = f"op_{(rows.now() + timedelta(days=day)).date():%Y%m%d}"
        rows.connection.execute(text(f"drop table if exists coordinator.{name}"))
    rows.connection.commit()
    done = command("check", "--database-url", database_url)
    assert done.returncode == 1
    wrong = [line for line in done.stdout.splitlines() if line.startswith("wrong: ")]
    assert [" ".join(line.split()[1:3]) for line in wrong][:5] == [
        "partitions reach",
        "no instance",
        "1 instances",
        "1 transactions",
        "1 entries",
    ]
    assert "reach 2 days ahead" in wrong[0]


def test_a_disk_with_little_room(database: Connection, alive: int) -> None:
    found = health.read(database)
    assert found.free_percent is not None
    assert found.free_bytes is not None
    assert health.wrong(found, fewest_free=found.free_percent, least_bytes=found.free_bytes) == []
    assert health.wrong(found, fewest_free=found.free_percent + 1, least_bytes=0) == [
        f"{found.free_percent} percent of the disk are free"
    ]


def test_entries_of_a_group_that_was_just_removed_are_no_alarm(database: Connection, rows: Rows, alive: int) -> None:
    """They are being dropped, or the maintenance drops them; where it has not, they are told."""
    rows.entry(rows.queue("$dynamic/1", origin="dynamic", instance_id=alive))
    database.execute(text("delete from coordinator.address where origin = 'dynamic'"))
    database.commit()
    assert health.read(database).orphans == 0
    database.execute(text("update coordinator.removed_group set removed_at = now() - interval '16 minutes'"))
    database.commit()
    assert health.read(database).orphans == 1


@pytest.mark.rule("S4")
def test_ids_that_run_out_are_told(database: Connection, alive: int) -> None:
    """Those of addresses and groups come again."""
    last = 2**31 - 1
    for table, used, percent in (
        ("instance", last // 2, None),
        ("address", last, None),
        ("consumer_group", last, None),
        ("instance", last * 3 // 4, 75),
    ):
        database.execute(text(f"select setval('coordinator.{table}_id_seq', {used})"))
        database.commit()
        assert health.read(database).ids_used_percent == percent
    said = ["75 percent of the ids of instance_id_seq are used up"]
    assert health.wrong(health.read(database), fewest_free=0, least_bytes=0) == said


def test_no_age_is_below_zero(database: Connection, rows: Rows, alive: int) -> None:
    """Where the clock of an instance runs ahead, its transactions are declared later than now."""
    rows.txn(alive)
    database.execute(text("update coordinator.txn set declared_at = now() + interval '5 minutes'"))
    database.commit()
    assert health.read(database).oldest_undecided_seconds == 0
    assert figures.undecided(database).oldest_seconds == 0


def test_it_says_from_which_day_on_all_is_there_and_how_large_the_database_is(
    command: Command, database_url: str, database: Connection, alive: int
) -> None:
    database.execute(text("insert into coordinator.retention (table_name, kept_from) values ('op', '2024-02-03')"))
    database.commit()
    found = json.loads(command("check", "--json", "--database-url", database_url).stdout)
    assert (found["messages_kept_from"], found["decisions_kept_from"]) == (None, "2024-02-03")
    assert found["database_bytes"] > 1 << 20


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        ({}, []),
        ({0: None, 1: 1.5}, []),
        ({0: 1.5, 1: 300.0}, ["the clock of instance {1} is 300 s ahead of the database's; keep both by NTP"]),
        ({0: 300.0, 1: -3600.0}, ["the clock of instance {1} is 3600 s behind the database's; keep both by NTP"]),
    ],
    ids=["beaten once", "near", "ahead", "behind"],
)
def test_the_clock_that_differs_most_is_told(
    database: Connection, alive: int, ahead: dict[int, float | None], said: list[str]
) -> None:
    """As its instance says with its beats (H13); one of an earlier version, or of its first beat, says nothing."""
    instances = (alive, recovery.register(database, "1").instance_id, recovery.register(database, "1").instance_id)
    change = text("update coordinator.heartbeat set clock_ahead_seconds = :seconds where instance_id = :instance")
    silent = text(
        "update coordinator.heartbeat set beaten_at = now() - interval '1 hour' where instance_id = :instance"
    )
    for number, seconds in {**ahead, 2: 9000.0}.items():
        database.execute(change, {"instance": instances[number], "seconds": seconds})
    database.execute(silent, {"instance": instances[2]})
    database.commit()
    found = health.read(database)
    lines = [line for line in health.wrong(found, fewest_free=0, least_bytes=0) if "clock" in line]
    assert lines == [line.format(*instances) for line in said]


@contextmanager
def batch(url: str, statement: str) -> Iterator[None]:
    """A session with the name of a worker's, which has run this for longer than a batch takes."""
    named = psycopg.connect(url, autocommit=True, application_name="coordinator batch 1")
    with named as session, ThreadPoolExecutor() as threads, psycopg.connect(url, autocommit=True) as beside:
        run = threads.submit(session.execute, statement.encode())
        late = (
            "select from pg_stat_activity where pid = %s and state = %s"
            " and query_start < clock_timestamp() - make_interval(secs => 5.2)"
        )
        state = "idle" if statement == "select" else "active"
        while beside.execute(late, (session.info.backend_pid, state)).fetchone() is None:
            time.sleep(0.1)
        try:
            yield
        finally:
            session.cancel_safe()
            run.exception()


@pytest.mark.rule("H19")
def test_a_batch_that_waits_is_told_with_who_holds_it_up(
    command: Command, database: Connection, database_url: str, alive: int
) -> None:
    """Also where the same session holds up the command."""
    database.close()
    update = "update coordinator.txn set checks = 0 where false"
    with psycopg.connect(database_url, application_name="by hand") as holding:
        holding.execute("lock table coordinator.txn in share mode")
        with batch(database_url, update):
            done = command("check", "--database-url", database_url, "--fewest-free", "0")
            assert done.returncode == 1
            assert f"held up by process {holding.info.backend_pid} (by hand)" in done.stdout
            holding.rollback()
        holding.execute("lock table coordinator.txn in access exclusive mode")
        with batch(database_url, update):
            done = command("check", "--database-url", database_url, "--fewest-free", "0")
            assert done.returncode == 2
            assert f"as a batch of the service is: process {holding.info.backend_pid} (by hand)" in done.stderr


@pytest.mark.rule("H19")
def test_a_batch_that_does_not_wait_is_not(
    database_url: str, server_url: str, database: Connection, alive: int
) -> None:
    """It is idle, or another store's."""
    with batch(database_url, "select"), batch(server_url, "select pg_sleep(60)"):
        assert health.read(database).commit_waits_seconds is None


@pytest.mark.rule("H19")
def test_a_synchronous_standby_that_commits_wait_for_is_named(
    command: Command, own_server: tuple[EmbeddedServer, str]
) -> None:
    """As after the promotion of a standby that has the setting of its primary."""
    _, url = own_server
    with closing(Truth(url)) as truth:
        let_commits_wait(truth, url)
        try:
            with batch(url, "select pg_logical_emit_message(true, 'held', '')"):
                done = command("check", "--database-url", url, "--fewest-free", "0")
        finally:
            truth.run("alter system reset synchronous_standby_names")
            truth.run("select pg_reload_conf()")
    assert done.returncode == 1
    said = "wrong: commits wait for a synchronous standby: 'nowhere', by synchronous_standby_names; connected: none"
    assert said in done.stdout.splitlines()


@pytest.mark.rule("H19")
@pytest.mark.parametrize(
    ("names", "said"),
    [("", "walreceiver (async)"), ("any 1 (walreceiver, b)", "walreceiver (quorum)"), ("first 1 (walreceiver)", None)],
)
def test_a_standby_that_may_lack_the_last_commits_is_named(
    two_servers: TwoServers, names: str, said: str | None
) -> None:
    kinds = "select sync_state from pg_stat_replication where state = 'streaming'"
    with closing(Truth(two_servers.first_url)) as truth, connected(two_servers.first_url) as primary:
        truth.run(f"alter system set synchronous_standby_names = '{names}'")
        truth.run("select pg_reload_conf()")
        expected = said.split("(")[1].rstrip(")") if said else "sync"
        while truth.rows(kinds) != [(expected,)]:
            time.sleep(0.1)
        assert health.read(primary).standbys_that_may_lack == said
    with connected(two_servers.second_url) as standby:
        assert health.read(standby).standbys_that_may_lack is None


@pytest.mark.rule("F2")
def test_a_disk_with_less_room_than_posts_need(command: Command, database_url: str, alive: int, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('[limits]\ndisk_free_bytes = "1000 TiB"\n', "utf-8")
    done = command("check", "--database-url", database_url, "--fewest-free", "0", "--config", str(config))
    assert done.returncode == 1, done.stderr
    (wrong,) = [line for line in done.stdout.splitlines() if line.startswith("wrong: ")]
    assert "less than limits.disk_free_bytes (1048576000 MiB)" in wrong


def test_the_disk_of_a_server_that_may_be_elsewhere(command: Command, database_url: str, alive: int) -> None:
    """The server believes that its client is beside it; what the client sees is a proxy, as of a container's port."""
    with closing(Proxy(database_url)) as proxy:
        done = command("check", "--database-url", proxy.url, "--fewest-free", "100")
        told = command("check", "--database-url", proxy.url, "--fewest-free", "100", "--json")
    assert done.returncode == 0, done.stdout
    shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (shown["free-percent:"], shown["free-bytes:"]) == ("not looked at", "not looked at")
    assert json.loads(told.stdout)["free_percent"] is None


def test_a_folder_of_another_server(own_server: tuple[EmbeddedServer, str]) -> None:
    """It may have the same path in the container of that."""
    server, url = own_server
    cluster = server.data_dir / "postgresql"
    with psycopg.connect(url) as connection:
        assert running.runs_here(connection.fileno(), cluster)
        pidfile = cluster / "postmaster.pid"
        whole = pidfile.read_text()
        try:
            pidfile.write_text(f"{int(whole.split()[0]) + 1}\n")
            assert not running.runs_here(connection.fileno(), cluster)
        finally:
            pidfile.write_text(whole)
        assert not running.runs_here(connection.fileno(), server.data_dir)


def test_settings_are_read_once(command: Command, database_url: str, alive: int, tmp_path: Path) -> None:
    """They may come from a pipe, which has them once."""
    config = tmp_path / "settings"
    os.mkfifo(config)
    with ThreadPoolExecutor(1) as beside:
        written = beside.submit(config.write_text, '[limits]\ndisk_free_bytes = "1 TiB"\n', "utf-8")
        done = command("check", "--database-url", database_url, "--config", str(config))
        written.result()
    assert "disk" in done.stdout


def test_a_store_that_cannot_be_looked_at(command: Command, empty_database_url: str) -> None:
    assert command("check", "--database-url", empty_database_url).returncode == 2
    assert command("check", "--database-url", "postgresql://nobody@127.0.0.1:1/x").returncode == 2


@pytest.mark.rule("H15", "T11")
def test_a_store_that_cannot_be_asked_is_told_from_one_that_knows_nothing(
    command: Command, database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    asked = ("transaction", "show", str(uuid4()))
    assert command(*asked, "--database-url", database_url).returncode == 1
    assert command(*asked, "--database-url", empty_database_url).returncode == 2
    assert command(*asked, "--database-url", "postgresql://nobody@127.0.0.1:1/x").returncode == 2
    assert command(*asked, "--data-dir", str(tmp_path)).returncode == 2
    assert command("check", "--data-dir", str(tmp_path)).returncode == 2


@pytest.mark.rule("H16")
def test_the_period_of_an_address_can_be_set(command: Command, database_url: str, rows: Rows) -> None:
    rows.queue("orders")

    def hours() -> object:
        return rows._one(text("select retention_hours from coordinator.address where name = 'orders'"))

    done = command("address", "set", "orders", "--retention-hours", "24", "--database-url", database_url)
    assert (done.returncode, hours()) == (0, 24)
    assert "24" in command("address", "show", "orders", "--database-url", database_url).stdout
    done = command("address", "set", "orders", "--retention-hours", "0", "--database-url", database_url)
    assert (done.returncode, hours()) == (0, None)
    for arguments, status in ((("orders",), 2), (("other", "--retention-hours", "1"), 1)):
        assert command("address", "set", *arguments, "--database-url", database_url).returncode == status
