"""Tables of cases that cost nothing: one test goes through all of them, and tells of each that fails.

:func:`all_cases` stands where ``pytest.mark.parametrize`` would, with the same arguments. A fixture is made once for
all cases of a test, so it is for tests whose cases leave nothing behind.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

Test = Callable[..., None]


def all_cases(
    names: str | tuple[str, ...], cases: Iterable[Any], *, ids: Iterable[str] | None = None
) -> Callable[[Test], Test]:
    """Call the test once for each case. A case may be a ``pytest.param`` with an id, as in ``parametrize``."""
    single = isinstance(names, str)
    given = (names,) if isinstance(names, str) else names
    values: list[tuple[Any, ...]] = []
    told: list[str] = []
    for case in cases:
        called = None
        if isinstance(case, ParameterSet):
            assert not case.marks, "a case of a table has no marks"
            values.append(tuple(case.values))
            called = case.id
        else:
            values.append((case,) if single else tuple(case))
        told.append(called if isinstance(called, str) else reprlib.repr(values[-1]))
    told = told if ids is None else list(ids)
    assert values, "a table without cases"
    table = list(zip(told, values, strict=True))

    def decorated(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def one_by_one(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for name, case in table:
                try:
                    test(**fixtures, **dict(zip(given, case, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is raised below
                    error.add_note(f"the case {name}")
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(table)} cases failed", failed)

        of_fixtures = [parameter for name, parameter in signature.parameters.items() if name not in given]
        assert len(of_fixtures) == len(signature.parameters) - len(given), f"{test.__name__} takes {given}"
        one_by_one.__signature__ = signature.replace(parameters=of_fixtures)  # type: ignore[attr-defined]
        return one_by_one

    return decorated
