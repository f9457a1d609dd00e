"""What the store says is due (D7), by its own clock: nothing before its time, and nothing left whose time has come.

How long a turn takes is the machine's affair: a time is held against the clock before the question and after it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from store.questions import schedule
from store.questions.schedule import Due, Promoted
from store.tables import SCHEMA
from tests.fix_store_driver import GROUP, Asking, Truth

pytestmark = pytest.mark.rule("D7")

BEFORE_ALL = -(1 << 63)
#: new ids: above those of the entries
FIRST = 1000


def _entry(truth: Truth, number: int, due: str, *, lease: int = 0, priority: int = 4) -> None:
    truth.run(
        f"insert into {SCHEMA}.entry (group_id, id, half_id, available_at, lease, priority) "
        f"values ({GROUP}, {number}, {number}, {due}, {lease}, {priority})"
    )


def _now(truth: Truth) -> datetime:
    ((now,),) = truth.rows("select clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def _promote(asking: Asking, *, first: int = FIRST, ids: int = 200, above: int = BEFORE_ALL) -> Promoted:
    before = len(asking.answers)
    asked = lambda queries, answer: schedule.promote(  # noqa: E731
        queries, range(first, first + ids), above, answer, notify=False
    )
    asking.ask(asked)
    asking.loop.run_until(asking.answered(before + 1))
    answer = asking.answers[-1]
    assert isinstance(answer, Promoted), answer
    return answer


def _waiting(truth: Truth) -> dict[int, datetime]:
    return dict(truth.rows(f"select id, available_at from {SCHEMA}.entry where available_at is not null"))


def test_all_whose_time_has_come_and_no_other(asking: Asking, truth: Truth) -> None:
    """However long ago it came: nothing may have run then."""
    for number, due in enumerate(("now() - interval '400 days'", "now()", "now() + interval '1 hour'", "'9999-12-31'")):
        _entry(truth, number + 1, due)
    before = _now(truth)
    answer = _promote(asking)
    after = _now(truth)
    assert answer.due == [Due(GROUP, FIRST, 2)]
    waiting = _waiting(truth)
    assert list(waiting) == [3, 4]
    assert answer.next_ms is not None
    least, most = (1000 * (waiting[3] - moment).total_seconds() for moment in (after, before))
    assert least - 1 <= answer.next_ms <= most + 1
    through = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=answer.through)
    assert before <= through <= after


def test_it_is_due_at_its_time(asking: Asking, truth: Truth) -> None:
    """Asked all the while, the store never gives it before its time, and gives it to the first question after it."""
    _entry(truth, 1, "clock_timestamp() + interval '0.3 seconds'")
    (due,) = _waiting(truth).values()
    while True:
        before = _now(truth)
        answer = _promote(asking)
        after = _now(truth)
        if answer.due:
            assert after >= due
            break
        assert before < due
    assert answer.next_ms is None
    assert _waiting(truth) == {}


def test_of_one_time_none_is_passed_over(asking: Asking, truth: Truth) -> None:
    truth.run(
        f"insert into {SCHEMA}.entry (group_id, id, half_id, available_at) select {GROUP}, n, n, now() "
        "from generate_series(1, 5) n"
    )
    above = BEFORE_ALL
    for look, left in enumerate((3, 1, 0)):
        above = _promote(asking, first=FIRST + 2 * look, ids=2, above=above).through
        assert len(_waiting(truth)) == left


def test_the_longest_due_come_first_and_the_rest_with_the_next_look(asking: Asking, truth: Truth) -> None:
    """No more than there are ids; the next look begins where this one has left something."""
    for number in (3, 1, 4, 2, 5):
        _entry(truth, number, f"now() - interval '{number} minutes'")
    looks: list[tuple[Any, ...]] = []
    above = BEFORE_ALL
    for look in range(4):
        answer = _promote(asking, first=FIRST + 2 * look, ids=2, above=above)
        above = answer.through
        looks.append((sum(each.entries for each in answer.due), sorted(_waiting(truth))))
    assert looks == [(2, [1, 2, 3]), (2, [1]), (1, []), (0, [])]


def test_what_an_instance_has_is_not_given_again(asking: Asking, truth: Truth) -> None:
    _entry(truth, 1, "now()", lease=7)
    _entry(truth, 2, "now()")
    assert _promote(asking).due == [Due(GROUP, FIRST, 1)]
    assert list(_waiting(truth)) == [1]


def test_what_is_due_is_told_by_its_priority(asking: Asking, truth: Truth) -> None:
    for number, priority in enumerate((4, 9, 4, 0)):
        _entry(truth, number + 1, f"now() - interval '1 minute' + {number} * interval '1 s'", priority=priority)
    assert sorted(_promote(asking).due) == [
        Due(GROUP, FIRST, 2, 4),
        Due(GROUP, FIRST + 1, 1, 9),
        Due(GROUP, FIRST + 3, 1, 0),
    ]
