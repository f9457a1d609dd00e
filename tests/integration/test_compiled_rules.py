"""What .ci/build makes: the command with its rules compiled by mypyc."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fix_command import PATIENCE_SECONDS, environment
from tests.prepared import ROOT

#: In the tree: classes of modules that are not compiled whose bases are, which cannot have instances. One is planted.
_HALF_COMPILED = """
import importlib, inspect, pkgutil
for package in ("coordinator", "links", "store"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
class Planted(importlib.import_module("links.output").Output):
    __module__ = "links.planted"
def subclasses(base):
    for each in type.__subclasses__(base):
        yield each
        yield from subclasses(each)
def compiled(kind):
    return inspect.getmodule(kind) is not None and not inspect.getmodule(kind).__file__.endswith(".py")
for each in set(subclasses(object)):
    if str(each.__module__).startswith(("coordinator", "links", "store")) and not compiled(each):
        for base in each.__bases__:
            if "__internal_mypyc_setup" in base.__dict__:
                print(each.__module__, each.__qualname__)
"""


def _said(tree: Path, *arguments: str, **more: str) -> str:
    given = {name: value for name, value in environment(**more).items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [tree / "bin" / "coordinator", *arguments],
        cwd="/",
        env=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return done.stdout


def test_the_command_says_what_runs(compiled_rules: Path, compiled_part: object) -> None:
    assert _said(compiled_rules, "--version").endswith(", with its compiled part, its rules compiled as well\n")
    python = _said(compiled_rules, "--version", COORDINATOR_PURE="1")
    assert python.endswith(", in Python alone, as COORDINATOR_PURE is 1\n")


def test_all_that_is_named_is_compiled(compiled_rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    named = runpy.run_path(str(ROOT / "setup.py"))["_rules"]()
    assert len(named) == len(set(named)) > 50
    for each in named:
        assert len(list((compiled_rules / each).parent.glob(f"{Path(each).stem}.*.so"))) == 1, each


def test_no_class_in_python_derives_from_a_compiled_one(compiled_rules: Path) -> None:
    given = environment(PYTHONPATH=str(compiled_rules))
    done = subprocess.run(
        [sys.executable, "-c", _HALF_COMPILED], cwd="/", env=given, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "links.planted Planted\n", "")


def test_what_is_there_is_not_compiled_again(compiled_rules: Path) -> None:
    before = compiled_rules.stat()
    done = subprocess.run([ROOT / ".ci" / "build"], env=os.environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert compiled_rules.stat().st_ino == before.st_ino
