"""The pauses of what is tried again, and of what has a share of the time (``store/loop.py``)."""

from __future__ import annotations

import pytest

from store.loop import Backoff, TimeShare


@pytest.mark.parametrize(
    ("failures", "pause"), [(1, 0.1), (2, 0.2), (6, 3.2), (7, 5.0), (10_000, 5.0)], ids=lambda each: str(each)
)
def test_pauses_between_attempts_double(failures: int, pause: float) -> None:
    assert Backoff(first=0.1, longest=5.0).after(failures) == pytest.approx(pause)


@pytest.mark.parametrize(
    ("share", "took", "pause"),
    [
        (TimeShare(parts=8), 0.0, 0.0),
        (TimeShare(parts=8), 0.1, 0.7),
        (TimeShare(parts=8), 1000.0, 7000.0),
        (TimeShare(parts=1), 1000.0, 0.0),
        (TimeShare(parts=20, least=5.0), 0.1, 5.0),
        (TimeShare(parts=20, least=5.0), 1.0, 19.0),
        (TimeShare(parts=64, most=1.0), 0.01, 0.63),
        (TimeShare(parts=64, most=1.0), 0.1, 1.0),
    ],
)
def test_what_has_a_share_of_the_time_pauses_for_the_rest(share: TimeShare, took: float, pause: float) -> None:
    assert share.pause(took) == pytest.approx(pause)
