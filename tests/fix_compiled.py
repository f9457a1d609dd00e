"""The compiled part and its twins in Python: what decodes octets of peers is tested in both forms, in Python by night.
By day, what is drawn at random tells them apart.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from links import frames
from store import arrays
from store.codec import message
from tests import prepared
from tests.fix_night import by_night
from tests.fuzz.compiled import installed


@pytest.fixture(scope="session")
def compiled_part() -> dict[str, Any]:
    """Its modules."""
    found = installed()
    if found is None:
        pytest.skip("the compiled part is not there: .ci/bootstrap compiles it")
    return found


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("there is no C compiler")
    return found


@pytest.fixture(scope="session")
def compile_rules(pytestconfig: pytest.Config) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Has mypyc compile them where that was not done: optimized, as users have them, but by day."""
    by_day = not pytestconfig.getoption("night") and prepared.TREES[0] == prepared.ROOT
    given = {**os.environ, "RULES_OPTIMIZATION": "0" if by_day else "2"}

    def run() -> subprocess.CompletedProcess[str]:
        build = prepared.ROOT / ".ci" / "build"
        return subprocess.run([build], env=given, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def compiled_rules(compile_rules: Callable[[], subprocess.CompletedProcess[str]]) -> Path:
    """The packages with the rules compiled by mypyc."""
    done = compile_rules()
    assert done.returncode == 0, done.stdout + done.stderr
    return prepared.ROOT / "build" / "compiled"


@pytest.fixture(scope="module")
def rules(request: pytest.FixtureRequest) -> Iterator[None]:
    """In which form the rules run of the services that tests start: in Python, where a test does not ask for both."""
    if getattr(request, "param", "") != "compiled":
        yield
        return
    with prepared.packages_of(request.getfixturevalue("compiled_rules")):
        yield


#: A test that starts a service runs with the rules in Python, and by night again with the rules compiled by mypyc.
both_rules = pytest.mark.parametrize("rules", ["in Python", by_night("compiled")], indirect=True, scope="module")

#: All tests of a module do.
BOTH_RULES = [pytest.mark.usefixtures("rules"), both_rules]


@pytest.fixture(scope="module", params=["compiled", by_night("in Python")])
def both_forms(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        request.getfixturevalue("compiled_part")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "_scan", None)
        patch.setattr(arrays, "_pack_fixed", None)
        patch.setattr(arrays, "_pack_varying", None)
        for name in ("plain", "unnoted"):
            patch.setattr(frames, name, getattr(frames, f"_{name}_in_python"))
        yield


@pytest.fixture(scope="module", params=["compiled", by_night("python")])
def both_forms_of_services(request: pytest.FixtureRequest) -> Iterator[None]:
    """With which the services that tests start decode what peers send."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setenv("COORDINATOR_PURE", "1")
        yield
