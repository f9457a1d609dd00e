"""A table of cases in one test (``tests/tables.py``): each is tried, and each that fails is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables import all_cases

_TRIED: list[tuple[str, int]] = []


@all_cases(("name", "count"), [("one", 1), pytest.param("two", 2, id="the second")])
def test_each_case_is_tried_with_the_fixtures_of_the_test(name: str, count: int, tmp_path: Path) -> None:
    assert tmp_path.is_dir()
    _TRIED.append((name, count))
    assert [("one", 1), ("two", 2)][:count] == _TRIED


def test_each_that_fails_is_told_by_its_name() -> None:
    tried: list[int] = []

    @all_cases("count", [1, pytest.param(2, id="two"), 3])
    def odd(count: int) -> None:
        tried.append(count)
        assert count == 1

    with pytest.raises(ExceptionGroup, match="2 of 3 cases failed") as caught:
        odd()
    assert tried == [1, 2, 3]
    assert [failed.__notes__[-1] for failed in caught.value.exceptions] == ["the case two", "the case (3,)"]


def test_a_name_that_the_test_does_not_take_is_refused() -> None:
    with pytest.raises(AssertionError, match="takes"):
        all_cases("other", [1])(lambda: None)
