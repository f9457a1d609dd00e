"""What Java leaves is ended, and removed, by us (rule R31)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark.java import end_java, folders, leaders
from tests.fix_command import PATIENCE_SECONDS, alive

_JAVA = """
import os, signal, time
if not os.fork():
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
time.sleep(600)
"""

pytestmark = pytest.mark.rule("R31")


def test_all_of_a_session_of_a_child_is_ended_and_nothing_else() -> None:
    """Java's workers have a process group of their own, and refuse what can be refused."""
    with (
        subprocess.Popen(["sleep", "600"], start_new_session=True) as earlier,
        subprocess.Popen(["sleep", "600"]) as another,
    ):
        others = leaders()
        assert earlier.pid in others
        java = subprocess.Popen([sys.executable, "-c", _JAVA], stdout=subprocess.PIPE, start_new_session=True)
        assert java.stdout is not None
        of_java = int(java.stdout.readline())
        os.kill(java.pid, signal.SIGSTOP)
        end_java(others)
        assert not alive(of_java)
        assert java.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        java.stdout.close()
        for each in (earlier, another):
            assert each.poll() is None
            each.kill()


def test_folders_are_where_the_user_wants_them_and_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [tmp_path / "one", tmp_path / "two"]
    for each in there:
        each.mkdir()
    given = ",".join(map(str, there))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", given)
    with folders() as own:
        ours = [Path(each) for each in os.environ["SPARK_LOCAL_DIRS"].split(",")]
        assert [each.parent for each in ours] == there
        (ours[0] / "blocks").mkdir()
        assert own.is_dir()
    assert os.environ["SPARK_LOCAL_DIRS"] == given
    assert [path for folder in there for path in folder.iterdir()] == []
    assert not own.exists()


def test_without_a_wish_spark_uses_the_folder_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    with folders() as own:
        assert os.environ["SPARK_LOCAL_DIRS"] == str(own)
    assert "SPARK_LOCAL_DIRS" not in os.environ
    assert not own.exists()
