"""The compiled part and its twins in Python: what decodes octets of peers is tested in both forms."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.codec import message
from links import frames
from store import arrays
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


@pytest.fixture(scope="module", params=["compiled", "in Python"])
def both_forms(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        request.getfixturevalue("compiled_part")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "_scan", None)
        patch.setattr(arrays, "_pack_fixed", None)
        patch.setattr(arrays, "_pack_varying", None)
        for name in ("plain", "small", "unnoted"):
            patch.setattr(frames, name, getattr(frames, f"_{name}_in_python"))
        yield
