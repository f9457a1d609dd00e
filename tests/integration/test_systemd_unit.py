"""What examples/systemd has is what systemd understands, and leaves the service little but what it needs (rule S12)."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from coordinator.settings import PREFIX, Settings, load
from tests.rules import ROOT

FOLDER = ROOT / "examples" / "systemd"
#: The highest that `systemd-analyze security` may say, of 10: all that is left is what the service needs.
MOST_EXPOSED = 2.5
pytestmark = pytest.mark.rule("S12")


def _needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not there")


def _done(*arguments: object) -> str:
    """What the command says on its standard output; it may complain of nothing."""
    done = subprocess.run([str(each) for each in arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@_needs("systemd-analyze")
@pytest.mark.parametrize("database", [(), ("database.conf",)], ids=["its own database", "a given one"])
def test_systemd_takes_the_unit(tmp_path: Path, database: tuple[str, ...]) -> None:
    unit = tmp_path / "coordinator.service"
    text = (FOLDER / unit.name).read_text("utf-8")
    assert "ExecStart=/opt/coordinator/bin/coordinator serve" in text
    unit.write_text(text.replace("/opt/coordinator/bin/coordinator", "/bin/true"))
    more = tmp_path / f"{unit.name}.d"
    more.mkdir()
    for name in database:
        shutil.copy(FOLDER / name, more)
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    said = _done("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= MOST_EXPOSED


@_needs("systemd-sysusers")
@_needs("systemd-tmpfiles")
@pytest.mark.skipif(os.geteuid() != 0, reason="files of other users: it takes root")
def test_its_user_has_its_folders_and_the_password_is_for_root(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("sysusers", "tmpfiles"):
        (tree / f"usr/lib/{name}.d").mkdir(parents=True)
        shutil.copy(FOLDER / f"{name}.conf", tree / f"usr/lib/{name}.d/coordinator.conf")
    (tree / "etc/coordinator").mkdir(parents=True)
    shutil.copy(FOLDER / "coordinator.toml", tree / "etc/coordinator")
    (tree / "etc/coordinator/database-url").touch()
    _done("systemd-sysusers", f"--root={tree}", "coordinator.conf")
    name, _, uid, gid, _, home, shell = (tree / "etc/passwd").read_text().strip().split(":")
    assert (name, home, shell) == ("coordinator", "/var/lib/coordinator", "/usr/sbin/nologin")
    _done("systemd-tmpfiles", "--create", f"--root={tree}", "coordinator.conf")

    def has(path: str) -> tuple[int, int, str]:
        status = (tree / path).stat()
        return status.st_uid, status.st_gid, f"{stat.S_IMODE(status.st_mode):o}"

    assert has("etc/coordinator") == (0, int(gid), "750")
    assert has("etc/coordinator/coordinator.toml") == (0, int(gid), "640")
    assert has("etc/coordinator/database-url") == (0, 0, "600")
    assert has("var/lib/coordinator") == (int(uid), int(gid), "700")


def test_its_settings_and_its_variables_are_ours() -> None:
    settings = load(config=FOLDER / "coordinator.toml")
    unit = configparser.RawConfigParser(strict=False, allow_no_value=True)
    unit.read(FOLDER / "coordinator.service")
    assert f"/var/lib/{unit['Service']['StateDirectory']}" == str(settings.data_dir)
    drop_in = configparser.RawConfigParser()
    drop_in.read(FOLDER / "database.conf")
    variable, _, path = drop_in["Service"]["Environment"].partition("=")
    credential, _, source = drop_in["Service"]["LoadCredential"].partition(":")
    assert variable == f"{PREFIX}DATABASE_URL_FILE"
    assert "database_url_file" in Settings.model_fields
    assert path == f"%d/{credential}"
    assert source in (FOLDER / "tmpfiles.conf").read_text("utf-8")
