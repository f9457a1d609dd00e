"""Dependencies are locked with hashes, and the bill of materials lists just these (S12)."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
from collections import defaultdict
from typing import Any

import pytest

from tests.rules import ROOT

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _locked(name: str) -> dict[tuple[str, str], set[str]]:
    """By name and version: the hashes of one lock file."""
    packages: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        pinned = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^ ;]+)", line)
        if pinned:
            packages[_normal(pinned[1]), pinned[2]].update(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
        else:
            assert not line.strip() or line.lstrip().startswith("#"), f"{name}: {line}"
    return dict(packages)


@pytest.mark.rule("S12")
@pytest.mark.parametrize("name", [each.name for each in _LOCKS])
def test_each_package_of_a_lock_has_a_version_and_hashes(name: str) -> None:
    packages = _locked(name)
    assert packages
    assert [key for key, hashes in packages.items() if not hashes] == []


@pytest.mark.rule("S12")
def test_what_the_service_asks_for_is_locked() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    lines = settings["options"]["install_requires"].splitlines()
    asked = {_normal(found[0]) for line in lines if (found := _NAME.match(line))}
    assert "python-qpid-proton" in asked
    assert asked - {name for name, _ in _locked("serve.txt")} == set()


@pytest.mark.rule("S12")
def test_the_bill_lists_what_serves_with_its_hashes() -> None:
    subprocess.run(["make", "sbom"], cwd=ROOT, check=True, capture_output=True, timeout=300)
    bill: dict[str, Any] = json.loads((ROOT / "build/sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for each in bill["components"]:
        found = [hash_ for reference in each["externalReferences"] for hash_ in reference.get("hashes", ())]
        listed[_normal(each["name"]), each["version"]].update(hash_["content"] for hash_ in found)
    assert dict(listed) == _locked("serve.txt")
