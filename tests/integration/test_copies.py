"""A copy of the cluster of an embedded server, on disks that are or become full, and beside other copies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from store.embedded import copies
from store.embedded.copies import NoRoom
from store.embedded.folder import free_bytes
from store.embedded.programs import Account

MIB = 1024 * 1024

pytestmark = pytest.mark.rule("F6")


def _cluster(folder: Path, size: int = MIB) -> Path:
    cluster = folder / "postgresql"
    (cluster / "global").mkdir(parents=True)
    (cluster / "global" / "pg_control").write_bytes(bytes(8192))
    (cluster / "rows").write_bytes(os.urandom(size))
    (cluster / "postmaster.pid").write_text("1")
    return cluster


def _keep(
    cluster: Path, version: str = "0.1", *, spare_bytes: int = 0, proceed: Callable[[], None] = lambda: None
) -> Path:
    account = Account(uid=os.geteuid(), gid=os.getegid(), other=False)
    folder = cluster.parent / "copies"
    return copies.keep(cluster, folder, version, account=account, spare_bytes=spare_bytes, proceed=proceed)


def _named(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_has_all_but_the_file_of_the_process(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    (cluster / "rows").chmod(0o600)
    copy = _keep(cluster)
    assert copy == tmp_path / "copies" / "0.1"
    assert _named(copy) == ["global", "rows"]
    assert _named(copy / "global") == ["pg_control"]
    assert (copy / "rows").read_bytes() == (cluster / "rows").read_bytes()
    assert (copy / "rows").stat().st_mode == (cluster / "rows").stat().st_mode
    assert (tmp_path / "copies").stat().st_mode & 0o777 == 0o700


def test_what_a_link_leads_to_is_copied(tmp_path: Path) -> None:
    """Else a server of the copy would write the log of the one that was copied."""
    cluster = _cluster(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "segment").write_bytes(b"log")
    (cluster / "pg_wal").symlink_to(tmp_path / "elsewhere")
    copied = _keep(cluster) / "pg_wal"
    assert not copied.is_symlink()
    assert (copied / "segment").read_bytes() == b"log"


def test_the_last_copy_alone_is_kept(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    _keep(cluster)
    (cluster / "rows").write_bytes(b"later")
    _keep(cluster)
    assert (tmp_path / "copies" / "0.1" / "rows").read_bytes() == b"later"
    _keep(cluster, "0.2")
    assert _named(tmp_path / "copies") == ["0.2"]


def test_a_full_disk_is_said_before_anything_is_copied(small_disk: Path) -> None:
    cluster = _cluster(small_disk, 100 * MIB)
    _keep(cluster, "0.0")
    needed, free = 100 * MIB + 8192 + 1, free_bytes(small_disk)
    said = rf"no room for a copy of {cluster}.*: {needed} bytes, and {250 * MIB} that .*, of {free}; the store is as"
    with pytest.raises(NoRoom, match=said):
        _keep(cluster, spare_bytes=250 * MIB)
    assert _named(small_disk / "copies") == ["0.0"], "the copy before is still there"


def test_a_disk_that_fills_up_in_the_middle_keeps_the_store_and_the_copy_before(small_disk: Path) -> None:
    cluster = _cluster(small_disk, 100 * MIB)
    before = _keep(cluster, "0.0")
    rows = (cluster / "rows").read_bytes()

    def fill() -> None:
        """As another process on the same disk."""
        with (small_disk / "ballast").open("ab") as ballast:
            ballast.write(bytes(max(0, free_bytes(small_disk) - MIB)))

    with pytest.raises(NoRoom, match=r"the disk has no room .*the store is as it was"):
        _keep(cluster, proceed=fill)
    assert _named(small_disk / "copies") == ["0.0"]
    assert (before / "rows").read_bytes() == (cluster / "rows").read_bytes() == rows
