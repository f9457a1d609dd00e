"""What .ci/build makes: the command with its rules compiled by mypyc."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from links import reactor
from tests import prepared
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

#: runs --version, imports what serves, and prints which modules of ours are not of their source
_WHERE_FROM = """
import importlib, sys
from coordinator.__main__ import app
app(["--version"], standalone_mode=False)
for name in ("coordinator.commands.worker", "links.worker"):
    importlib.import_module(name)
print([name for name, module in sys.modules.items() if name.split(".")[0] in ("coordinator", "links", "store")
       and not (module.__file__ or "").endswith(".py")])
"""


def _version(tree: Path, **more: str) -> str:
    given = {name: value for name, value in environment(**more).items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [tree / "bin" / "coordinator", "--version"],
        cwd="/",
        env=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return done.stdout


def test_the_command_says_what_runs(compiled_rules: Path, compiled_part: object) -> None:
    assert _version(compiled_rules).endswith(", with its compiled part, its rules compiled as well\n")
    python = _version(compiled_rules, COORDINATOR_PURE="1")
    assert python.endswith(", in Python alone, as COORDINATOR_PURE is 1\n")


def test_what_tests_start_with_them_has_them(compiled_rules: Path, compiled_part: object) -> None:
    with prepared.packages_of(compiled_rules):
        done = prepared.run(["--version"], environment(), timeout=PATIENCE_SECONDS)
    assert done.stdout.endswith(", its rules compiled as well\n")
    with prepared.packages_of(ROOT):
        done = prepared.run(["--version"], environment(), timeout=PATIENCE_SECONDS)
    assert done.stdout.endswith(", with its compiled part, its rules in Python\n")


def test_the_source_beside_what_is_compiled_is_taken_where_that_is_asked_for(compiled_rules: Path) -> None:
    """As it lies in a wheel."""
    given = environment(PYTHONPATH=str(compiled_rules), COORDINATOR_PURE="1")
    command = [sys.executable, "-c", _WHERE_FROM]
    done = subprocess.run(command, cwd="/", env=given, capture_output=True, text=True, check=True)
    assert done.stdout == "coordinator 0.1.0, in Python alone, as COORDINATOR_PURE is 1\n[]\n"


def test_a_name_that_changes_is_compiled_anew(tmp_path: Path) -> None:
    """In a copy, whose Python does nothing: what is seen is whether it was asked to."""
    for each in ("coordinator", "links", "store", "spark", "alembic", ".ci", "setup.py", "setup.cfg", "requirements"):
        subprocess.run(["cp", "--archive", ROOT / each, tmp_path], check=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/true")

    def said() -> str:
        return subprocess.run([tmp_path / ".ci" / "build"], capture_output=True, text=True, check=True).stdout

    compiling = "build: compiling the rules into build/compiled (a minute or two)\n"
    assert (said(), said()) == (compiling, "")
    (tmp_path / "coordinator" / "peers.py").rename(tmp_path / "coordinator" / "peers_.py")
    assert (said(), said()) == (compiling, "")


def test_all_that_is_named_is_compiled(compiled_rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    named = runpy.run_path(str(ROOT / "setup.py"))["_RULES"]
    assert len(named) == len(set(named)) > 50
    for each in named:
        assert len(list((compiled_rules / each).parent.glob(f"{Path(each).stem}.*.so"))) == 1, each


def test_no_class_in_python_derives_from_a_compiled_one(compiled_rules: Path) -> None:
    given = environment(PYTHONPATH=str(compiled_rules))
    done = subprocess.run(
        [sys.executable, "-c", _HALF_COMPILED], cwd="/", env=given, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "links.planted Planted\n", "")


#: functions that know what their maker was given, one of them by way of a function between
_FUNCTIONS = """
from typing import Callable


def near(what: object) -> Callable[[], object]:
    return lambda: what


def far(what: object) -> Callable[[], object]:
    def between() -> Callable[[], object]:
        own = 1
        return lambda: (what, own)

    return between()
"""


@pytest.mark.rule("P14")
def test_a_compiled_function_is_laid_to_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compiled_functions.py").write_text(_FUNCTIONS)
    command = [sys.executable, "-m", "mypyc", "compiled_functions.py"]
    subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, check=True)
    (tmp_path / "compiled_functions.py").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    functions = importlib.import_module("compiled_functions")
    monkeypatch.setattr(reactor, "Connection", _Connection)
    connection: Any = _Connection()
    for made in (functions.near(connection), functions.far(connection), partial(functions.far(connection), 1)):
        assert reactor.connection_of(made) is connection
    assert reactor.connection_of(functions.far(1)) is None


class _Connection:
    pass


def test_what_is_there_is_not_compiled_again(
    compiled_rules: Path, compile_rules: Callable[[], subprocess.CompletedProcess[str]]
) -> None:
    before = compiled_rules.stat()
    done = compile_rules()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert compiled_rules.stat().st_ino == before.st_ino
