"""``make docs``: the site of the pages is whole, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.rules import ROOT

pytestmark = pytest.mark.night

_SITE = ROOT / "build" / "site"
#: A tag that has a browser load something from another place.
_LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*")


@pytest.fixture(scope="module", autouse=True)
def site() -> None:
    """Built with all links and anchors checked."""
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_page_is_there() -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    named = [page.with_name("index.html") if page.name == "README.html" else page for page in pages]
    assert len(named) > 30
    assert [str(page) for page in named if not (_SITE / page).exists()] == []


def test_it_loads_nothing_from_elsewhere() -> None:
    pages = sorted(_SITE.rglob("*.html"))
    assert [(path.name, found) for path in pages for found in _LOADED.findall(path.read_text("utf-8"))] == []


def test_the_search_knows_a_symptom() -> None:
    assert "from-symptom-to-cause" in (_SITE / "search" / "search_index.json").read_text("utf-8")
