"""What ``make dist`` makes, on a minimal Debian without a compiler; nothing but wheels is given to its pip."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.readme import blocks, section
from tests.rules import ROOT

pytestmark = pytest.mark.night

_UV = Path(sys.executable).with_name("uv")
_PATIENCE_SECONDS = 600
#: what docs/how-to/install.md names, and Python
_PACKAGES = "python3,python3-venv,libssl3,libsasl2-2,libsasl2-modules"
#: The tour as a script: the service is killed, and started again.
_TOUR = """
set -e
serve() {
    coordinator serve --listen URL --data-dir /var/tmp/store >>/var/tmp/log 2>&1 &
    service=$!
    until grep -q '"event": "listening"' /var/tmp/log; do
        kill -0 $service || { cat /var/tmp/log; exit 1; }
        sleep 0.2
    done
}
trap 'kill -9 $service 2>/dev/null || true' EXIT
cd /tour
touch /var/tmp/log
PATH=/installed/bin:$PATH
serve
transaction=$(python post.py commit tea milk)
coordinator transaction show --data-dir /var/tmp/store "$transaction"
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

    def run(self, *command: str) -> str:
        """What it prints."""
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
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(params=["bookworm", "trixie"])
def tree(request: pytest.FixtureRequest) -> Iterator[Tree]:
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip("a minimal Debian is made by debootstrap, as root, and one of them is not there")
    with tempfile.TemporaryDirectory(prefix="coordinator-debian-", dir="/var/tmp") as folder:
        made = Path(folder)
        made.chmod(0o755)
        name = {"bookworm": "libssl3", "trixie": "libssl3t64"}[request.param]
        packages = _PACKAGES.replace("libssl3", name)
        command = ["debootstrap", "--variant=minbase", f"--include={packages}", request.param, folder]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        yield Tree(made)


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
    tree.run(*install, "amqp-transaction-coordinator[embedded]")
    (tree.folder / "tour").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"amqp://127.0.0.1:{free.getsockname()[1]}"
    for block in blocks(section("A tour of two minutes")):
        if block.language == "python":
            text = block.text.replace("amqp://127.0.0.1:5672", url)
            (tree.folder / "tour" / text.split()[1].rstrip(":")).write_text(text)
    (tree.folder / "tour" / "go").write_text(_TOUR.replace("URL", url))
    assert tree.run("sh", "/tour/go").endswith("tea\nmilk\n")
