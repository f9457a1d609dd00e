"""Java's classes kept from one start to the next: where, for whom, and that nothing of it is ever noticed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark import archive
from spark import java as our_java
from spark.archive import AGAIN_AFTER_SECONDS, MOST_KEPT, Archive, archive_of, make
from tests.fix_command import PATIENCE_SECONDS, ROOT, environment

JAVA = our_java.java_home() / "bin" / "java"
VERSION = our_java._version_text(JAVA)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache dir"))
    folder = archive.cache_folder()
    assert folder == tmp_path / "cache dir" / "coordinator" / "java"
    return folder


def java(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([JAVA, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def noted_by_java() -> Archive:
    """Of a Java that has loaded its own few hundred classes."""
    found = archive_of(JAVA, VERSION, note=True)
    assert found.noted is not None
    assert java(*shlex.split(" ".join(found.options)), "-version").returncode == 0
    return found


@pytest.fixture
def made(cache: Path) -> Path:
    noted = noted_by_java().noted
    assert noted is not None
    make(str(JAVA), noted, "")
    path = archive_of(JAVA, VERSION, note=True).path
    assert path is not None
    return path


def test_it_is_made_whole_and_nothing_else_is_left(cache: Path, made: Path) -> None:
    assert list(cache.iterdir()) == [made]
    used = java("-Xshare:on", f"-XX:SharedArchiveFile={made}", "-version")
    assert (used.returncode, used.stdout) == (0, "")


def test_another_java_or_spark_has_another(
    cache: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive_of(JAVA, f"{VERSION} (patched)", note=False) == Archive()
    assert archive_of(Path("/opt/java/bin/java"), VERSION, note=False) == Archive()
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    names = set()
    for size in range(3):
        (jars / "spark-core.jar").write_bytes(bytes(size))
        names.add(archive_of(JAVA, VERSION, note=True).noted)
    assert len(names) == 3


def test_tests_of_other_things_keep_theirs_for_as_long_as_they_run() -> None:
    folder = archive.cache_folder()
    assert folder is not None
    assert folder.parent.parent.name.startswith("coordinator-test-cache-")


def test_one_of_another_user_is_not_used(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: made.stat().st_uid + 1)
    assert archive_of(JAVA, VERSION, note=True) == Archive()


def test_where_none_can_be_kept_it_goes_on_without(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive_of(JAVA, 'openjdk version "17.0.15"\nEclipse OpenJ9 VM', note=True) == Archive()
    monkeypatch.setattr(archive, "_LEAST_FREE", 1 << 62)
    assert archive_of(JAVA, VERSION, note=True) == Archive()
    # a folder that cannot be made: root may write anywhere else
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert archive_of(JAVA, VERSION, note=True) == Archive()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert archive_of(JAVA, VERSION, note=True) == Archive()
    # what Spark's own shell would take apart
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / 'a"b'))
    assert archive_of(JAVA, VERSION, note=True) == Archive()


def test_what_cannot_be_made_is_tried_again_a_day_later(cache: Path) -> None:
    noted = noted_by_java().noted
    assert noted is not None
    make("/bin/false", noted, "")
    (tried,) = cache.iterdir()
    assert archive_of(JAVA, VERSION, note=True) == Archive()
    left = cache / "0.1.partial"
    left.touch()
    for path in (tried, left):
        os.utime(path, (0, time.time() - AGAIN_AFTER_SECONDS - 1))
    assert archive_of(JAVA, VERSION, note=True).noted == noted
    assert list(cache.iterdir()) == []


def test_of_two_that_make_it_one_does(cache: Path) -> None:
    noted = noted_by_java().noted
    assert noted is not None
    (cache / f"{noted.name.split('.')[0]}.tried").touch()
    make(str(JAVA), noted, "")
    assert [path.suffix for path in cache.iterdir()] == [".tried"]


def test_those_used_last_are_kept(cache: Path, made: Path) -> None:
    for age in range(1, 5):
        old = cache / f"{age}.jsa"
        old.touch()
        os.utime(old, (0, time.time() - age))
    # one that is used counts as new
    os.utime(made, (0, 0))
    assert archive_of(JAVA, VERSION, note=False).path == made
    assert archive_of(JAVA, f"{VERSION} (patched)", note=True).noted is not None
    assert {path.name for path in cache.iterdir()} == {made.name, *(f"{age}.jsa" for age in range(1, MOST_KEPT))}


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return (
        content[:middle]
        + bytes(octet ^ 0xFF for octet in content[middle : middle + 65_536])
        + content[middle + 65_536 :]
    )


@pytest.mark.parametrize(
    "damage",
    [_flipped, lambda content: content[: len(content) // 2], lambda _: b"", lambda content: b"\0" * len(content)],
    ids=["flipped", "cut", "empty", "zeros"],
)
def test_a_damaged_one_is_passed_over_without_a_word(made: Path, damage: object) -> None:
    assert callable(damage)
    damaged = damage(made.read_bytes())
    made.unlink()
    made.write_bytes(damaged)
    options = shlex.split(" ".join(archive_of(JAVA, VERSION, note=False).options))
    ran = java(*options, "-version")
    assert (ran.returncode, ran.stdout, ran.stderr.splitlines()[:2]) == (0, "", VERSION.splitlines()[:2])


_SESSION = """
from spark.java import running_java
from spark.session import running_session
with running_java('local[1]', memory='512m') as java, running_session(java) as spark:
    given = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    print([option for option in given if 'Shared' in option or 'ClassList' in option])
    print(spark.conf.get('spark.executor.extraJavaOptions', 'none'))
print(java.java.process.returncode)
"""
#: Java has ended by SIGTERM in its own way: what it, or an agent of the user's, writes at its end is whole.
_ENDED = "143"


def _session(cache: Path) -> tuple[str, str]:
    """What a session in a process of its own has been given for classes, and its executors."""
    ran = subprocess.run(
        [sys.executable, "-c", _SESSION],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(XDG_CACHE_HOME=str(cache.parent.parent)),
        timeout=3 * PATIENCE_SECONDS,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    options, executors, status = ran.stdout.splitlines()
    assert status == _ENDED
    return options, executors


def test_the_driver_of_a_session_uses_it_and_no_executor(cache: Path, made: Path) -> None:
    # of classes of Java alone, so Java finds that it does not fit Spark
    options, executors = _session(cache)
    assert f"-XX:SharedArchiveFile={made}" in options
    assert "Shared" not in executors


def _making(cache: Path) -> list[int]:
    """The processes that make a file in the folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and str(cache) in (process / "cmdline").read_text():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_session_that_finds_none_has_it_made_and_a_kill_leaves_nothing_half(cache: Path) -> None:
    options, _ = _session(cache)
    assert "-XX:DumpLoadedClassList=" in options
    until = time.monotonic() + PATIENCE_SECONDS
    while len(makers := _making(cache)) < 2:
        assert time.monotonic() < until, "nothing makes it"
        time.sleep(0.05)
    for maker in makers:
        os.kill(maker, signal.SIGKILL)
    assert {path.suffix for path in cache.iterdir()} <= {".tried", ".classes", ".partial"}
    # and the next does without
    assert _session(cache)[0] == "[]"
