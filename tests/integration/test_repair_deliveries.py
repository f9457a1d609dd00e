"""``coordinator repair`` of deliveries that are stuck, and of dead letters that are lost (rule R34)."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import delete, func, insert, select, update

from coordinator.address.dead_letters import ORIGINAL_ID
from coordinator.repairs import proposal
from store import retention, runs
from store.codec.encoding import encode_long, encode_map, encode_symbol
from store.codec.message import annotate
from store.commit.terms import PLAIN, DeliveryTerms
from store.database import connected
from store.ids import UuidV7
from store.repairs import Repair, Requeue, State
from store.tables import HELD, consumer_group, entry, half, message_group, op
from tests.fix_reports import SEEN_AT, finding
from tests.fix_runs import a_run
from tests.fix_store import Rows

if TYPE_CHECKING:
    from tests.fix_command import Command

pytestmark = pytest.mark.rule("R34")

REASON = f"reconciliation run 1, {SEEN_AT.isoformat()}"
#: An AMQP message without annotations.
MESSAGE = b"\x00\x53\x75\xa0\x01x"


def _stuck(half_id: int, severity: str = "error", group: str = "") -> dict[str, Any]:
    found = finding("stuck-delivery", half_id=half_id, address="orders", consumer_group=group)
    return {**vars(found), "severity": severity}


def _lost_letter(half_id: int, severity: str = "error", group: str | None = "") -> dict[str, Any]:
    found = finding("dead-letter-mismatch", half_id=half_id, consumer_group=group)
    return {**vars(found), "severity": severity}


def _repair(found: dict[str, Any]) -> Repair:
    proposed = proposal(found, SEEN_AT)
    assert proposed is not None
    return proposed


def _told(rows: Rows) -> list[tuple[str, str | None, list[int], list[int]]]:
    return [(row.decision, row.reason, row.half_ids, row.group_ids) for row in rows.ops()]


def _gone(rows: Rows) -> int:
    """An instance that has ended, and was not cleared."""
    return rows.instance(ended_at=func.now() - timedelta(minutes=10))


def test_a_stuck_delivery_is_released_once(rows: Rows, command: Command, database_url: str) -> None:
    """Of an instance that has ended, and of one that was never there; what runs, and what is free, stays as it is."""
    orders, gone, alive = rows.queue("orders"), _gone(rows), rows.instance()
    stuck, strange, running, free, held = (rows.entry(orders, lease=lease) for lease in (gone, 4_711, alive, 0, HELD))
    moved = rows.half_ids.next()
    rows.connection.execute(insert(half).values(id=moved, address_id=rows.address_of(orders), message=MESSAGE))
    rows.connection.execute(insert(entry).values(group_id=orders, id=moved + 7, half_id=moved, lease=gone))
    rows.connection.commit()
    before = rows.entries(orders)
    found = [_stuck(each) for each in (stuck, strange, running, free, held, moved, 1)]
    passed = [_stuck(free, "warning"), _stuck(stuck, group="none")]
    number = runs.store(rows.connection, a_run(), [*found, *passed])
    dry = command("repair", "--run", str(number), "--database-url", database_url)
    assert dry.returncode == 1, dry.stderr
    lines = [
        f"would release from instance {gone}: message {stuck} to orders (stuck-delivery)",
        f"would release from instance 4711: message {strange} to orders (stuck-delivery)",
        f"done: instance {alive}, which runs, has it: message {running} to orders (stuck-delivery)",
        f"done: no instance has it: message {free} to orders (stuck-delivery)",
        f"done: no instance has it: message {held} to orders (stuck-delivery)",
        f"would release from instance {gone}: message {moved} to orders (stuck-delivery)",
        "done: its entry is not there any more: message 1 to orders (stuck-delivery)",
        f"done: the group is not there any more: message {stuck} to orders::none (stuck-delivery)",
        "by hand: 1 stuck-delivery: look",
    ]
    assert dry.stdout.splitlines() == lines
    assert (rows.entries(orders), rows.ops()) == (before, [])
    done = command("repair", "--run", str(number), "--apply", "--database-url", database_url)
    assert done.stdout.splitlines()[0] == f"done: released: message {stuck} to orders (stuck-delivery)"
    assert (done.returncode, done.stdout.count("done: released: ")) == (1, 3)
    # each delivery may have been sent: one failed attempt more
    freed = {(0, 1, None)}
    assert {rows.entries(orders)[place] for place in (0, 1, 5)} == freed
    assert [rows.entries(orders)[place] for place in (2, 3, 4)] == [before[place] for place in (2, 3, 4)]
    told = [("release", REASON, [each], [orders]) for each in (stuck, strange, moved)]
    assert _told(rows) == told
    again = command("repair", "--run", str(number), "--apply", "--database-url", database_url)
    assert again.stdout.count("done: no instance has it") == 5
    assert _told(rows) == told


@pytest.mark.rule("P18")
def test_what_an_instance_has_of_a_message_group_is_released_at_once(rows: Rows) -> None:
    """With its claim, without which no instance takes what was released; and none takes what is behind it first."""
    orders, gone, alive = rows.queue("orders", kind="fifo"), _gone(rows), rows.instance()
    other = rows.queue("others", kind="fifo")
    mine = [rows.entry(orders, lease=gone, message_group=-5) for _ in range(3)]
    behind = rows.entry(orders, message_group=-5)
    rows.entry(orders, lease=gone, message_group=-6)
    rows.entry(other, lease=gone, message_group=-5)
    claims = [(orders, -5, gone), (orders, -6, gone), (orders, -7, alive), (other, -5, gone)]
    for place, key, owner in claims:
        values = {"group_id": place, "key": key, "instance_id": owner}
        rows.connection.execute(insert(message_group).values(**values))
    rows.connection.commit()
    verdict = _repair(_stuck(mine[1])).apply(rows.connection, REASON)
    assert verdict == (State.DONE, f"released: message {mine[1]} to orders, with 2 others of its message group")
    assert rows.entries(orders) == [(0, 1, None)] * 3 + [(0, 0, None), (gone, 0, None)]
    assert rows.entries(other) == [(gone, 0, None)]
    left = rows.connection.execute(select(message_group).order_by(message_group.c.group_id, message_group.c.key.desc()))
    assert [tuple(row) for row in left] == claims[1:]
    rows.connection.rollback()
    assert _told(rows) == [("release", REASON, mine, [orders] * 3)]
    for each in (*mine, behind):
        assert _repair(_stuck(each)).examine(rows.connection).state is State.DONE


@pytest.mark.rule("P18")
def test_a_claim_of_an_instance_that_lives_stays(rows: Rows) -> None:
    """It reads its group anew, from what is released on."""
    orders, alive = rows.queue("orders", kind="fifo"), rows.instance()
    stuck = rows.entry(orders, lease=4_711, message_group=-5)
    taken = rows.entry(orders, lease=alive, message_group=-5)
    claim = {"group_id": orders, "key": -5, "instance_id": alive}
    rows.connection.execute(insert(message_group).values(**claim))
    rows.connection.commit()
    assert _repair(_stuck(stuck)).apply(rows.connection, REASON).state is State.DONE
    assert rows.entries(orders) == [(0, 1, None), (alive, 0, None)]
    assert rows.connection.execute(select(message_group)).one()._asdict() == claim
    rows.connection.rollback()
    assert _told(rows) == [("release", REASON, [stuck], [orders])]
    assert taken > stuck


@pytest.mark.parametrize("kind", ["stuck", "letter"])
def test_two_repairs_at_once_do_it_once(rows: Rows, database_url: str, kind: str) -> None:
    orders = rows.queue("orders")
    if kind == "stuck":
        repair = _repair(_stuck(rows.entry(orders, lease=_gone(rows))))
    else:
        repair = _repair(_lost_letter(_buried(rows, orders, rows.now())))
    ops = len(rows.ops())
    states: list[State] = []

    def apply() -> None:
        with connected(database_url) as connection:
            states.append(repair.apply(connection, REASON).state)

    threads = [threading.Thread(target=apply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states == [State.DONE] * 4
    assert (len(rows.ops()) - ops, len(rows.entries(orders))) == (1, 1)
    assert rows.entries(orders) == [(0, int(kind == "stuck"), None)]


def test_what_another_has_released_meanwhile_is_left_alone(rows: Rows, database_url: str) -> None:
    """The rival, a service that starts, has locked the entry: the repair waits, and does nothing after it."""
    orders = rows.queue("orders")
    repair = _repair(_stuck(rows.entry(orders, lease=_gone(rows))))
    verdicts = []
    with psycopg.connect(database_url) as rival, connected(database_url) as mine:
        rival.execute("update coordinator.entry set lease = 0, attempts = attempts + 1")
        waits = threading.Thread(target=lambda: verdicts.append(repair.apply(mine, REASON)))
        waits.start()
        rival.commit()
        waits.join()
    (verdict,) = verdicts
    assert (verdict.state, verdict.said.startswith("no instance has it: ")) == (State.DONE, True)
    assert (rows.entries(orders), rows.ops()) == ([(0, 1, None)], [])


@pytest.mark.rule("H16")
def test_nothing_is_dropped_while_a_message_is_delivered_again(rows: Rows, database_url: str) -> None:
    """A drop that had looked for what must stay before would take it."""
    orders = rows.queue("orders")
    lost = rows.entry(orders)
    rows.connection.execute(delete(entry))
    rows.connection.commit()
    policy = retention.Policy(messages=timedelta(microseconds=1), decisions=timedelta(days=9000))
    heard: list[object] = []

    def terms_of(*_: object) -> DeliveryTerms:
        with connected(database_url) as other:
            heard.append(retention.drop_old(other, policy))
        return PLAIN

    assert Requeue(lost, "orders", "", terms_of).apply(rows.connection, REASON).state is State.DONE
    assert heard == [retention.Dropped()]


def _buried(rows: Rows, group: int, at: datetime) -> int:
    """A message that the group gave up at this moment, without its letter."""
    half_id = rows.entry(group)
    rows.connection.execute(delete(entry).where(entry.c.half_id == half_id))
    values = {"id": UUID(bytes=UuidV7().next()), "decision": "dead-letter", "reason": "app:bad", "decided_at": at}
    rows.connection.execute(insert(op).values(**values, half_ids=[half_id], group_ids=[group]))
    rows.connection.commit()
    return half_id


def _letter(rows: Rows, box: int, original_id: int, at: datetime) -> int:
    story = encode_map([encode_symbol(ORIGINAL_ID) + encode_long(original_id)])
    half_id = rows.half_ids.next()
    values = {"id": half_id, "address_id": rows.address_of(box), "message": annotate(b"", story) + MESSAGE}
    rows.connection.execute(insert(half).values(**values, posted_at=at))
    rows.connection.commit()
    return half_id


@pytest.mark.rule("R17", "D4")
def test_a_lost_letter_is_replayed_once_to_its_group(rows: Rows, command: Command, database_url: str) -> None:
    """Of two that were given up in one moment the one whose letter is not there, whichever the finding names."""
    orders, billing = rows.queue("orders"), rows.queue("orders", group="billing")
    box = rows.queue("%DLQ%orders", origin="dead-letter")
    rows.connection.execute(update(consumer_group).values(created_at=func.now() - timedelta(hours=1)))
    rows.connection.commit()
    at = rows.now()
    kept, lost = (_buried(rows, orders, at) for _ in range(2))
    _letter(rows, box, kept, at)
    whole = _buried(rows, orders, at + timedelta(seconds=1))
    _letter(rows, box, whole, at + timedelta(seconds=1))
    found = [_lost_letter(kept), _lost_letter(whole), _lost_letter(1), _lost_letter(kept, group="billing")]
    number = runs.store(rows.connection, a_run(), [*found, _lost_letter(kept, "note"), _lost_letter(kept, group=None)])
    dry = command("repair", "--run", str(number), "--database-url", database_url)
    assert dry.stdout.splitlines() == [
        f"would replay message {lost} to orders (dead-letter-mismatch)",
        f"done: its letter is there, or it was replayed: message {whole} (dead-letter-mismatch)",
        "left: message 1 is not there any more (dead-letter-mismatch)",
        f"left: no group of this name has given it up: message {kept} (dead-letter-mismatch)",
        "by hand: 2 dead-letter-mismatch: look",
    ], dry.stderr
    before = len(rows.ops())
    done = command("repair", "--run", str(number), "--apply", "--database-url", database_url)
    assert done.stdout.splitlines()[0] == f"done: replayed: message {lost} to orders (dead-letter-mismatch)"
    (made,) = rows.connection.execute(select(entry)).all()
    message = rows.connection.scalar(select(half.c.message).where(half.c.id == made.half_id))
    rows.connection.rollback()
    assert (made.group_id, made.half_id > lost, made.attempts, message) == (orders, True, 0, b"x")
    told = [("accept", "replayed", [made.half_id], [billing]), ("release", REASON, [lost], [orders])]
    assert sorted(_told(rows)[before:]) == told
    again = command("repair", "--run", str(number), "--apply", "--database-url", database_url)
    assert again.stdout.splitlines()[0].startswith("done: its letter is there, or it was replayed")
    assert len(rows.ops()) == before + 2


@pytest.mark.parametrize("since", [[], ["billing"]], ids=["gone", "made anew"])
def test_a_lost_letter_of_a_group_that_is_gone_is_left(rows: Rows, since: list[str]) -> None:
    """One of its name that was made since is another group."""
    rows.queue("orders")
    billing = rows.queue("orders", group="billing")
    half_id = _buried(rows, billing, rows.now())
    rows.connection.execute(delete(consumer_group).where(consumer_group.c.id == billing))
    rows.connection.commit()
    for name in since:
        rows.queue("orders", group=name)
    repair = _repair(_lost_letter(half_id, group="billing"))
    said = f"the message, or its group, is not there any more: message {half_id} to orders::billing"
    assert repair.examine(rows.connection) == (State.CANNOT, said)
    assert repair.apply(rows.connection, REASON).state is State.CANNOT
    assert len(rows.ops()) == 1
