"""Policies of an address govern the messages of its groups; a group may have its own (rules D2, P12)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from coordinator.printable import printable

# A retry policy says how long a failed delivery waits before the next one (rule D2); on an address of kind fifo its
# message group waits with it (D3).
#
# A policy is written as text: ``immediate``; ``ladder``, RocketMQ's levels, of which the first retry has the third;
# ``ladder 1s 10s 5m``, own steps, from the first; or ``exponential 1s 2 10m``: the first wait, the factor from
# one to the next, and the longest.

#: RocketMQ's ``messageDelayLevel``; a consumer names a level by its number, from 1
LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
#: the level of the first retry on this ladder
_FIRST_LEVEL = 3
MOST_STEPS = 64
LONGEST_TEXT = 1000
LONGEST_MS = 30 * 86_400_000
_MOST_FACTOR = 1000.0

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,10})(ms|s|m|h|d)", re.ASCII)
_FACTOR = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})?", re.ASCII)
_EXPECTED = (
    "expected immediate, ladder, ladder followed by waits like 1s 10s 5m, "
    "or exponential followed by the first wait, a factor and the longest wait, like 1s 2 10m"
)


class RetryInvalid(ValueError):
    """The text is not a retry policy; the message says why, in printable text of bounded length."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy. ``text``: its words with a space between; ``steps``: waits in milliseconds by level, from 1."""

    text: str
    steps: tuple[int, ...]
    #: the level of the first retry; 0: a failed delivery does not wait
    first: int

    def wait_ms(self, attempts: int) -> int:
        """Return the wait after so many failed deliveries, the last one included."""
        return self.at_level(self.first + attempts - 1) if self.first else 0

    def at_level(self, level: int) -> int:
        """Return the wait of a level, from 1, that a consumer names; beyond the last level, that of the last."""
        return self.steps[min(level, len(self.steps)) - 1]


@lru_cache(maxsize=1000)
def parse_retry(text: str) -> Retry:
    """Parse a retry policy. :raises RetryInvalid: with the reason."""
    if len(text) > LONGEST_TEXT:
        raise RetryInvalid(f"a retry policy of {len(text)} characters; expected at most {LONGEST_TEXT}")
    name, *words = text.split() or [""]
    text = " ".join((name, *words))
    if name == "immediate" and not words:
        return Retry(text, _ladder(LEVELS.split()), 0)
    if name == "ladder":
        return Retry(text, _ladder(words), 1) if words else Retry(text, _ladder(LEVELS.split()), _FIRST_LEVEL)
    if name == "exponential" and len(words) == 3:
        return Retry(text, _exponential(*words), 1)
    raise RetryInvalid(f"the retry policy '{printable(text, 80)}': {_EXPECTED}")


def _ladder(words: list[str]) -> tuple[int, ...]:
    if len(words) > MOST_STEPS:
        raise RetryInvalid(f"a ladder of {len(words)} steps; expected at most {MOST_STEPS}")
    return tuple(map(_milliseconds, words))


def _exponential(first: str, factor: str, longest: str) -> tuple[int, ...]:
    wait, most = _milliseconds(first), _milliseconds(longest)
    if not _FACTOR.fullmatch(factor) or not 1 <= float(factor) <= _MOST_FACTOR:
        raise RetryInvalid(f"the factor '{printable(factor, 40)}': expected a number from 1 to {_MOST_FACTOR:g}")
    if most < wait:
        raise RetryInvalid(f"the longest wait {longest} is shorter than the first, {first}")
    steps = [wait]
    while steps[-1] < most and len(steps) < MOST_STEPS:
        steps.append(min(most, int(wait * float(factor) ** len(steps))))
    return tuple(steps)


def _milliseconds(word: str) -> int:
    found = _DURATION.fullmatch(word)
    wait = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 1 <= wait <= LONGEST_MS:
        raise RetryInvalid(f"the wait '{printable(word, 40)}': expected 1ms to 30d, like 500ms, 10s, 5m, 2h or 1d")
    return wait


IMMEDIATE = parse_retry("immediate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies of one consumer group. ``on_expiry``: ``drop`` or ``dead-letter``."""

    #: after so many failed deliveries a message is moved to the dead letters
    max_attempts: int
    on_expiry: str
    #: whether message groups keep their order, each with one consumer at a time (P18)
    fifo: bool
    #: whether this is an address of dead letters, whose failed messages stay
    dead_letters: bool
    #: how long a failed delivery waits before the next (D2)
    retry: Retry = IMMEDIATE
    #: whether an operator has paused the group: its consumers get nothing new (D12)
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPolicies:
    """The policies that a consumer group has of its own; None: the address's policy applies."""

    max_attempts: int | None = None
    on_expiry: str | None = None
    retry: Retry | None = None
    paused: bool = False

    def over(self, policies: Policies) -> Policies:
        """Return the policies of the group, on an address with these."""
        return replace(
            policies,
            max_attempts=self.max_attempts or policies.max_attempts,
            on_expiry=self.on_expiry or policies.on_expiry,
            retry=self.retry or policies.retry,
            paused=self.paused,
        )
