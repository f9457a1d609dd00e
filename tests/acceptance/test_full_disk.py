"""A disk that fills up: posts are refused before the database ends, the rest goes on, and posts are taken again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from store.embedded.running import running_url
from tests.acceptance.engine_client import Client
from tests.fix_service import PATIENCE, Service

MIB = 1024 * 1024
REFUSED = "amqp:resource-limit-exceeded"
ROLLBACK = "amqp:transaction:rollback"
_DISK_LOW = "coordinator_disk_low"


def _until_metrics_have(service: Service, disk_low: int) -> None:
    ((place,),) = [line["listen"] for line in service.log_lines() if line.get("event") == "metrics"]
    deadline = time.monotonic() + PATIENCE
    while True:
        with suppress(HTTPError), urllib.request.urlopen(f"{place}/metrics", timeout=PATIENCE) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            (value,) = [each.value for family in families for each in family.samples if each.name == _DISK_LOW]
            if value == disk_low:
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.rule("F2")
def test_a_disk_that_fills_up_refuses_posts_and_nothing_else(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(100 * MIB))
    service = Service(small_disk, {"limits.disk_free_bytes": "96 MiB", "metrics.listen": "http://127.0.0.1:0"})
    try:
        service.start()
        _until_metrics_have(service, disk_low=0)
        client = Client(service.port, "client")
        sender = client.sender("orders")
        held = client.declare()
        client.post(sender, "before", txn=held)
        taken = 0
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline
            delivery = client.post(sender, bytes(MIB // 2))
            client.until(lambda delivery=delivery: delivery.settled)  # type: ignore[misc]
            if int(delivery.remote_state) != 0x24:
                assert delivery.remote.condition.name == REFUSED
                assert "limits.disk_free_bytes" in delivery.remote.condition.description
                break
            taken += 1
        assert taken > 10
        with ballast.open("ab") as more:
            more.write(bytes(64 * MIB))  # or a checkpoint that removes files of the log makes room enough
        _until_metrics_have(service, disk_low=1)
        assert "less than limits.disk_free_bytes (96 MiB)" in service.cli("check", "--fewest-free", "0", status=1)
        # What was posted while there was room is not committed now.
        answer = client.discharge(held, fail=False)
        assert (answer.condition, "limits.disk_free_bytes" in answer.description) == (ROLLBACK, True)
        refused = client.declare()
        client.post(sender, "x", txn=refused)
        assert client.discharge(refused, fail=False).condition == ROLLBACK
        receiver = client.receiver("orders", 20)
        for number in range(10):
            if number % 2:
                txn = client.declare()
                client.retire(client.receive(receiver), txn)
                assert client.discharge(txn, fail=False).accepted
            else:
                client.accept(client.receive(receiver))
        assert "orders" in service.cli("address", "list")
        ballast.unlink()
        service.wait_for(lambda line: line.get("event") == "disk has room again: posts are taken")
        deadline = time.monotonic() + PATIENCE
        while client.outcome(client.post(sender, "after")) != 0x24:
            assert time.monotonic() < deadline
        _until_metrics_have(service, disk_low=0)
        service.cli("check", "--fewest-free", "0")
        client.close()
        assert not [line for line in service.log_lines() if line.get("event") in ("database ended", "worker ended")]
        assert service.stop() == 0
    finally:
        service.discard()


def _fill_the_log(url: str) -> None:
    """To the end of the last file of the write-ahead log that there is: the next start of the server needs another."""
    size = 16 * MIB
    with psycopg.connect(url, autocommit=True) as connection:

        def asked(what: str) -> int:
            row = connection.execute(f"select {what}".encode()).fetchone()
            assert row is not None
            return int(row[0])

        def left() -> int:
            return size - asked("pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8") % size

        last = "(select max(name) from pg_ls_waldir() where length(name) = 24)"
        while not asked(f"(pg_walfile_name(pg_current_wal_insert_lsn()) = {last})::int"):
            connection.execute("select pg_switch_wal()")
            connection.execute("select pg_logical_emit_message(false, 'filling', 'x')")
        while (room := left()) > 1000:
            octets = max(1, int(room * 0.99) - 900)  # pages have headers
            connection.execute("select pg_logical_emit_message(false, 'filling', repeat('x', %s))", [octets])


def _leave_a_mebibyte(disk: Path) -> None:
    """The service's log may grow between the look and the file."""
    with (disk / "ballast").open("wb") as ballast:
        while (room := os.statvfs(disk)).f_bavail > 256:
            with suppress(OSError):
                size = os.fstat(ballast.fileno()).st_size
                os.posix_fallocate(ballast.fileno(), size, (room.f_bavail - 256) * room.f_frsize)


_STARTS = ("database started", "database not started")


def test_the_command_line_says_what_ails_a_service_without_its_database(small_disk: Path) -> None:
    service = Service(small_disk, {})
    try:
        service.start()
        seen, event, deadline = 0, "database started", time.monotonic() + PATIENCE
        while event == "database started":  # a checkpoint in between leaves a file of the log to start with
            assert time.monotonic() < deadline
            started = service.wait_for(lambda line: line.get("event") == "database started", since=seen)
            (small_disk / "ballast").unlink(missing_ok=True)  # or the log has no room to be filled
            _fill_the_log(running_url(service.data_dir))
            _leave_a_mebibyte(small_disk)
            seen = len(service.log_lines())
            os.kill(started["pid"], 9)
            event = service.wait_for(lambda line: line.get("event") in _STARTS, since=seen)["event"]
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline
            done = subprocess.run(
                [sys.executable, "-m", "coordinator", "address", "list", "--data-dir", str(service.data_dir)],
                env=service.environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            if f"(process {service.pid}), but its database does not: its disk is full (1 MiB free)" in done.stderr:
                break
    finally:
        service.discard()
