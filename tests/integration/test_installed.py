"""What ``make dist`` makes, installed as a user does: in a virtual environment of its own, outside the checkout."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.readme import blocks, section
from tests.rules import ROOT

pytestmark = pytest.mark.night

_UV = Path(sys.executable).with_name("uv")
_NAME = "amqp-transaction-coordinator"
_PATIENCE_SECONDS = 300
_MOST_OCTETS_OF_PLAIN = 150_000_000
_OTHER_USER = 65534


class Installed:
    """A virtual environment with a wheel, in a folder that all may enter."""

    def __init__(self, folder: Path, python: Path, owner: int) -> None:
        self.folder = folder
        self._python = python
        #: who runs the commands
        self._owner = owner
        self.data = folder / "data"

    def install(self, dist: Path, extras: str) -> None:
        environment = {**os.environ, "UV_NO_CONFIG": "1", "UV_LINK_MODE": "copy"}
        make: list[str | Path] = [
            _UV,
            "venv",
            "--quiet",
            "--no-project",
            "--python",
            self._python,
            self.folder / "venv",
        ]
        subprocess.run(make, env=environment, check=True)
        locked: list[str | Path] = ["--constraint", ROOT / "requirements" / "serve.txt", "--no-verify-hashes"]
        pip: list[str | Path] = [
            _UV,
            "pip",
            "install",
            "--quiet",
            "--refresh-package",  # else uv takes a wheel of this name that was made here before
            _NAME,
            "--find-links",
            dist,
            "--python",
            self.folder / "venv/bin/python",
        ]
        subprocess.run([*pip, *locked, f"{_NAME}{extras}"], env=environment, check=True)

    @property
    def octets(self) -> int:
        return sum(path.lstat().st_size for path in (self.folder / "venv").rglob("*"))

    def popen(self, *command: str, more: Mapping[str, str]) -> subprocess.Popen[str]:
        """A program of the environment, in the folder, without anything of ours in its surroundings."""
        return subprocess.Popen(
            [str(self.folder / "venv/bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "COORDINATOR_DATA_DIR": str(self.data), **more},
            user=self._owner,
            group=self._owner,
            extra_groups=[],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str, status: int = 0, **more: str) -> str:
        """What it prints; it has to end with ``status``."""
        with self.popen(*command, more=more) as process:
            printed, _ = process.communicate(timeout=_PATIENCE_SECONDS)
        assert process.returncode == status, printed
        return printed

    @contextmanager
    def serving(self, url: str, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        """``coordinator serve`` once it answers."""
        with self.popen("coordinator", "serve", "--listen", url, *arguments, more=more) as process:
            try:
                port = int(url.rpartition(":")[2])
                while process.poll() is None:
                    with socket.socket() as there:
                        if there.connect_ex(("127.0.0.1", port)) == 0:
                            break
                    time.sleep(0.1)
                assert process.poll() is None, process.communicate()[0]
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=_PATIENCE_SECONDS)


def _pythons() -> dict[str, Path]:
    """For each version that a wheel was compiled for the system's interpreter, else the one it was compiled with."""
    found = {}
    for environment in sorted((ROOT / "build/dist").glob("3.*/bin/python")):
        version = environment.parent.parent.name
        found[version] = Path(shutil.which(f"python{version}", path=os.defpath) or environment).resolve()
    return found


def _may_run(python: Path) -> bool:
    """Whether any user may: one in the home of root is root's alone."""
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in python.parents)


@pytest.fixture(scope="module", params=["3.11", "3.12", "3.13"])
def python(request: pytest.FixtureRequest, dist: Path) -> Path:
    found = _pythons()
    if request.param not in found:
        pytest.skip(f"CPython {request.param} is not there: make dist has left it out")
    return found[request.param]


@contextmanager
def _installed(python: Path, dist: Path, extras: str) -> Iterator[Installed]:
    owner = _OTHER_USER if os.geteuid() == 0 and _may_run(python) else os.geteuid()
    with tempfile.TemporaryDirectory(prefix="coordinator-installed-", dir="/var/tmp") as folder:
        os.chown(folder, owner, owner)
        Path(folder).chmod(0o755)
        made = Installed(Path(folder), python, owner)
        made.install(dist, extras)
        yield made


@pytest.fixture(scope="module")
def plain(python: Path, dist: Path) -> Iterator[Installed]:
    with _installed(python, dist, "") as made:
        yield made


@pytest.fixture(scope="module")
def whole(python: Path, dist: Path) -> Iterator[Installed]:
    with _installed(python, dist, "[all]") as made:
        yield made


@pytest.fixture
def url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"amqp://127.0.0.1:{free.getsockname()[1]}"


def _programs(url: str) -> Mapping[str, str]:
    """The README's ``post.py`` and ``take.py``, for a service at ``url``."""
    shown = [block.text for block in blocks(section("A tour of two minutes")) if block.language == "python"]
    return {text.split()[1].rstrip(":"): text.replace("amqp://127.0.0.1:5672", url) for text in shown}


def _save(installed: Installed, url: str) -> None:
    programs = _programs(url)
    assert set(programs) == {"post.py", "take.py"}
    for name, text in programs.items():
        (installed.folder / name).write_text(text)


def _says(installed: Installed, *words: str) -> str:
    return installed.run("coordinator", *words)


def test_the_tour(whole: Installed, url: str) -> None:
    """With a PostgreSQL of its own; the service is killed in the middle."""
    _save(whole, url)
    with whole.serving(url) as service:
        bought = whole.run("python", "post.py", "commit", "tea", "milk").strip()
        regretted = whole.run("python", "post.py", "rollback", "pineapple").strip()
        assert "commit" in _says(whole, "transaction", "show", bought)
        assert "rollback" in _says(whole, "transaction", "show", regretted)
        service.kill()
    with whole.serving(url):
        assert whole.run("python", "take.py") == "tea\nmilk\n"
        assert "0 findings; report: report/report.html" in _says(whole, "reconcile", "--out", "report")
    assert (whole.folder / "report" / "report.html").exists()


def test_the_rules_are_compiled_and_the_source_runs_where_that_is_asked_for(whole: Installed, url: str) -> None:
    compiled = "coordinator 0.1.0, with its compiled part, its rules compiled as well\n"
    assert _says(whole, "--version") == compiled
    source = whole.run("coordinator", "--version", COORDINATOR_PURE="1")
    assert source == "coordinator 0.1.0, in Python alone, as COORDINATOR_PURE is 1\n"
    _save(whole, url)
    with whole.serving(url, COORDINATOR_PURE="1"):
        whole.run("python", "post.py", "commit", "tea", "milk")
        assert whole.run("python", "take.py") == "tea\nmilk\n"


def test_plain_serves_with_the_postgresql_that_it_is_given(
    python: Path, dist: Path, url: str, empty_database_url: str
) -> None:
    """Of this user, whom that server knows."""
    with tempfile.TemporaryDirectory(prefix="coordinator-installed-") as folder:
        plain = Installed(Path(folder), python, os.geteuid())
        plain.install(dist, "")
        _save(plain, url)
        _says(plain, "migrate", "--database-url", empty_database_url)
        with plain.serving(url, "--database-url", empty_database_url):
            bought = plain.run("python", "post.py", "commit", "tea", "milk").strip()
            assert plain.run("python", "take.py") == "tea\nmilk\n"
            assert "commit" in _says(plain, "transaction", "show", bought, "--database-url", empty_database_url)


def test_plain_is_small_and_says_which_extra_a_command_needs(plain: Installed) -> None:
    assert plain.octets < _MOST_OCTETS_OF_PLAIN
    said = plain.run("coordinator", "reconcile", "--out", "report", status=2)
    assert said.endswith(f' -m pip install "{_NAME}[reconcile]"\n')
    assert len(said.splitlines()) == 1


def test_each_command_of_plain_prints_its_help(plain: Installed) -> None:
    commands: Sequence[Sequence[str]] = [
        [word for word in line.split()[2:] if word.islower()]
        for line in (ROOT / "docs/reference/command-line.md").read_text("utf-8").splitlines()
        if line.startswith("## coordinator ")
    ]
    assert len(commands) > 20
    for words in commands:
        assert _says(plain, *words, "--help").startswith("Usage: ")


def test_the_source_distribution_is_whole(dist: Path, python: Path) -> None:
    """A wheel that is built of it, without mypyc, has what the others have, but for what is compiled."""
    (archive,) = dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="coordinator-installed-") as folder:
        build: list[str | Path] = [_UV, "build", "--quiet", "--wheel", "--python", python, "--out-dir", folder, archive]
        subprocess.run(build, env={**os.environ, "UV_NO_CONFIG": "1"}, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        names = _names(wheel)
    assert {
        "store/alembic/env.py",
        "store/sql/views.sql",
        "spark/report.html.j2",
        "coordinator/http/templates/console.css",
        "spark/launch/bin/java",
    } <= names
    others = list(dist.glob("amqp_transaction_coordinator-*.whl"))
    assert others
    for other in others:
        assert _names(other) == names


def _is_told(message: str, said: str) -> None:
    """It is in the page's table, where … stands for anything, and in what was said."""
    assert f"`{message}`" in (ROOT / "docs/how-to/install.md").read_text("utf-8")
    assert re.search(".*".join(re.escape(part) for part in message.split("…")), said), said


def _pip_says(python: Path, folder: Path, *arguments: str | Path, **more: str) -> str:
    """What pip says in an environment of that Python; it has to fail."""
    environment = {**os.environ, "UV_NO_CONFIG": "1"}
    make: list[str | Path] = [_UV, "venv", "--quiet", "--no-project", "--seed", "--python", python, folder / "venv"]
    subprocess.run(make, env=environment, check=True)
    install: list[str | Path] = [folder / "venv/bin/pip", "install", "--no-cache-dir", "--no-deps", *arguments]
    done = subprocess.run(install, env={**environment, **more}, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_an_older_python(dist: Path, tmp_path: Path) -> None:
    """It takes no wheel of ours, so pip takes the source."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = next(
        (path for path in (*kept.glob("3.10.*/bin/python"), Path("/usr/bin/python3.10")) if path.exists()), None
    )
    if found is None:
        pytest.skip("CPython 3.10 is not there")
    (source,) = dist.glob("*.tar.gz")
    _is_told("requires a different Python: 3.10… not in '>=3.11'", _pip_says(found, tmp_path, source))


def test_a_wheel_for_another_processor(dist: Path, python: Path, tmp_path: Path) -> None:
    wheel = next(dist.glob("amqp_transaction_coordinator-*.whl"))
    other = tmp_path / re.sub(r"linux_(\d+_\d+)_\w+\.whl$", r"linux_\1_riscv64.whl", wheel.name)
    assert other.name != wheel.name
    shutil.copy(wheel, other)
    _is_told("is not a supported wheel on this platform", _pip_says(python, tmp_path, other))


def test_proton_without_a_compiler(python: Path, tmp_path: Path) -> None:
    """Where the folder with its wheel is not given."""
    source = ["--no-binary", "python-qpid-proton", "python-qpid-proton==0.40.*"]
    said = _pip_says(python, tmp_path, *source, PATH="/nowhere", CC="/nowhere/gcc")
    _is_told("No such file or directory: '…gcc'", said)


def test_an_installation_that_was_interrupted(plain: Installed) -> None:
    """Its last packages are not there."""
    (package,) = (plain.folder / "venv").glob("lib/python*/site-packages/structlog")
    package.rename(package.with_name("gone"))
    try:
        _is_told("the installation is incomplete (no module …)", plain.run("coordinator", "serve", status=2))
    finally:
        package.with_name("gone").rename(package)


def _names(wheel: Path) -> set[str]:
    """The files in it that are not compiled. Folders are said by some of the programs that write wheels."""
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if ".dist-info/" not in name and not name.endswith((".so", "/"))}
