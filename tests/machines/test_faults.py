"""The hour of faults (``make faults``), in short."""

from __future__ import annotations

import pytest

from tests.faults import run
from tests.fix_machines import why_not

pytestmark = [pytest.mark.night, pytest.mark.rule("F1", "F2", "T11", "H5", "H13", "X2")]


def test_nothing_is_lost_nor_doubled_whatever_strikes() -> None:
    if why := why_not():
        pytest.skip(f"no machines: {why}")
    report = run.run(seed=1, faults=10, every=2, seconds=600, wanted="")
    assert not report.violations, report.text()
    assert len(report.faults) == 10
    assert report.figures["operations"] > 1000
    assert report.figures["transfers of money"] > 10
