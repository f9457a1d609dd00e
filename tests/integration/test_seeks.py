"""A consumer group moved back or forth in the store, beside all that may happen there meanwhile (rule H17)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, delete, func, insert, select, text

from store import addresses, recovery, removal, retention, seeks
from store.commit.terms import ALONE, PLAIN, DeliveryTerms
from store.database import connected
from store.errors import AddressGone, Contended, Fenced, StoreUnavailable, boundary
from store.seeks import Group, Head, Seek, present
from store.tables import SCHEMA, consumer_group, entry, heartbeat, op, seek
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("H17")

#: What becomes of a delivery, as an op tells it.
_ACCEPTED = {"decision": "accept"}


def _group(rows: Rows, name: str = "orders") -> Group:
    return _group_at(rows.connection, name)


def _group_at(connection: Connection, name: str = "orders") -> Group:
    found = addresses.find_group(connection, name, "")
    assert found is not None
    assert found.group is not None
    return seeks.group(connection, found.group)


def _ends(rows: Rows, group: int, half_id: int, **values: object) -> None:
    """The delivery ends: its entry goes, and an op says how."""
    rows.connection.execute(delete(entry).where(entry.c.group_id == group, entry.c.half_id == half_id))
    number = rows.txn_ids.next()
    row = {"half_ids": [half_id], "group_ids": [group], **values}
    if values.get("decision") == "commit":
        row.update({"posted": 0, "txn_id": number.hex()})
    rows.connection.execute(insert(op).values(id=number.hex(), **row))
    rows.connection.commit()


def _had(rows: Rows, group: int, count: int) -> list[int]:
    """So many messages that the group has accepted."""
    halves = [rows.entry(group) for _ in range(count)]
    for half_id in halves:
        _ends(rows, group, half_id, **_ACCEPTED)
    return halves


def _waiting(rows: Rows, group: int) -> list[int]:
    found = list(rows.connection.scalars(select(entry.c.half_id).where(entry.c.group_id == group).order_by(entry.c.id)))
    rows.connection.rollback()
    return found


def _back(
    rows: Rows,
    group: Group,
    to_id: int = 1,
    *,
    terms_of: Callable[[Head], DeliveryTerms] = lambda _: PLAIN,
    chunk: int = 1000,
) -> Seek:
    return seeks.move_back(rows.connection, group, to_id, terms_of, version="1", chunk=chunk)


@pytest.mark.parametrize(
    ("end", "again"),
    [
        ({"decision": "accept"}, "accepted"),
        ({"decision": "commit"}, "accepted"),
        ({"decision": "commit", "reason": "an operator's"}, "accepted"),
        ({"decision": "purge"}, "purged"),
        ({"decision": "purge", "reason": seeks.SKIPPED}, "purged"),
        ({"decision": "dead-letter", "reason": "x"}, None),
        ({"decision": "expire"}, None),
        # ops for groups that do not get the message
        ({"decision": "accept", "reason": "no-local"}, None),
        ({"decision": "accept", "reason": "replayed"}, None),
    ],
)
def test_how_the_delivery_ended_says_whether_it_comes_again(rows: Rows, end: dict[str, str], again: str | None) -> None:
    number = rows.queue("orders")
    half_id = rows.entry(number)
    _ends(rows, number, half_id, **end)
    done = _back(rows, _group(rows))
    assert (done.moved, done.ended_at is not None) == (again is not None, True)
    assert _waiting(rows, number) == [half_id] * (again is not None)
    taken_back = [(row.reason, row.half_ids, row.group_ids) for row in rows.ops() if row.decision == "replay"]
    assert taken_back == [(again, [half_id], [number])] * (again is not None)


def test_what_waits_or_is_on_its_way_stays_as_it_is(rows: Rows) -> None:
    """Also of another group, and what was posted before the place."""
    orders, billing = rows.queue("orders"), rows.queue("orders", group="billing")
    (before,) = _had(rows, orders, 1)
    first, last = _had(rows, orders, 2)
    states: tuple[dict[str, Any], ...] = (
        {},
        {"lease": 7, "attempts": 2},
        {"available_at": func.now() + timedelta(hours=1), "attempts": 1},
        {"failed": "x", "attempts": 16},
    )
    *there, promoted = [rows.entry(orders, **values) for values in (*states, {})]
    (theirs,) = _had(rows, billing, 1)
    rows.connection.execute(entry.update().where(entry.c.id == promoted).values(id=rows.half_ids.next()))
    query = select(entry).order_by(entry.c.id)
    untouched = rows.connection.execute(query).all()
    rows.connection.commit()
    assert _back(rows, _group(rows), first).moved == 2
    assert [row for row in rows.connection.execute(query) if row.half_id not in (first, last)] == untouched
    assert _waiting(rows, orders) == [first, last, *there, promoted]
    assert {before, theirs}.isdisjoint(_waiting(rows, orders))


@pytest.mark.rule("D6")
def test_it_comes_as_a_message_that_links_had(rows: Rows) -> None:
    """In its old place, with no failed attempt, on the terms of the message."""
    number = rows.queue("orders", kind="fifo")
    halves = _had(rows, number, 3)
    expires = (rows.now() + timedelta(hours=1)).replace(microsecond=0)
    micros = int(expires.timestamp() - 946_684_800) * 1_000_000
    terms = dict(
        zip(
            halves,
            (DeliveryTerms(message_group=-5), DeliveryTerms(message_group=ALONE), DeliveryTerms(micros, 0, 7, -6)),
            strict=True,
        )
    )
    _back(rows, _group(rows), terms_of=lambda head: terms[head.half_id])
    found = rows.connection.execute(select(entry).order_by(entry.c.id)).all()
    assert [(row.id, row.half_id, row.message_group, row.priority, row.expires_at) for row in found] == [
        (halves[0], halves[0], -5, 4, None),
        (halves[1], halves[1], halves[1], 4, None),
        (halves[2], halves[2], -6, 7, expires),
    ]
    assert {(row.lease, row.attempts, row.acquired, row.available_at) for row in found} == {(0, 0, True, None)}


def test_what_has_expired_does_not_come_again(rows: Rows) -> None:
    number = rows.queue("orders")
    over, _ = _had(rows, number, 2)
    done = _back(rows, _group(rows), terms_of=lambda head: DeliveryTerms(expires=1) if head.half_id == over else PLAIN)
    assert (done.moved, done.expired) == (1, 1)
    assert over not in _waiting(rows, number)


class _Killed(Exception):
    """In place of kill -9: what is not committed is not there."""


def _killed_at(count: int) -> Callable[[Head], DeliveryTerms]:
    seen: list[int] = []

    def terms_of(head: Head) -> DeliveryTerms:
        seen.append(head.half_id)
        if len(seen) > count:
            raise _Killed
        return PLAIN

    return terms_of


def test_one_that_was_killed_is_finished_by_the_next(rows: Rows, database_url: str) -> None:
    """Each message comes once of the two, also one that was accepted again in between."""
    number = rows.queue("orders")
    halves = _had(rows, number, 10)
    with connected(database_url) as killed, pytest.raises(_Killed):
        seeks.move_back(killed, _group(rows), 1, _killed_at(7), version="1", chunk=3)
    assert _waiting(rows, number) == halves[:6]
    (shown,) = seeks.all_seeks(rows.connection).values()
    assert (shown.moved, shown.ended_at) == (6, None)
    for half_id in halves[:4]:
        _ends(rows, number, half_id, **_ACCEPTED)
    late = _had(rows, number, 1)
    assert _back(rows, _group(rows), chunk=3).moved == 10
    assert _waiting(rows, number) == halves[4:]
    assert not set(late) & set(_waiting(rows, number))
    replays = [row.half_ids for row in rows.ops() if row.decision == "replay"]
    assert sorted(half_id for some in replays for half_id in some) == halves
    # the next one is another: what was had since comes again, too
    assert _back(rows, _group(rows)).moved == 5
    assert _waiting(rows, number) == [*halves, *late]


def test_one_to_another_place_takes_the_place_of_one_that_was_killed(rows: Rows, database_url: str) -> None:
    number = rows.queue("orders")
    halves = _had(rows, number, 6)
    with connected(database_url) as killed, pytest.raises(_Killed):
        seeks.move_back(killed, _group(rows), halves[0], _killed_at(2), version="1", chunk=1)
    assert _back(rows, _group(rows), halves[3]).moved == 3
    assert _waiting(rows, number) == [*halves[:2], *halves[3:]]


def test_one_that_waits_again_with_another_id_is_not_doubled(rows: Rows) -> None:
    """It came again, failed, waited, and so has a new id."""
    number = rows.queue("orders")
    (half_id,) = _had(rows, number, 1)
    _back(rows, _group(rows))
    rows.connection.execute(entry.update().values(id=rows.half_ids.next()))
    rows.connection.commit()
    assert _back(rows, _group(rows)).moved == 0
    assert _waiting(rows, number) == [half_id]


def test_one_at_a_time(rows: Rows, database_url: str) -> None:
    """Nor does retention drop anything meanwhile."""
    number = rows.queue("orders")
    _had(rows, number, 1)
    policy = retention.Policy(messages=timedelta(microseconds=1), decisions=timedelta(days=9000))
    heard: list[object] = []

    def terms_of(_: Head) -> DeliveryTerms:
        with connected(database_url) as other:
            heard.append(retention.drop_old(other, policy))
            with pytest.raises(Contended, match="another seek of this consumer group is under way"):
                seeks.move_forth(other, _group(rows), 1, version="1")
        return PLAIN

    assert _back(rows, _group(rows), terms_of=terms_of).moved == 1
    assert heard == [retention.Dropped()]


def test_the_group_stays_until_a_piece_is_committed(rows: Rows, database_url: str) -> None:
    """One that is gone is said to be."""
    number = rows.queue("orders")
    group = _group(rows)
    _had(rows, number, 1)

    def terms_of(_: Head) -> DeliveryTerms:
        with connected(database_url) as other, boundary():
            other.execute(text("set lock_timeout = '1ms'"))
            with pytest.raises(Contended):
                removal.remove(other, "orders", force=True)
        return PLAIN

    assert _back(rows, group, terms_of=terms_of).moved == 1
    removal.remove(rows.connection, "orders", force=True)
    with pytest.raises(AddressGone, match="the consumer group was removed meanwhile"):
        seeks.group(rows.connection, number)
    with pytest.raises(AddressGone, match="the consumer group was removed meanwhile"):
        _back(rows, group)
    assert _waiting(rows, number) == []


def test_it_waits_until_no_instance_holds_the_group_whole(
    rows: Rows, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as an instance meanwhile; until a piece is committed none begins to hold the group."""
    number, me = rows.queue("orders"), rows.instance()
    living = select(func.count()).select_from(recovery.LIVING.subquery())
    rows.connection.execute(consumer_group.update().values(holder=me))
    rows.connection.commit()
    monkeypatch.setattr("store.seeks._PATIENCE_SECONDS", 0.1)
    with connected(database_url) as mine:
        with present(mine, "1") as presence:
            assert rows.connection.scalar(living) == 2
            with pytest.raises(StoreUnavailable, match=f"instance {me} holds the consumer group"):
                presence.shared(number)
            rows.connection.execute(consumer_group.update().values(holder=0))
            rows.connection.commit()
            assert presence.shared(number)
            rows.connection.execute(text("set local lock_timeout = '1ms'"))
            with pytest.raises(Contended), boundary():
                rows.connection.execute(consumer_group.update().values(holder=me))
            rows.connection.rollback()
            mine.commit()
        assert rows.connection.scalar(living) == 1
        rows.connection.rollback()


def test_a_holder_that_shares_the_group_is_waited_for(rows: Rows, database_url: str) -> None:
    number = rows.queue("orders")
    halves = _had(rows, number, 2)
    rows.connection.execute(consumer_group.update().values(holder=rows.instance()))
    rows.connection.commit()
    found: list[Seek] = []

    def seeks_back() -> None:
        with connected(database_url) as other:
            found.append(seeks.move_back(other, _group_at(other), 1, lambda _: PLAIN, version="1"))

    thread = threading.Thread(target=seeks_back)
    thread.start()
    while not seeks.all_seeks(rows.connection):
        rows.connection.rollback()
    assert _waiting(rows, number) == []
    rows.connection.execute(consumer_group.update().values(holder=0))
    rows.connection.commit()
    thread.join()
    assert [done.moved for done in found] == [2]
    assert _waiting(rows, number) == halves


def test_one_that_was_taken_for_dead_writes_nothing_more(rows: Rows, database_url: str) -> None:
    """To be given up, it is waited for."""
    with connected(database_url) as mine, present(mine, "1") as presence, connected(database_url) as watch:
        presence.beat()
        row = text(f"select from {SCHEMA}.instance where id = {presence.instance_id} for update nowait")
        with pytest.raises(Contended), boundary():
            watch.execute(row)
        watch.rollback()
        mine.commit()
        watch.execute(row)
        watch.execute(text(f"update {SCHEMA}.instance set ended_at = now()"))
        watch.commit()
        with pytest.raises(Fenced, match="run it again to finish"):
            presence.beat()


def test_one_that_is_stopped_in_the_middle_keeps_no_other_from_being_given_up(rows: Rows, database_url: str) -> None:
    """Its session is ended; once it goes on it says what to do, and the next one does it."""
    number, other = rows.queue("orders"), rows.instance()
    halves = _had(rows, number, 3)
    given_up: list[int] = []

    def stopped(_: Head) -> DeliveryTerms:
        with connected(database_url) as watch:
            watch.execute(text("set lock_timeout = '2s'"))
            still = {row.instance_id: row.beaten_at for row in watch.execute(select(heartbeat))}
            given_up.extend(recovery.give_up_dead(watch, still).instances)
        return PLAIN

    with pytest.raises(Fenced, match="run it again to finish"):
        _back(rows, _group(rows), terms_of=stopped)
    assert given_up[0] == other
    assert len(given_up) == 2
    assert _waiting(rows, number) == []
    assert _back(rows, _group(rows)).moved == 3
    assert _waiting(rows, number) == halves


def test_forth_says_with_each_piece_that_it_lives(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one that takes long would be taken for dead; one that was writes nothing more."""
    number = rows.queue("orders")
    waiting = [rows.entry(number), rows.entry(number)]

    def given_up(_: float) -> None:
        rows.connection.execute(text(f"update {SCHEMA}.instance set ended_at = now()"))
        rows.connection.commit()

    # not the module's own: threads of other tests sleep as well
    monkeypatch.setattr(seeks, "time", SimpleNamespace(sleep=given_up, monotonic=time.monotonic))
    with pytest.raises(Fenced, match="run it again to finish"):
        seeks.move_forth(rows.connection, _group(rows), 1 << 62, version="1")
    assert _waiting(rows, number) == waiting


def test_forth_that_was_interrupted_goes_on_counting(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    number = rows.queue("orders")
    for _ in range(3):
        rows.entry(number)
    looks: list[float] = []

    def interrupted(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(seeks, "time", SimpleNamespace(sleep=interrupted, monotonic=time.monotonic))
        with pytest.raises(KeyboardInterrupt):
            seeks.move_forth(rows.connection, _group(rows), 1 << 62, version="1", chunk=2)
    assert _waiting(rows, number) == []
    assert seeks.move_forth(rows.connection, _group(rows), 1 << 62, version="1").moved == 3
    assert seeks.move_forth(rows.connection, _group(rows), 1 << 62, version="1").moved == 0


def test_forth_skips_what_waits_before_the_place(rows: Rows) -> None:
    """Not what a consumer has, what is to be delivered later, or what is on its way to the dead letters."""
    number = rows.queue("orders")
    later = func.now() + timedelta(hours=1)
    ready = rows.entry(number)
    retried = rows.entry(number, available_at=later, attempts=1)
    stay = [
        rows.entry(number, available_at=later),
        rows.entry(number, lease=rows.instance()),
        rows.entry(number, failed="x"),
    ]
    place, after = rows.entry(number), rows.entry(number)
    done = seeks.move_forth(rows.connection, _group(rows), place, version="1")
    assert (done.moved, done.back) == (2, False)
    assert _waiting(rows, number) == [*stay, place, after]
    told = [(row.decision, row.reason, sorted(row.half_ids)) for row in rows.ops()]
    assert told == [("purge", seeks.SKIPPED, [ready, retried])]
    # and back again
    assert _back(rows, _group(rows)).moved == 2
    assert _waiting(rows, number) == [ready, retried, *stay, place, after]


def test_the_last_one_goes_with_its_group(rows: Rows) -> None:
    rows.queue("orders")
    _back(rows, _group(rows))
    assert len(seeks.all_seeks(rows.connection)) == 1
    rows.connection.execute(delete(consumer_group))
    assert rows.connection.scalar(select(func.count()).select_from(seek)) == 0
    rows.connection.rollback()
