"""Questions that must take effect, and were refused for a reason that may pass: asked again, after pauses that grow.

Others go on meanwhile, but for those that stand in line behind one: a message group that is given up, and claimed anew,
would be given up once more.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import structlog

from store.errors import Contended, StoreInTrouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.asking import Asked
    from store.errors import StoreError
    from store.loop import Loop

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0
#: Questions that pause; a further one that is refused is not asked again.
MOST_PAUSING = 10_000
#: How often the log says that a question is refused.
SAY_AGAIN_SECONDS = 30.0


class Repeating:
    """``again`` is called with questions to be asked now, in this order, before all that wait."""

    def __init__(self, loop: Loop, again: Callable[[deque[Asked]], None]) -> None:
        self._loop = loop
        self._again = again
        self._pausing = 0
        #: by line and what it is about: the question that pauses, and those behind it
        self._lines: dict[tuple[str, bytes | None], deque[Asked]] = {}
        #: by name of the question: when the log said last that it is refused, and how often it was since
        self._said: dict[bytes, tuple[float, int]] = {}

    @property
    def waiting(self) -> int:
        return self._pausing + sum(len(line) - 1 for line in self._lines.values())

    def behind(self, asked: Asked) -> bool:
        """Whether it stands behind one that pauses; then it is asked after that one."""
        line = self._lines.get(_line(asked)) if self._lines else None
        if line is None:
            return False
        line.append(asked)
        return True

    def refused(self, asked: Asked, error: StoreError) -> bool:
        """Whether it is asked again."""
        if not asked.query.must or not isinstance(error, Contended | StoreInTrouble) or self._pausing >= MOST_PAUSING:
            return False
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(asked.refusals, 10), LONGEST_PAUSE_SECONDS)
        asked = asked._replace(refusals=asked.refusals + 1)
        self._say(asked, error, pause)
        self._pausing += 1
        line = deque([asked])
        if asked.query.line:
            self._lines[_line(asked)] = line
        self._loop.call_later(pause, lambda: self._over(line))
        return True

    def _over(self, line: deque[Asked]) -> None:
        self._pausing -= 1
        self._lines.pop(_line(line[0]), None)
        self._again(line)

    def _say(self, asked: Asked, error: StoreError, pause: float) -> None:
        """At once when it is the first of its name, and then once in a while."""
        name = asked.query.name
        said_at, times = self._said.get(name, (0.0, 0))
        now, times = time.monotonic(), times + 1
        if not said_at or now - said_at >= SAY_AGAIN_SECONDS:
            log.warning("query refused", query=name.decode(), error=str(error), again_in=pause, times=times)
            said_at, times = now, 0
        self._said[name] = said_at, times


def _line(asked: Asked) -> tuple[str, bytes | None]:
    return asked.query.line, asked.parameters[0] if asked.parameters else None
