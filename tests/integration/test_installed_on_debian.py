"""What ``make dist`` makes, on a minimal Debian without a compiler; nothing but wheels is given to its pip."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.readme import blocks, section
from tests.rules import ROOT

pytestmark = pytest.mark.night

_UV = Path(sys.executable).with_name("uv")
_PATIENCE_SECONDS = 600
#: what docs/how-to/install.md names, and Python
_PACKAGES = ("python3", "python3-venv", "libssl3", "libsasl2-2", "libsasl2-modules")
#: The tour as a script for programs in BIN: the service is killed, and started again.
_TOUR = """
set -e
serve() {
    coordinator serve --listen URL OPTIONS >>/var/tmp/log 2>&1 &
    service=$!
    until grep -q '"event": "listening"' /var/tmp/log; do
        kill -0 $service || { cat /var/tmp/log; exit 1; }
        sleep 0.2
    done
}
trap 'kill -9 $service 2>/dev/null || true' EXIT
cd /tour
touch /var/tmp/log
PATH=BIN:$PATH
coordinator --version
serve
transaction=$(python post.py commit tea milk)
coordinator transaction show OPTIONS "$transaction"
kill -9 $service
wait $service || true
: >/var/tmp/log
serve
python take.py
kill $service
wait $service
"""


class Tree:
    """A Debian in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str, status: int = 0) -> str:
        """What it prints; it has to end with ``status``."""
        # the mount is its own, and gone with it
        script = 'mount -t proc proc "$1/proc" && exec chroot "$@"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", self.folder, *command],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_SECONDS,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout


@contextmanager
def _debian(release: str, packages: Sequence[str]) -> Iterator[Tree]:
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip("a minimal Debian is made by debootstrap, as root, and one of them is not there")
    with tempfile.TemporaryDirectory(prefix="coordinator-debian-", dir="/var/tmp") as folder:
        made = Path(folder)
        made.chmod(0o755)
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", release, folder]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        yield Tree(made)


@pytest.fixture(params=["bookworm", "trixie"])
def tree(request: pytest.FixtureRequest) -> Iterator[Tree]:
    named = {"libssl3": "libssl3t64"} if request.param == "trixie" else {}
    with _debian(request.param, [named.get(name, name) for name in _PACKAGES]) as made:
        yield made


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _save_programs(tree: Tree, url: str) -> None:
    """The README's programs in ``/tour``."""
    (tree.folder / "tour").mkdir()
    for block in blocks(section("A tour of two minutes")):
        if block.language == "python":
            text = block.text.replace("amqp://127.0.0.1:5672", url)
            (tree.folder / "tour" / text.split()[1].rstrip(":")).write_text(text)


def _save_tour(tree: Tree, programs: str, options: str) -> None:
    """And the script ``/tour/go``. ``options``: of the service and its commands."""
    url = f"amqp://127.0.0.1:{_free_port()}"
    _save_programs(tree, url)
    go = _TOUR.replace("URL", url).replace("OPTIONS", options).replace("BIN", programs)
    (tree.folder / "tour" / "go").write_text(go)


def _wheels(dist: Path, version: str, folder: Path) -> None:
    """All that ``[embedded]`` installs, as files."""
    python = ROOT / "build/dist" / version / "bin/python"
    command: Sequence[str | Path] = [python, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
    where: Sequence[str | Path] = ["--find-links", dist, "--dest", folder]
    subprocess.run([*command, *where, "amqp-transaction-coordinator[embedded]"], check=True)


def test_it_is_installed_and_the_tour_goes(tree: Tree, dist: Path) -> None:
    version = tree.run("python3", "-c", "import sys; print('3.%d' % sys.version_info[1])").strip()
    if not list(dist.glob(f"*-cp{version.replace('.', '')}-*.whl")):
        pytest.skip(f"CPython {version} is not there: make dist has left it out")
    _wheels(dist, version, tree.folder / "wheels")
    tree.run("python3", "-m", "venv", "/installed")
    install = ["/installed/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels"]
    tree.run(*install, "amqp-transaction-coordinator")
    said = tree.run("/installed/bin/coordinator", "serve", "--data-dir", "/var/tmp/store", status=2)
    assert "no PostgreSQL programs found" in said
    tree.run(*install, "amqp-transaction-coordinator[embedded]")
    _save_tour(tree, "/installed/bin", "--data-dir /var/tmp/store")
    assert tree.run("sh", "/tour/go").endswith("tea\nmilk\n")


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.2)


class Booted:
    """A :class:`Tree` whose own systemd runs, in namespaces of its own: its network has a loopback alone."""

    def __init__(self, tree: Tree) -> None:
        command: list[str | Path] = [
            "systemd-nspawn",
            "--directory",
            tree.folder,
            "--boot",
            "--register=no",
            "--keep-unit",
        ]
        self._container = subprocess.Popen(
            [*command, "--private-network", "--console=pipe"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._first = ""

    def wait_until_up(self) -> None:
        children = Path(f"/proc/{self._container.pid}/task/{self._container.pid}/children")
        _wait_until(lambda: bool(children.read_text()), "systemd is started")
        self._first = children.read_text().split()[0]
        up = ("running", "degraded")
        _wait_until(lambda: self._tried("systemctl", "is-system-running").stdout.strip() in up, "systemd is up")

    def _tried(self, *command: str) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", f"--target={self._first}", "--all", "--root", "--wdns=/tour"]
        return subprocess.run(
            [*inside, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False
        )

    def run(self, *command: str) -> str:
        """What it prints; it has to end with 0."""
        done = self._tried(*command)
        assert done.returncode == 0, done.stdout + self._tried("journalctl", "--unit=coordinator", "--lines=30").stdout
        return done.stdout

    def main_process(self) -> str:
        return self.run("systemctl", "show", "--property=MainPID", "--value", "coordinator").strip()

    def close(self) -> None:
        self._container.terminate()
        self._container.communicate(timeout=_PATIENCE_SECONDS)


def test_the_package_serves_under_systemd_and_leaves_its_data(dist: Path) -> None:
    """On the release of this machine, for which it is made. Its main process is killed, and it is installed anew."""
    if shutil.which("systemd-nspawn") is None:
        pytest.skip("systemd-nspawn (of systemd-container) is not there")
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    done = subprocess.run([ROOT / ".ci" / "deb"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = dist.glob("*.deb")
    depends = subprocess.run(["dpkg-deb", "--field", package, "Depends"], capture_output=True, text=True, check=True)
    needed = {name.split()[0] for name in depends.stdout.split(",")}
    with _debian(release, sorted(needed | {"systemd-sysv", "dbus"})) as tree:
        shutil.copy(package, tree.folder)
        _save_programs(tree, "amqp://127.0.0.1:5672")
        with closing(Booted(tree)) as machine:
            machine.wait_until_up()
            machine.run("dpkg", "--install", f"/{package.name}")
            owner = machine.run("stat", "--format=%U:%G %a", "/var/lib/coordinator")
            assert owner == "coordinator:coordinator 700\n"
            machine.run("systemctl", "enable", "--now", "coordinator")
            python = "/opt/coordinator/bin/python"
            transaction = machine.run(python, "post.py", "commit", "tea", "milk").strip()
            killed = machine.main_process()
            machine.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "coordinator")
            _wait_until(lambda: machine.main_process() not in ("0", killed), "systemd starts it again")
            machine.run("systemctl", "start", "coordinator")  # returns once it is ready
            config = ("--config", "/etc/coordinator/coordinator.toml")
            shown = machine.run(
                "runuser", "--user=coordinator", "--", "coordinator", "transaction", "show", *config, transaction
            )
            assert transaction in shown
            before = machine.main_process()
            machine.run("dpkg", "--install", f"/{package.name}")
            machine.run("systemctl", "start", "coordinator")
            assert machine.main_process() != before
            assert machine.run(python, "take.py") == "tea\nmilk\n"
            machine.run("dpkg", "--purge", "amqp-transaction-coordinator")
            assert machine.run("systemctl", "list-units", "--all", "--no-legend", "coordinator.service") == ""
        assert (tree.folder / "var/lib/coordinator/postgresql").is_dir()
        assert not (tree.folder / "opt/coordinator").exists()
