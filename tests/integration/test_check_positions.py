"""Where looks for checks begin (``coordinator/check_back.py``), over random histories on a real PostgreSQL: a position
moves past what is decided, and never past what is due and undecided (H12).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from random import Random
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, update

from coordinator.check_back import Marks
from coordinator.group.entries import now_micros
from store.asking import Queries
from store.commit.terms import BEFORE, INFINITY
from store.errors import StoreError
from store.questions import checks
from store.questions.checks import LATE_SECONDS, Taken, Wanted
from store.tables import SCHEMA, txn
from tests.fix_check_back import GROUP, due
from tests.fix_loop import EpollLoop
from tests.fix_night import by_night
from tests.fix_store import Rows
from tests.fix_store_driver import ME, Truth

#: Fewer than are due at times, so that looks are full.
AT_ONCE = 4
DAY = 86400.0
#: none is due again before the end
ONCE = {"check_interval_ms": 86_400_000}
#: looks that go through days of the past are fewer than this
MOST_LOOKS = 400


class FigureReader:
    """Looks as an instance does; ``taken``: the transactions, in the order of their checks. Time passes at will: what
    is in the store becomes older, and the position is told of times that are as much later.
    """

    def __init__(self, url: str, connection: Connection) -> None:
        self._connection = connection
        self._passed = 0
        self._loop = EpollLoop()
        self._queries = Queries(self._loop, url, ME, lambda *_: None, lambda: None)
        self.marks = Marks(now_micros())
        self.taken: list[UUID] = []
        self._queries.start()
        self._loop.run_until(lambda: self._queries.connection.up)

    def pass_time(self, seconds: int) -> None:
        self._passed += seconds * 1_000_000
        older = txn.c.next_check_at - timedelta(seconds=seconds)
        self._connection.execute(update(txn).values(next_check_at=older))
        self._connection.commit()

    def read(self, random: Random) -> None:
        answers: list[Taken | StoreError] = []
        wanted = self.marks.wanted(AT_ONCE, now_micros() + self._passed)
        low, high = (each if each in (BEFORE, INFINITY) else each - self._passed for each in wanted[1:])
        checks.take(self._queries, {GROUP: Wanted(AT_ONCE, low, high)}, ME, answers.append)
        self._loop.run_until(lambda: bool(answers))
        (answer,) = answers
        assert isinstance(answer, Taken), answer
        self.taken += [UUID(bytes=each.txn_id) for each in answer.due]
        # how long it took is the machine's: slow and quick ones come in any order
        low = answer.lows[GROUP] + self._passed
        self.marks.scanned(low, full=len(answer.due) == AT_ONCE, seconds=random.choice((0.0, 0.005, 1.0)))

    def close(self) -> None:
        self._queries.close()
        self._loop.close()


@pytest.fixture
def looks(database_url: str, rows: Rows) -> Iterator[FigureReader]:
    made = FigureReader(database_url, rows.connection)
    yield made
    made.close()


@pytest.mark.rule("H11", "H12")
@pytest.mark.parametrize("seed", [0, 1, 2, *map(by_night, range(3, 12))])
def test_none_that_is_due_is_left_behind(
    looks: FigureReader, rows: Rows, truth: Truth, database_url: str, seed: int
) -> None:
    """Some are there before the first look, due for days; others come between looks, as late as a write may be; some
    are decided, and some are being decided while looks pass over them, and stay undecided.
    """
    random = Random(seed)
    crowds = [random.uniform(0, 3 * DAY) for _ in range(3)]
    undecided = [
        due(rows, seconds=-random.choice(crowds) - random.random(), **ONCE) for _ in range(random.randrange(30))
    ]
    locked: set[UUID] = set()
    with psycopg.connect(database_url) as deciding:
        for _ in range(60):
            step = random.choice(("look", "look", "comes", "comes", "decided", "locked", "freed", "time"))
            waiting = [each for each in undecided if each not in locked and each not in looks.taken]
            if step == "look":
                looks.read(random)
            elif step == "comes":
                undecided.append(due(rows, seconds=-random.uniform(0, LATE_SECONDS - 30), **ONCE))
            elif step == "decided" and waiting:
                gone = random.choice(waiting)
                undecided.remove(gone)
                assert truth.rows(f"select {SCHEMA}.decide(%s, 'commit', 'rival')", gone) == [(True,)]
            elif step == "locked" and waiting:
                locked.add(random.choice(waiting))
                deciding.execute(f"select from {SCHEMA}.txn where id = any(%s) for update".encode(), [list(locked)])
            elif step == "freed":
                deciding.rollback()
                locked = set()
            elif step == "time" and not locked:
                looks.pass_time(random.randrange(10, 50))
        deciding.rollback()
    for _ in range(MOST_LOOKS):
        looks.read(random)
        if looks.marks.complete:
            break
    assert looks.marks.complete
    assert sorted(looks.taken) == sorted({*looks.taken})
    assert {*undecided} <= {*looks.taken}
