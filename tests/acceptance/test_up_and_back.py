"""Up to a later version and back: the store of an embedded server is copied before it is migrated (rule F6)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from store.embedded.folder import free_bytes
from store.embedded.programs import NotRunning
from store.embedded.running import running_url
from tests.fix_later_version import LATER, later_constants
from tests.fix_service import PATIENCE, Service, running_service
from tests.wire.frames import Accepted
from tests.wire.messages import data
from tests.wire.peer import Peer

pytestmark = pytest.mark.rule("F6")

Later = Callable[..., Service]


@pytest.fixture
def old() -> Iterator[Service]:
    """Of this version, stopped, with two messages in its store."""
    with running_service() as service:
        _post(service, b"one", b"two")
        assert service.stop() == 0
        yield service


@pytest.fixture
def later(old: Service, tmp_path: Path) -> Iterator[Later]:
    """Makes services of the later version on the same data folder."""
    constants, made = later_constants(tmp_path), list[Service]()

    def make(**settings: str) -> Service:
        made.append(Service(old.data_dir.parent, settings, constants))
        return made[-1]

    yield make
    for each in made:
        each.discard()


def _post(service: Service, *bodies: bytes) -> None:
    peer = Peer(service.port)
    peer.open()
    sender = peer.begin().sender("orders")
    for body in bodies:
        assert sender.outcome(data(body)) == Accepted()
    peer.close()


def _browsed(service: Service, count: int) -> list[bytes]:
    """The first messages in the store, which stay there."""
    peer = Peer(service.port)
    peer.open()
    receiver = peer.begin().receiver("orders", credit=count)
    found = [receiver.take().body for _ in range(count)]
    peer.close()
    return found


def _refused(service: Service) -> str:
    """What a service says that does not start."""
    done = service.command("serve", "--listen", "amqp://127.0.0.1:0")
    assert done.returncode == 2, done.stderr
    return done.stderr


def _copies(service: Service) -> list[str]:
    return sorted(path.name for path in (service.data_dir / "copies").iterdir())


def _killed_once(service: Service, reached: Callable[[], bool]) -> None:
    """Start a service, and kill it at a point of its start."""

    def kill() -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(service.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AssertionError, match="the service ended"):
        service.start()
    killer.join()
    service.kill()


def _sleeps(data_dir: Path) -> bool:
    """Whether a step of a migration does what takes long."""
    try:
        with psycopg.connect(running_url(data_dir)) as store:
            row = store.execute("select count(*) from pg_stat_activity where wait_event = 'PgSleep'").fetchone()
    except (NotRunning, psycopg.OperationalError):
        return False
    return row == (1,)


def _events(service: Service) -> list[str]:
    return [str(line.get("event")) for line in service.log_lines()]


def test_the_way_back_is_the_copy(old: Service, later: Later) -> None:
    """As in docs/how-to/back-up-and-upgrade.md."""
    new = later()
    new.start()
    lines = [line for line in new.log_lines() if str(line.get("event")).startswith("store ")]
    copy = str(old.data_dir / "copies" / "0.1")
    assert [{name: line[name] for name in line if name not in ("timestamp", "level")} for line in lines] == [
        {"event": "store is copied before it is migrated", "schema": "0.1", "to": LATER},
        {"event": "store copied", "schema": "0.1", "copy": copy},
        {"event": "store migrated", "schema": LATER, "before": "0.1"},
    ]
    assert _browsed(new, 2) == [b"one", b"two"]
    _post(new, b"three")
    with psycopg.connect(running_url(new.data_dir)) as store:
        assert store.execute("select later from coordinator.half limit 1").fetchone() == (7,)
    assert new.stop() == 0

    assert f"database schema is at {LATER}, which this version does not know (it needs 0.1)" in _refused(old)

    (old.data_dir / "postgresql").rename(old.data_dir.parent / "as-of-0.2")
    (old.data_dir / "copies" / "0.1").rename(old.data_dir / "postgresql")
    old.restart()
    assert _browsed(old, 2) == [b"one", b"two"]
    _post(old, b"four")
    assert _browsed(old, 3)[2] == b"four", "what came after the copy is not there"
    assert old.stop() == 0

    new.restart()
    assert _copies(new) == ["0.1"]
    assert _browsed(new, 3) == [b"one", b"two", b"four"]


def test_a_store_of_this_version_is_not_copied(old: Service) -> None:
    old.restart()
    assert not (old.data_dir / "copies").exists()
    assert "store migrated" not in _events(old)


def test_the_command_does_not_migrate_it(old: Service, later: Later) -> None:
    """It would make no copy, and the service that runs could not start again."""
    old.restart()
    new = later()
    done = new.command("migrate", "--data-dir", str(old.data_dir))
    assert done.returncode == 1, done.stdout
    assert "is migrated when the service starts, which copies it before" in done.stderr
    assert old.stop() == 0
    old.restart()
    assert _browsed(old, 2) == [b"one", b"two"]


def test_no_copy_is_made_where_a_setting_says_so(later: Later) -> None:
    new = later(copy_before_migrating="never")
    new.start()
    assert "store migrated" in _events(new)
    assert not (new.data_dir / "copies").exists()
    assert _browsed(new, 2) == [b"one", b"two"]


@pytest.mark.rule("H13")
def test_kill_9_in_the_middle_of_the_copy_leaves_the_store_and_no_copy(old: Service, later: Later) -> None:
    pipe = old.data_dir / "postgresql" / "pipe"
    os.mkfifo(pipe)  # to copy it waits for a writer
    new = later()
    _killed_once(new, lambda: (old.data_dir / "copies" / "0.1.incomplete").exists())
    assert _copies(old) == ["0.1.incomplete"]
    pipe.unlink()

    old.restart()
    assert _copies(old) == []
    assert _browsed(old, 2) == [b"one", b"two"]
    assert old.stop() == 0

    new.restart()
    assert _copies(new) == ["0.1"]
    assert _browsed(new, 2) == [b"one", b"two"]


@pytest.mark.night
@pytest.mark.rule("H13")
def test_kill_9_in_the_middle_of_the_step_leaves_the_store_as_it_was(old: Service, tmp_path: Path) -> None:
    step = f"""
from alembic import op
revision, down_revision = "{LATER}", "0.1"
def upgrade():
    op.execute("alter table coordinator.half add column later int")
    op.execute("select pg_sleep(600)")
"""
    (tmp_path / "slow").mkdir()
    killed = Service(old.data_dir.parent, {}, later_constants(tmp_path / "slow", step))
    _killed_once(killed, lambda: _sleeps(old.data_dir))
    old.restart()
    assert _browsed(old, 2) == [b"one", b"two"]


@pytest.mark.night
def test_a_full_disk_is_said_and_the_old_version_goes_on(small_disk: Path, tmp_path: Path) -> None:
    old = Service(small_disk, {})
    new = Service(small_disk, {}, later_constants(tmp_path))
    try:
        old.start()
        _post(old, b"one")
        assert old.stop() == 0
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(free_bytes(small_disk) - (260 << 20)))
        assert "the disk has no room for a copy" in _refused(new)
        old.restart()
        assert _browsed(old, 1) == [b"one"]
        assert old.stop() == 0
        ballast.unlink()
        new.start()
        assert _copies(new) == ["0.1"]
        assert _browsed(new, 1) == [b"one"]
    finally:
        old.discard()
        new.discard()
