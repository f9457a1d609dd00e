"""The compiled part beside its twins in Python, and how it is built and chosen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from store import arrays
from store.codec import message
from store.compiled import MODULES, PURE_VARIABLE, compiled
from tests import prepared
from tests.fix_command import PATIENCE_SECONDS, environment
from tests.fuzz import compiled as fuzzed
from tests.rules import ROOT


@pytest.mark.rule("S6", "P10")
def test_it_says_what_its_twins_say(compiled_part: dict[str, Any]) -> None:
    """Of messages whole and broken; what it does not take, it leaves to the twin."""
    assert fuzzed.play(compiled_part, SystemRandom().getrandbits(32), 20_000) > 1_000


@pytest.mark.rule("S6")
def test_it_reads_nothing_that_is_not_its_own(compiler: str) -> None:
    """Under ASan and UBSan, which end the process at a read beyond the octets or a number that wraps."""
    assert fuzzed.sanitized(SystemRandom().getrandbits(32), 20_000).endswith("none differs")


@pytest.mark.parametrize("name", fuzzed.shapes())
def test_it_takes_what_clients_send(compiled_part: dict[str, Any], name: str) -> None:
    """Or it would be of no use."""
    octets = fuzzed.shapes()[name]
    said = compiled_part["store.codec._scan"].scan(octets)
    assert said is not None
    assert (message._facts_of(*said) if said else message.NO_FACTS) == fuzzed.told_by_twin(octets)


def test_it_keeps_nothing(compiled_part: dict[str, Any]) -> None:
    scan, packing = compiled_part["store.codec._scan"].scan, compiled_part["store._packing"]
    taken = [*fuzzed.shapes().values(), b"", b"\x00", b"\x00\x53\x73\xc0\x00"]
    before = sys.getallocatedblocks()
    for _ in range(1000):
        for octets in taken:
            scan(octets)
        for values in ([1 << 40, 2], [1 << 40, None], [1, 1 << 70], []):
            packing.fixed(values, arrays.INT8, 8)
        for pieces in ([b"x", bytes(4096)], [b"x", None]):
            packing.varying(pieces, arrays.BYTEA)
    assert sys.getallocatedblocks() - before < 500


@pytest.mark.parametrize("values", [[1], [-(1 << 63), (1 << 63) - 1], list(range(2000))], ids=len)
def test_it_packs_what_batches_have(compiled_part: dict[str, Any], values: list[int]) -> None:
    packing = compiled_part["store._packing"]
    assert packing.fixed(values, arrays.INT8, 8) == arrays._fixed_in_python(values, arrays.INT8, 8, "iq")
    octets = [b"x" * (each % 5000) for each in values]
    assert packing.varying(octets, arrays.BYTEA) == arrays._varying_in_python(octets, arrays.BYTEA)


def test_what_is_no_bytes_is_the_twins(compiled_part: dict[str, Any]) -> None:
    assert compiled_part["store.codec._scan"].scan(memoryview(fuzzed.shapes()["bare"])) is None


def test_a_module_that_is_not_there_is_done_without() -> None:
    assert compiled("store._not_compiled") is None


def test_python_alone_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PURE_VARIABLE, "1")
    assert [compiled(name) for name in MODULES] == [None] * len(MODULES)
    done = prepared.run(["--version"], environment(), timeout=PATIENCE_SECONDS)
    assert done.stdout.endswith(", in Python alone, as COORDINATOR_PURE is 1\n")


def test_it_is_chosen_by_1_alone() -> None:
    done = prepared.run(["serve"], environment(COORDINATOR_PURE="yes"), timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (2, "error: environment variable COORDINATOR_PURE: 1 or 0 was expected\n")


def _built(folder: Path, compiler: str) -> list[str]:
    """The modules that setup.py leaves in a copy of what it needs."""
    for name in ("setup.py", *(f"{module.replace('.', '/')}.c" for module in MODULES)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=folder,
        env=os.environ | {"CC": compiler},
        check=True,
        capture_output=True,
    )
    return [module for module in MODULES if list(folder.glob(module.replace(".", "/") + ".*.so"))]


def test_it_is_built_where_there_is_a_compiler(tmp_path: Path, compiler: str) -> None:
    assert _built(tmp_path, compiler) == [*MODULES]


def test_without_a_compiler_the_rest_is_installed_all_the_same(tmp_path: Path) -> None:
    assert _built(tmp_path, "/nonexistent/cc") == []
