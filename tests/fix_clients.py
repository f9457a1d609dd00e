"""Builds the clients by others with Maven, npm, Cargo, Go or a C++ compiler, once a session.

Maven and npm must be there. Not every system has a Cargo, a Go or a Proton C++ that is new enough; without them, their
tests are skipped, and the end of the run says so.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@contextmanager
def alone(project: Path) -> Iterator[None]:
    """No other process of the tests builds ``project`` meanwhile."""
    with (project / ".building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def maven_classpath(project: Path, *, reactor: Path | None = None, with_sources_of: Path | None = None) -> str:
    """The class path of ``project`` with its libraries; builds it when a source is newer than the last build.

    ``reactor``: the project that builds it together with another, whose sources count as its own.
    """
    if shutil.which("mvn") is None:
        pytest.fail("Apache Maven (mvn) and a JDK 17 are needed for the tests with Java clients")
    target = project / "target"
    stamp = target / "built"
    sources = [
        path
        for each in (project, *([with_sources_of] if with_sources_of else []))
        for path in (each / "pom.xml", *each.glob("src/main/**/*.java"))
    ]
    with alone(project):
        if not stamp.exists() or stamp.stat().st_mtime < max(source.stat().st_mtime for source in sources):
            done = maven(reactor or project, "clean", "package" if reactor else "process-classes")
            assert done.returncode == 0, done.stdout + done.stderr
            stamp.touch()
    return os.pathsep.join([str(target / "classes"), str(target / "lib" / "*")])


def maven(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Maven; it fetches what is not in the local repository yet."""
    command = ["mvn", "--quiet", "--batch-mode", *arguments]
    done = subprocess.run([*command, "--offline"], cwd=project, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "offline mode" in done.stdout + done.stderr:
        return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return done


def npm_modules(project: Path) -> Path:
    """``project``; installs the modules of its lock file when that is newer than the last installation."""
    if shutil.which("npm") is None:
        pytest.fail("Node.js 18 or newer with npm is needed for the tests with JavaScript clients")
    installed = project / "node_modules" / ".package-lock.json"
    with alone(project):
        if not installed.exists() or installed.stat().st_mtime < (project / "package-lock.json").stat().st_mtime:
            done = subprocess.run(["npm", "ci", "--silent"], cwd=project, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            installed.touch()
    return project


def need(tool: str, question: str, oldest: tuple[int, int], source: str) -> None:
    """Skip when ``tool`` is missing, or answers ``question`` with a version below ``oldest``.

    ``source`` says where a person gets it.
    """
    wanted = f"{tool} {oldest[0]}.{oldest[1]} or newer is needed ({source})"
    if shutil.which(tool) is None:
        pytest.skip(f"{wanted}, and there is none")
    answer = subprocess.run([tool, question], capture_output=True, text=True, check=False).stdout.strip()
    found = re.search(r"(\d+)\.(\d+)", answer)
    if found is None or (int(found[1]), int(found[2])) < oldest:
        pytest.skip(f"{wanted}, found {answer or 'nothing'}")


def built(project: Path, program: str, command: list[str], **environment: str) -> Path:
    """The path of ``program`` in ``project``; runs ``command``, which does nothing when it is up to date."""
    with alone(project):
        done = subprocess.run(
            command, cwd=project, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return project / "target" / program


def _build_fe2o3() -> Path:
    need("cargo", "--version", (1, 85), "https://rustup.rs")
    project = REPOSITORY / "tests" / "acceptance" / "rust"
    build = ["cargo", "build", "--locked", "--quiet", "--target-dir", "target"]
    return built(project, "debug/acceptance-rust", build)


def _build_go() -> Path:
    need("go", "version", (1, 18), "Debian: apt-get install golang-go")
    build = ["go", "build", "-buildvcs=false", "-o", "target/acceptance", "."]
    return built(REPOSITORY / "tests" / "acceptance" / "go", "acceptance", build, GOTOOLCHAIN="local", GOFLAGS="")


def _build_collector() -> Path:
    need("go", "version", (1, 26), "https://go.dev/dl")
    build = ["go", "build", "-buildvcs=false", "-o", "target/collector", "."]
    project = REPOSITORY / "tests" / "acceptance" / "collector"
    return built(project, "collector", build, GOTOOLCHAIN="local", GOFLAGS="")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Where several processes share the tests, the first builds what takes minutes beside the tests that come before:
    its tests, in this process and in others, would wait for it.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw0":
        return
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    builds = {"fe2o3_program": _build_fe2o3, "go_program": _build_go, "collector_program": _build_collector}
    for name, build in builds.items():
        if name in wanted:
            threading.Thread(target=_build_quietly, args=(build,), daemon=True).start()


def _build_quietly(build: Callable[[], Path]) -> None:
    """What is wrong its tests will say."""
    with suppress(AssertionError, pytest.skip.Exception):
        build()


@pytest.fixture(scope="session")
def fe2o3_program() -> Path:
    """The acceptance cases with fe2o3-amqp."""
    return _build_fe2o3()


@pytest.fixture(scope="session")
def go_program() -> Path:
    """The acceptance cases with go-amqp."""
    return _build_go()


@pytest.fixture(scope="session")
def collector_program() -> Path:
    """OpenTelemetry's collector, with what the tests need of it."""
    return _build_collector()


@pytest.fixture(scope="session")
def proton_cpp_program() -> Path:
    """The acceptance cases with Qpid Proton's C++ client."""
    oldest = (0, 37)
    wanted = (
        f"a C++ compiler, make and Qpid Proton C++ {oldest[0]}.{oldest[1]} or newer are needed "
        "(Debian: apt-get install g++ make libqpid-proton-cpp12-dev)"
    )
    if shutil.which("c++") is None or shutil.which("make") is None:
        pytest.skip(f"{wanted}, and there is no compiler or no make")
    # asks the compiler, because the package's pkg-config files are incomplete on Debian 12
    ask = ["c++", "-E", "-dM", "-x", "c++", "-include", "proton/container.hpp", "-include", "proton/version.h"]
    macros = subprocess.run([*ask, os.devnull], capture_output=True, text=True, check=False).stdout
    found = dict(re.findall(r"^#define PN_VERSION_(MAJOR|MINOR) (\d+)$", macros, re.MULTILINE))
    if not found:
        pytest.skip(f"{wanted}, and its headers are not there")
    if (int(found["MAJOR"]), int(found["MINOR"])) < oldest:
        pytest.skip(f"{wanted}, found {found['MAJOR']}.{found['MINOR']}")
    return built(REPOSITORY / "tests" / "acceptance" / "cpp", "acceptance", ["make", "--silent", "CXX=c++"])


@pytest.fixture(scope="session")
def orders_java_classpath() -> str:
    """The class path of the order service in Java."""
    examples = REPOSITORY / "examples"
    client = REPOSITORY / "clients" / "java"
    return maven_classpath(examples / "orders_java", reactor=examples, with_sources_of=client)


@pytest.fixture(scope="session")
def rhea_project() -> Path:
    """The acceptance cases with rhea."""
    return npm_modules(REPOSITORY / "tests" / "acceptance" / "rhea")


@pytest.fixture(scope="session")
def consumer_project() -> Path:
    """The consumer in JavaScript."""
    return npm_modules(REPOSITORY / "examples" / "consumer_javascript")
