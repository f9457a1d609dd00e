"""The container file starts what `make dist` makes, as a user that is not root (rule S12)."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch

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
    ((user,), (*_, made), (folder,)) = said["USER"], said["RUN"], said["VOLUME"]
    assert int(user) > 0
    # Of the group 0, as is the user that OpenShift makes up.
    assert f"--uid {user} --gid 0 --home-dir {folder}" in made
    assert f"install -d -m 770 -o coordinator -g root {folder}" in made
    assert f"folder={folder}\n" in (FOLDER / "start").read_text("utf-8")


def test_its_command_and_its_variables_are_ours(said: dict[str, list[str]]) -> None:
    ((program,), (command,), (variables,)) = (said[name] for name in ("ENTRYPOINT", "CMD", "ENV"))
    *_, environment, start = (each.split() for each in said["COPY"])
    assert start == [str((FOLDER / "start").relative_to(ROOT)), *json.loads(program)]
    assert json.loads(command)[0] == "serve"
    given = dict(each.split("=") for each in variables.split())
    assert given.keys() == {"PATH", "COORDINATOR_CONFIG", "COORDINATOR_DATA_DIR", "TMPDIR"}
    assert given["PATH"].startswith(f"{environment[-1]}/bin:")
    assert f"python3 -m venv {environment[-1]} " in said["RUN"][1]
    assert f"/dev/null {given['COORDINATOR_CONFIG']}" in said["RUN"][-1]
    assert "data_dir" in Settings.model_fields


def test_nothing_of_the_machine_that_builds_it_is_in_it(said: dict[str, list[str]]) -> None:
    """Of the checkout the build sees only what it copies."""
    everything, *but = (FOLDER / "Containerfile.dockerignore").read_text("utf-8").split()
    assert everything == "*"
    seen = [pattern.removeprefix("!") for pattern in but]
    copied = [file for each in said["COPY"] if "--from" not in each for file in each.split()[:-1]]
    assert [file for file in copied if not any(fnmatch(file, pattern) for pattern in seen)] == []
