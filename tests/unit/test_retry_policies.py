"""Texts of retry policies, and the waits that they mean (rule D2)."""

from __future__ import annotations

import pytest

from coordinator.group import policies
from coordinator.group.policies import LEVELS, RetryInvalid
from tests.tables import all_cases

pytestmark = pytest.mark.rule("D2")

_SECOND, _MINUTE, _HOUR = 1000, 60_000, 3_600_000


@all_cases(
    ("text", "waits"),
    [
        ("immediate", [0, 0, 0]),
        # RocketMQ's levels: the first retry has the third, the last level stays
        ("ladder", [10 * _SECOND, 30 * _SECOND, _MINUTE]),
        ("ladder 1s 500ms 2d", [_SECOND, 500, 48 * _HOUR, 48 * _HOUR]),
        ("exponential 1s 2 5s", [_SECOND, 2 * _SECOND, 4 * _SECOND, 5 * _SECOND, 5 * _SECOND]),
        ("exponential 2m 1 2m", [2 * _MINUTE] * 3),
        ("exponential 1ms 1.5 30d", [1, 1, 2, 3]),
    ],
)
def test_waits_by_the_count_of_failed_deliveries(text: str, waits: list[int]) -> None:
    policy = policies.parse_retry(text)
    assert [policy.wait_ms(attempts) for attempts in range(1, len(waits) + 1)] == waits


def test_the_ladder_has_the_levels_of_the_seed() -> None:
    """``messageDelayLevel``: a level is asked for by its number from 1, under any policy."""
    assert len(LEVELS.split()) == 18
    for policy in (policies.parse_retry("ladder"), policies.parse_retry("immediate")):
        assert [policy.at_level(level) for level in (1, 2, 18, 19, 1 << 40)] == [
            *(_SECOND, 5 * _SECOND, 2 * _HOUR, 2 * _HOUR, 2 * _HOUR)
        ]
    assert policies.parse_retry("ladder").wait_ms(16) == 2 * _HOUR
    assert policies.parse_retry("ladder").wait_ms(30_000) == 2 * _HOUR


@pytest.mark.parametrize("text", [" immediate ", "ladder\t1s  2s\n", "exponential  1s 2 10m"])
def test_the_text_of_a_policy_has_single_spaces(text: str) -> None:
    """The store compares it: an address of kind fifo has ``immediate``."""
    assert policies.parse_retry(text).text == " ".join(text.split())


@all_cases(
    ("text", "says"),
    [
        ("", "expected immediate, ladder"),
        ("soon", "'soon'"),
        ("immediate 1s", "expected immediate"),
        ("ladder 1s 2", "the wait '2'"),
        ("ladder 0s", "1ms to 30d"),
        ("ladder 31d", "1ms to 30d"),
        ("ladder -1s", "'-1s'"),
        ("ladder \u0661s", "1ms to 30d"),
        ("ladder " + "1s " * 65, "65 steps"),
        ("x" * 1001, "1001 characters"),
        ("exponential 1s", "expected immediate"),
        ("exponential 1s 0.5 2s", "the factor '0.5'"),
        ("exponential 1s 1e9 2s", "the factor '1e9'"),
        ("exponential 1s 1001 2s", "from 1 to 1000"),
        ("exponential 2s 2 1s", "shorter than the first"),
        ("ladder \x1b[31m", "\\x1b[31m"),
    ],
)
def test_a_text_that_is_no_policy(text: str, says: str) -> None:
    with pytest.raises(RetryInvalid) as caught:
        policies.parse_retry(text)
    assert says in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
