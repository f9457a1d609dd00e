"""The reference pages say what the program says: `python -m tests.reference` writes them anew."""

from __future__ import annotations

import pytest

from tests.reference import PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_the_programs_own(name: str) -> None:
    path, page = PAGES[name]
    assert path.read_text(encoding="utf-8") == page(), "out of date; run: python -m tests.reference"
