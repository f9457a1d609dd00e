"""The container file starts what a checkout has, as a user that is not root (rule S12)."""

from __future__ import annotations

import json
import re

import pytest

from coordinator.settings import Settings
from tests.rules import ROOT

FOLDER = ROOT / "examples" / "container"
pytestmark = pytest.mark.rule("S12")


@pytest.fixture
def said() -> dict[str, list[str]]:
    """What follows each instruction."""
    text = (FOLDER / "Containerfile").read_text("utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for name, rest in re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(rest)
    return found


def test_it_serves_as_a_user_that_owns_its_data_alone(said: dict[str, list[str]]) -> None:
    ((user,), (_, made), (folder,)) = said["USER"], said["RUN"], said["VOLUME"]
    assert int(user) > 0
    # Of the group 0, as is the user that OpenShift makes up.
    assert f"--uid {user} --gid 0 --home-dir {folder}" in made
    assert f"install -d -m 770 -o coordinator -g root {folder}" in made
    assert f"folder={folder}\n" in (FOLDER / "start").read_text("utf-8")


def test_its_command_and_its_variables_are_ours(said: dict[str, list[str]]) -> None:
    ((there,), (program,), (command,), (variables,)) = (said[name] for name in ("WORKDIR", "ENTRYPOINT", "CMD", "ENV"))
    (path,) = json.loads(program)
    assert path == f"{there}/{(FOLDER / 'start').relative_to(ROOT)}"
    assert json.loads(command)[0] == "serve"
    given = dict(each.split("=") for each in variables.split())
    assert given.keys() == {"PATH", "COORDINATOR_CONFIG", "COORDINATOR_DATA_DIR", "TMPDIR"}
    assert given["PATH"].startswith(f"{there}/.venv/bin:")
    assert f"/dev/null {given['COORDINATOR_CONFIG']}" in said["RUN"][1]
    assert "data_dir" in Settings.model_fields


def test_nothing_of_the_machine_that_builds_it_is_in_it() -> None:
    """An environment cannot be moved, and a compiled part is of its Python."""
    ignored = (FOLDER / "Containerfile.dockerignore").read_text("utf-8").split()
    assert {".venv", ".git", "build", "**/*.so"} <= set(ignored)
