"""Repairs of one kind are done together, piece by piece, and each still by itself where that is needed (rule R34)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, delete, event, func, insert, select, update
from typer.testing import CliRunner

from coordinator.__main__ import app
from coordinator.address.dead_letters import mark_of
from coordinator.repairs import box_of, terms_of
from store import repairs
from store.database import connected
from store.ids import UuidV7
from store.repairs import Decide, Release, Repair, Replay, Requeue, Resume, State, Verdict
from store.tables import audit, consumer_group, entry, half, message_group, op, txn
from tests.fix_reports import RUN, known
from tests.fix_runs import store_run

if TYPE_CHECKING:
    from tests.fix_store import Rows

pytestmark = pytest.mark.rule("R34")

MESSAGE = b"\x00\x53\x75\xa0\x01x"


class _Stopped(BaseException):
    """As a signal that ends the process."""


@contextmanager
def _statements(connection: Connection, *, most: int | None = None) -> Iterator[list[str]]:
    """What the connection is asked meanwhile; it is stopped before the one after ``most``, and loses what is not
    committed."""
    asked: list[str] = []

    def ask(_: object, __: object, statement: str, *___: object) -> None:
        if len(asked) == most:
            raise _Stopped
        asked.append(statement)

    event.listen(connection, "before_cursor_execute", ask)
    try:
        yield asked
    finally:
        event.remove(connection, "before_cursor_execute", ask)
        connection.rollback()


def _done(connection: Connection, wanted: Sequence[Repair]) -> dict[Repair, Verdict]:
    return dict(repairs.repaired(connection, wanted, RUN))


def _all_done(found: dict[Repair, Verdict]) -> bool:
    return all(verdict.state is State.DONE for verdict in found.values())


@dataclass(frozen=True)
class _Broken:
    """A store in which as many as asked for are broken, of each kind."""

    rows: Rows
    orders: int
    billing: int

    def undecided(self, count: int) -> list[Repair]:
        at = self.rows.address_of(self.orders)
        return [Decide(self.rows.checkable(1, at), "commit") for _ in range(count)]

    def overdue(self, count: int) -> list[Repair]:
        txns = [self.rows.checkable(1, self.rows.address_of(self.orders)) for _ in range(count)]
        due = {"checks": 15, "next_check_at": func.now() - timedelta(hours=1)}
        self.rows.connection.execute(update(txn).where(txn.c.id.in_(txns)).values(due))
        self.rows.connection.commit()
        seen_at = self.rows.now()
        return [Resume(each, seen_at) for each in txns]

    def stuck(self, count: int) -> list[Repair]:
        return [Release(self.rows.entry(self.orders, lease=4_711), "orders", "") for _ in range(count)]

    def lost(self, count: int) -> list[Repair]:
        return [Requeue(self._half(), "orders", "billing", terms_of) for _ in range(count)]

    def letters(self, count: int) -> list[Repair]:
        """Given up in one moment each, without a letter."""
        now = self.rows.now()
        return [self.letter(now - timedelta(seconds=number)) for number in range(count)]

    def letter(self, at: datetime, group: str = "", *, half_id: int | None = None) -> Replay:
        half_id = half_id or self._half()
        row = {"id": UUID(bytes=UuidV7().next()), "decision": "dead-letter", "reason": "app:bad"}
        covers = {"half_ids": [half_id], "group_ids": [self.billing if group else self.orders]}
        self.rows.connection.execute(insert(op).values(**row, **covers, decided_at=at))
        self.rows.connection.commit()
        return Replay(half_id, group, box_of, mark_of, terms_of)

    def _half(self) -> int:
        half_id = self.rows.half_ids.next()
        row = {"id": half_id, "address_id": self.rows.address_of(self.orders), "message": MESSAGE}
        self.rows.connection.execute(insert(half).values(row))
        self.rows.connection.commit()
        return half_id

    def state(self) -> list[Any]:
        """What repairs change: ops, entries, checks, rows of the audit; of each what says that it was done once."""
        queries = (
            select(op.c.decision, op.c.reason, op.c.half_ids, op.c.txn_id),
            select(entry.c.group_id, entry.c.half_id, entry.c.lease, entry.c.attempts),
            select(txn.c.id, txn.c.checks),
            select(audit.c.action, audit.c.subject, audit.c.detail["repair"].astext),
        )
        found = [sorted(map(repr, self.rows.connection.execute(query))) for query in queries]
        self.rows.connection.rollback()
        return found


@pytest.fixture
def broken(rows: Rows) -> _Broken:
    made = _Broken(rows, rows.queue("orders"), rows.queue("orders", group="billing"))
    rows.connection.execute(update(consumer_group).values(created_at=func.now() - timedelta(hours=1)))
    rows.connection.commit()
    return made


_MAKERS: list[Callable[[_Broken, int], list[Repair]]] = [
    _Broken.undecided,
    _Broken.overdue,
    _Broken.stuck,
    _Broken.lost,
]


@pytest.mark.parametrize("make", _MAKERS)
def test_many_cost_no_more_statements_than_few(broken: _Broken, make: Callable[[_Broken, int], list[Repair]]) -> None:
    asked = []
    for count in (2, 30):
        wanted = make(broken, count)
        with _statements(broken.rows.connection) as statements:
            assert _all_done(_done(broken.rows.connection, wanted))
        asked.append(len(statements))
    assert asked[0] == asked[1] < 60
    told = broken.rows.connection.scalars(select(audit.c.subject)).all()
    assert len(set(told)) == len(told) == 32


@pytest.mark.rule("R17")
def test_many_lost_letters_cost_a_look_together(broken: _Broken) -> None:
    asked = []
    for count in (2, 30):
        wanted = broken.letters(count)
        with _statements(broken.rows.connection) as statements:
            assert _all_done(_done(broken.rows.connection, wanted))
        asked.append(len(statements))
    assert asked[0] == asked[1]


@pytest.mark.rule("R17")
def test_lost_letters_of_one_moment_are_replayed_once(broken: _Broken) -> None:
    """Each finding of that moment is about all of them; one whose message is gone, or its group, stops no other."""
    rows = broken.rows
    at = rows.now()
    first, second = broken.letter(at), broken.letter(at)
    broken.letter(at, half_id=77)
    gone = broken.letter(at - timedelta(seconds=9), "billing")
    rows.connection.execute(delete(consumer_group).where(consumer_group.c.id == broken.billing))
    rows.connection.commit()
    found = _done(rows.connection, [first, gone, second])
    both = f"replayed: message {first.half_id} to orders, message {second.half_id} to orders"
    assert found[first] == found[second] == (State.DONE, both)
    assert found[gone].state is State.CANNOT
    assert len(rows.entries(broken.orders)) == 2
    released = [row.half_ids for row in rows.ops() if row.decision == "release"]
    assert sorted(released) == [[first.half_id], [second.half_id]]


@pytest.mark.parametrize("make", [*_MAKERS, _Broken.letters])
def test_stopped_at_each_statement_it_goes_on_and_does_nothing_twice(
    broken: _Broken, database_url: str, make: Callable[[_Broken, int], list[Repair]]
) -> None:
    wanted = make(broken, 3)
    with connected(database_url) as mine:
        with _statements(mine) as looks:
            list(repairs.repaired(mine, wanted, None))
        for most in itertools.count(len(looks)):  # each run comes a statement further than the last one
            try:
                with _statements(mine, most=most):
                    found = _done(mine, wanted)
                break
            except _Stopped:
                continue
    assert (_all_done(found), most >= len(looks) + 3) == (True, True)
    once = broken.state()
    assert len(broken.rows.connection.scalars(select(audit.c.subject)).all()) == 3
    broken.rows.connection.rollback()
    assert _all_done(_done(broken.rows.connection, wanted))
    assert broken.state() == once


def test_each_of_a_piece_is_told_what_became_of_it(broken: _Broken, database_url: str) -> None:
    """The first decision wins: another's before the look, another's between look and decision, another book's."""
    rows = broken.rows
    free, early, late, twice = (each.txn_id for each in broken.undecided(4) if isinstance(each, Decide))
    rows.connection.execute(select(func.coordinator.decide(early, "rollback", "first")))
    rows.connection.commit()
    unknown = UUID(bytes=rows.txn_ids.next())
    asked: list[bool] = []

    def decide(_: object, __: object, statement: str, *___: object) -> None:
        if "skip locked" in statement and not asked:
            asked.append(True)
            with psycopg.connect(database_url) as other:
                other.execute("select coordinator.decide(%s, 'rollback', 'another')", [late])

    plain = rows.txn(1)
    wanted = [
        *(Decide(each, "commit") for each in (free, early, late, twice)),
        Decide(twice, "rollback"),
        Decide(plain, "rollback"),
        Decide(unknown, "commit"),
    ]
    event.listen(rows.connection, "before_cursor_execute", decide)
    found = [verdict for _, verdict in repairs.repaired(rows.connection, wanted, RUN)]
    event.remove(rows.connection, "before_cursor_execute", decide)
    said = [f"{verdict.state}: {verdict.said}" for verdict in found]
    assert said[0] == f"done: transaction {free} is decided now: commit"
    assert said[1].startswith(f"cannot: transaction {early} is decided already: rollback (first) at ")
    lost = f"cannot: lost the race: transaction {late} is decided already: rollback (another) at "
    assert said[2].startswith(lost)
    assert said[3] == f"done: transaction {twice} is decided now: commit"
    assert said[4].startswith(f"cannot: lost the race: transaction {twice} is decided already: commit ({RUN}) at ")
    assert said[5] == f"done: transaction {plain} is decided now: rollback"
    assert said[6].endswith(" is not known any more")
    assert len(said) == 7
    assert _ops(rows) == {early: "rollback", late: "rollback", free: "commit", twice: "commit", plain: "rollback"}


def _ops(rows: Rows) -> dict[UUID, str]:
    found = {row.id: row.decision for row in rows.ops()}
    assert len(found) == len(rows.ops())
    return found


def test_one_that_cannot_be_committed_stops_no_other(broken: _Broken) -> None:
    """Its address is gone."""
    nowhere = Decide(broken.rows.checkable(1, 999), "commit")
    found = _done(broken.rows.connection, [nowhere, *broken.undecided(2)])
    assert [verdict.state for verdict in found.values()] == [State.CANNOT, State.DONE, State.DONE]
    assert "an address that it posted to was removed" in found[nowhere].said
    assert len(_ops(broken.rows)) == 2


def test_what_another_locks_holds_up_only_itself(broken: _Broken, database_url: str) -> None:
    """The others are decided, and stay so, while the piece still waits for one."""
    rows, wanted = broken.rows, broken.undecided(4)
    held = wanted[1]
    assert isinstance(held, Decide)
    with psycopg.connect(database_url) as other:
        other.execute("select from coordinator.txn where id = %s for update", [held.txn_id])
        told = repairs.repaired(rows.connection, wanted, RUN)
        assert next(told)[1].state is State.DONE
        seen = other.execute("select count(*) from coordinator.op").fetchone()
        assert seen == (3,)
        other.rollback()
        assert [verdict.state for _, verdict in told] == [State.DONE] * 3
    assert len(rows.ops()) == 4


@pytest.mark.rule("P18")
def test_a_message_group_comes_back_as_a_whole_beside_others(broken: _Broken) -> None:
    rows = broken.rows
    lines = rows.queue("lines", kind="fifo")
    behind = [rows.entry(lines, lease=4_711, message_group=-5) for _ in range(2)]
    rows.connection.execute(insert(message_group).values(group_id=lines, key=-5, instance_id=4_711))
    rows.connection.commit()
    wanted = [*broken.stuck(2), *(Release(each, "lines", "") for each in behind)]
    said = [verdict.said for verdict in _done(rows.connection, wanted).values()]
    assert [each.partition(": ")[0] for each in said] == ["released", "released", "released", "no instance has it"]
    assert said[2].endswith(", with 1 others of its message group")
    assert rows.entries(lines) == [(0, 1, None), (0, 1, None)]
    assert rows.connection.execute(select(message_group)).all() == []
    assert len(rows.ops()) == 3


def test_a_run_is_repaired_in_pieces(broken: _Broken, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one piece locks is free before the next."""
    monkeypatch.setattr(repairs, "MOST_TOGETHER", 2)
    broken.undecided(5)
    txns = broken.rows.connection.scalars(select(txn.c.id).order_by(txn.c.id)).all()
    number = store_run(broken.rows.connection, [known(each, "commit") for each in (*txns, txns[0])])
    done = CliRunner().invoke(app, ["repair", "--run", str(number), "--apply", "--database-url", database_url])
    assert (done.exit_code, done.stdout.count("is decided now"), done.stdout.count("decided already")) == (0, 5, 1)
    together = Counter(row.written_xid for row in broken.rows.ops())
    assert sorted(together.values()) == [1, 2, 2]
