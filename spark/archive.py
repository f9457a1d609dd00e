"""Java's classes as it has them in memory, kept in a file from one start to the next (class-data sharing).

A small run spends a third of its processor time on reading, checking and linking the same 15,000 classes. A command
that finds no file has Java note which classes it loads; when it has ended well, a process of its own makes the file
from them in the background, at the lowest priority, as that takes a minute: no person waits for it.

The file is in the user's cache folder, by a name for this Java, this Spark and its jars. Java checks again that it
fits, and that its sums are right, and goes on without a word where not. It gets its name when it is whole. Where it
cannot be made (a home that cannot be written, a full disk), the next try is a day later; other Javas than HotSpot do
without.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from shutil import disk_usage
from typing import Final

#: Files kept, of those used last: some 180 MB each.
MOST_KEPT: Final = 3
#: A try is not repeated, and what it left is not removed, for so long.
AGAIN_AFTER_SECONDS: Final = 24 * 3600
_LEAST_FREE: Final = 1 << 30
_MAKING_SECONDS: Final = 1800
#: Java itself says nothing: what does not fit is no news, and what is wrong it throws.
_USING: Final = ("-Xshare:auto", "-XX:+VerifySharedSpaces", "-Xlog:disable")


@dataclass(frozen=True, kw_only=True)
class Archive:
    """What there is for a Java: ``path``, the file of its classes; else ``noted``, where it notes them; or nothing."""

    path: Path | None = None
    noted: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Of the Java that is started."""
        if self.path is not None:
            return (f'"-XX:SharedArchiveFile={self.path}"', *_USING)
        return (f'"-XX:DumpLoadedClassList={self.noted}"', "-Xlog:disable") if self.noted is not None else ()

    def make(self, java: Path, class_path: str) -> None:
        """Where the classes were noted, have the file made in the background; the Java that noted them has ended."""
        if self.noted is None:
            return
        with suppress(OSError):
            subprocess.Popen(
                [sys.executable, "-m", "spark.archive", str(java), str(self.noted), class_path],
                cwd=Path(__file__).resolve().parent.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


def archive_of(java: Path, version: str, *, note: bool) -> Archive:
    """What there is for ``java``, which calls itself ``version`` (all that ``java -version`` says).

    ``note``: where there is no file, its classes are to be noted, unless that was tried within a day.
    """
    folder = cache_folder()
    # others have other options; and these go through a shell's rules of quoting
    if folder is None or "Server VM" not in version or any(sign in str(folder) for sign in '"\\$`\n'):
        return Archive()
    try:
        name = _name(java, version)
        made = folder / f"{name}.jsa"
        if made.exists():
            # what is read is code: only what this user wrote
            if {made.stat().st_uid, folder.stat().st_uid} != {os.geteuid()}:
                return Archive()
            os.utime(made)
            return Archive(path=made)
        if not note:
            return Archive()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(folder)
        if _tried(made).exists() or not os.access(folder, os.W_OK) or disk_usage(folder).free < _LEAST_FREE:
            return Archive()
    except OSError:
        return Archive()
    return Archive(noted=folder / f"{name}.{os.getpid()}.classes")


def cache_folder() -> Path | None:
    """Where the files are: ``coordinator/java`` in the user's cache folder (XDG); None: the user has none."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given) / "coordinator" / "java"
    try:
        return Path.home() / ".cache" / "coordinator" / "java"
    except RuntimeError:
        return None


def spark_home() -> Path:
    """The folder of Spark: ``SPARK_HOME``, or that of PySpark."""
    given = os.environ.get("SPARK_HOME")
    if given is not None:
        return Path(given)
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def spark_jars() -> list[Path]:
    """What of Spark is on the class path: all but MLlib, which adds functions for itself to each session that begins,
    by Scala's reflection: that takes a second."""
    return sorted(jar for jar in (spark_home() / "jars").glob("*.jar") if not jar.name.startswith("spark-mllib_"))


def _name(java: Path, version: str) -> str:
    jars = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in spark_jars()]
    known = (str(java), version, version_of("pyspark"), jars)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def _tried(made: Path) -> Path:
    return made.with_suffix(".tried")


def _sweep(folder: Path) -> None:
    """Remove what tries have left that were ended in the middle, and the files that were used longest ago."""
    made = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            used = path.stat().st_mtime
            if path.suffix == ".jsa":
                made.append((used, path))
            elif used < time.time() - AGAIN_AFTER_SECONDS:
                path.unlink()
    for _, path in sorted(made, reverse=True)[MOST_KEPT:]:
        path.unlink(missing_ok=True)


def make(java: str, noted: Path, class_path: str) -> None:
    """Make the file of the classes in ``noted``, which is removed; one process a day tries."""
    made = noted.with_name(noted.name.split(".")[0] + ".jsa")
    partial = noted.with_suffix(".partial")
    try:
        _tried(made).touch(exist_ok=False)
        subprocess.run(
            [
                java,
                "-Xshare:dump",
                f"-XX:SharedClassListFile={noted}",
                f"-XX:SharedArchiveFile={partial}",
                "-Xlog:disable",
                "-cp",
                class_path,
            ],
            stdin=subprocess.DEVNULL,
            timeout=_MAKING_SECONDS,
            check=True,
        )
        # its name must not outlive a power cut that its contents do not
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(made)
        _tried(made).unlink()
        _sweep(made.parent)
    except (OSError, subprocess.SubprocessError):
        # without it all works as well; the next try is a day later
        return
    finally:
        for path in (noted, partial):
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(19)
    make(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
