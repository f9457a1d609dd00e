"""What the store knows of a transaction, or of a message: found by the time of ids, and what is not kept said as such
(rule H15).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, delete, func, insert, select, text, update

from coordinator import timeline
from coordinator.address.dead_letters import ORIGINAL_ID
from coordinator.timeline import as_utc
from store.codec.encoding import encode_long, encode_symbol
from store.ids import EPOCH_MS, SLOTS, TxnIds, UuidV7, declared_at, id_at
from store.partitions import make_days, op_id_at
from store.removal import drop, remove
from store.tables import consumer_group, entry, half, op, pending_retirement, retention, store_identity
from tests.fix_command import Command
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("H15")

NOW = datetime.now(UTC)
ACCEPTED, READY = ("accepted", "orders"), ("now ready", "orders")


class Lives:
    """Messages and ops at moments that the test chooses; each method commits."""

    def __init__(self, connection: Connection, rows: Rows) -> None:
        self.connection = connection
        self.group = rows.queue("orders")
        self.address = rows.address_of(self.group)
        connection.execute(update(consumer_group).values(created_at=NOW - timedelta(days=60)))
        connection.commit()
        self._count = 0

    def half(self, at: datetime, *, txn_id: UUID | None = None, entry_id: int | None = None, **values: Any) -> int:
        """``entry_id``: of its entry, 0: it has the id of the half."""
        half_id = self.message_at(self.address, b"m", at, txn_id)
        if entry_id is not None:
            waits = {"group_id": self.group, "id": entry_id or half_id, "half_id": half_id, **values}
            self.connection.execute(insert(entry).values(waits))
        self.connection.commit()
        return half_id

    def message_at(self, address: int, message: bytes, at: datetime, txn_id: UUID | None = None) -> int:
        """Written, but not committed."""
        make_days(self.connection, [at.date()])
        self._count += 1
        half_id = id_at(at) + self._count
        row = {"id": half_id, "txn_id": txn_id, "address_id": address, "message": message, "posted_at": at}
        self.connection.execute(insert(half).values(row))
        return half_id

    def op(self, decision: str, at: datetime, *half_ids: int, group: int | None = None, **values: Any) -> UUID:
        """``id``: of its op, where that is not of the moment."""
        begun = values.pop("begun", at)
        make_days(self.connection, [begun.date()])
        self._count += 1
        number = UUID(int=op_id_at(begun).int | 7 << 76 | 2 << 62 | self._count)
        covers = {"half_ids": list(half_ids), "group_ids": [group or self.group] * len(half_ids)} if half_ids else {}
        if decision in ("commit", "rollback"):
            values = {"txn_id": number, "posted": 0, **values}
        self.connection.execute(insert(op).values(id=number, decision=decision, decided_at=at, **covers, **values))
        self.connection.commit()
        return number

    def kept_from(self, table: str, at: datetime) -> None:
        self.connection.execute(insert(retention).values(table_name=table, kept_from=at.date()))
        self.connection.commit()

    def of_message(self, half_id: int) -> list[tuple[str, str | None]]:
        found = timeline.of_message(self.connection, half_id)
        self.connection.rollback()
        assert found is not None
        return [(event.what, event.group) for event in found.sorted()]

    def of(self, txn_id: UUID, most: int = 100) -> timeline.Timeline:
        found = timeline.of_transaction(self.connection, txn_id, most)
        self.connection.rollback()
        assert found is not None
        return found


@pytest.fixture
def lives(database: Connection, rows: Rows) -> Lives:
    return Lives(database, rows)


@pytest.mark.parametrize("later", [timedelta(0), timedelta(seconds=5), timedelta(hours=3), timedelta(days=9)])
def test_what_ends_a_delivery_is_found_however_late(lives: Lives, later: timedelta) -> None:
    at = NOW - timedelta(days=10)
    half_id = lives.half(at)
    lives.op("modify", at + later / 2, half_id)
    lives.op("accept", at + later, half_id + 1, half_id)
    assert lives.of_message(half_id) == [("posted", None), ("given back", "orders"), ACCEPTED]


@pytest.mark.parametrize("earlier", [timedelta(minutes=1), timedelta(hours=23)])
def test_a_consumer_declared_long_before_there_was_anything_to_take(lives: Lives, earlier: timedelta) -> None:
    """A commit has the id of its transaction: it is older than what it retires."""
    at = NOW - timedelta(days=2)
    half_id = lives.half(at)
    txn_id = lives.op("commit", at + timedelta(minutes=2), half_id, begun=at - earlier)
    assert lives.of_message(half_id) == [("posted", None), ACCEPTED]
    assert [event.what for event in lives.of(txn_id).sorted()] == ["declared", "committed", "accepted"]


def test_an_end_is_the_last_word_unless_the_group_was_moved(lives: Lives) -> None:
    at = NOW - timedelta(days=3)
    half_id = lives.half(at)
    lives.op("accept", at, half_id)
    lives.op("replay", at + timedelta(days=2), half_id, reason="accepted")
    moved = text("insert into coordinator.seek (group_id, back, to_id, position) values (:group, false, 1, 0)")
    lives.connection.execute(moved, {"group": lives.group})
    lives.op("accept", at + timedelta(days=2, hours=1), half_id)
    assert lives.of_message(half_id) == [("posted", None), ACCEPTED, ("moved back", "orders"), ACCEPTED]


def test_where_it_waits_under_an_id_of_its_own(lives: Lives) -> None:
    at = NOW - timedelta(days=3)
    for attempts, told in ((0, []), (2, [("given back", "orders")])):
        half_id = lives.half(at, entry_id=id_at(NOW) + attempts, attempts=attempts)
        for _ in told:
            lives.op("modify", at + timedelta(days=1), half_id)
        assert lives.of_message(half_id) == [("posted", None), *told, READY]


def test_two_groups_and_one_that_came_later(lives: Lives, rows: Rows) -> None:
    """The one that came later owes nothing; the one that is gone had it."""
    at = NOW - timedelta(hours=3)
    rows.queue("orders", group="late")
    gone = rows.queue("orders", group="gone")
    half_id = lives.half(at, entry_id=0)
    lives.op("accept", at + timedelta(hours=2), half_id, group=gone)
    lives.connection.execute(delete(consumer_group).where(consumer_group.c.id == gone))
    lives.connection.commit()
    assert lives.of_message(half_id) == [("posted", None), ("accepted", "orders::gone"), READY]


def test_a_removed_address_and_a_forgotten_group(lives: Lives) -> None:
    half_id = lives.half(NOW - timedelta(hours=3), entry_id=0)
    removed = remove(lives.connection, "orders", force=True)
    assert removed is not None
    drop(lives.connection, lives.group, UuidV7())
    assert lives.of_message(half_id) == [("posted", None), ("purged", "orders")]
    lives.connection.execute(text("delete from coordinator.removed_group"))
    lives.connection.execute(text("delete from coordinator.removed_address"))
    lives.connection.commit()
    assert lives.of_message(half_id) == [("posted", None), ("purged", f"#{lives.group}")]


def test_the_messages_of_a_long_transaction(lives: Lives) -> None:
    """Those of a plain one are of its end, those of a checkable one of any time; no more are read than wanted."""
    at = NOW - timedelta(days=2)
    for posted_at in (at + timedelta(hours=5), at):
        txn_id = lives.op("commit", at + timedelta(hours=5), begun=at, posted=3)
        halves = [lives.half(posted_at + timedelta(milliseconds=n), txn_id=txn_id, entry_id=0) for n in range(3)]
        found = lives.of(txn_id)
        assert [event.message for event in found.events if event.what == "posted"] == halves
        assert found.notes == []
        first = lives.of(txn_id, 1)
        assert [event.message for event in first.events if event.what == "posted"] == halves[:1]
        assert first.notes == ["2 more messages; --limit N shows more"]


def test_one_that_was_undecided_for_long_costs_what_is_its_own(lives: Lives) -> None:
    """However much others have posted and retired meanwhile, and however much waits since then: pages with a half of
    its own are read, and the ops of a minute.
    """
    begun, hours = NOW - timedelta(hours=21), timedelta(hours=20)
    make_days(lives.connection, [begun.date(), NOW.date()])
    decided_at = begun + hours
    txn_id = lives.op("commit", decided_at, begun=begun, posted=3)
    halves = []
    for third in range(3):
        _busy(lives, begun + third * hours / 3, begun + (third + 1) * hours / 3)
        halves.append(lives.half(begun + (third + 0.5) * hours / 3, txn_id=txn_id, entry_id=id_at(decided_at) + third))
    lives.connection.execute(text("select brin_summarize_new_values(indexrelid) from pg_index where " + _BRIN))
    for table in ("half", "op", "entry"):
        lives.connection.execute(text(f"analyze coordinator.{table}"))
    lives.connection.execute(text("select pg_stat_force_next_flush()"))  # what was read up to here does not count
    lives.connection.commit()
    found = timeline.of_transaction(lives.connection, txn_id, 100)
    read = lives.connection.scalar(text(_READ))
    assert found is not None
    assert [event.message for event in found.sorted() if event.what == "posted"] == halves
    assert [event.message for event in found.sorted() if event.what == "now ready"] == halves
    assert found.summary is not None
    assert found.summary.posted_to == ("orders",)
    assert 0 < read < 9_000  # of 70,000


_BRIN = (
    "indexrelid in (select c.oid from pg_class c join pg_am a on a.oid = c.relam"
    " where a.amname = 'brin' and c.relkind = 'i')"
)
_READ = (
    "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int from pg_stat_xact_user_tables"
    " where relname ~ '^(half|op|entry)(_[0-9]|$)'"
)


def _busy(lives: Lives, since: datetime, until: datetime) -> None:
    """Others post 10,000 messages, each in a transaction of its own; half of them are retired, the others wait."""
    statements = (
        "half (id, txn_id, address_id, message, posted_at)"
        " select half_id, uuid, :address, convert_to(repeat('x', 500), 'UTF8'), at from numbers order by i",
        "op (id, decision, half_ids, group_ids, decided_at)"
        " select uuid, 'accept', array[half_id], array[:group], at from numbers where i % 2 = 0 order by i",
        "entry (group_id, id, half_id) select :group, half_id, half_id from numbers where i % 2 = 1 order by i",
    )
    for statement in statements:
        numbers = f"""with numbers as (
            select i, to_timestamp(ms / 1000.0) as at, (ms - {EPOCH_MS} << 22) + i % 4096 as half_id,
                   (lpad(to_hex(ms), 12, '0') || '7' || substr(md5(i::text), 1, 3) || '8'
                    || substr(md5(i::text), 4, 15))::uuid as uuid
              from generate_series(0, 9999) i cross join lateral (select :since + i * :step as ms) m)"""
        table, _, query = statement.partition(" select ")
        step = (until - since) // timedelta(milliseconds=10_000)
        values = {"since": int(since.timestamp() * 1000), "step": step, "address": lives.address, "group": lives.group}
        lives.connection.execute(text(f"insert into coordinator.{table} {numbers} select {query}"), values)
    lives.connection.commit()


def test_messages_that_are_not_kept_any_more(lives: Lives) -> None:
    at = NOW - timedelta(days=9)
    txn_id = lives.op("commit", at, posted=2)
    carried = lives.half(at, txn_id=txn_id, entry_id=0)
    assert lives.of(txn_id).notes == ["1 messages are nowhere: run coordinator reconcile"]
    lives.op("accept", at, carried - 1)
    lives.kept_from("half", NOW - timedelta(days=5))
    (note,) = lives.of(txn_id).notes
    assert note.startswith("1 messages are not kept any more: messages are kept since ")
    gone = timeline.of_message(lives.connection, carried - 1)
    assert gone is not None
    assert [(event.what, event.group) for event in gone.events] == [ACCEPTED]
    assert gone.notes[0].startswith("the message itself is not kept any more: messages are kept since ")
    assert timeline.of_message(lives.connection, carried - 2) is None


@pytest.mark.parametrize(
    ("reason", "instance_id", "detail"),
    [
        ("timeout", 3, "its time was over (instance 3)"),
        ("link-lost", 3, "its control link was lost (instance 3)"),
        ("rollback-only: amqp:decode-error", 3, "rollback-only: amqp:decode-error (instance 3)"),
        ("instance-lost", None, "its instance was lost"),
        ("address-removed", None, "an address that it posted to was removed"),
        ("application", None, "discharged in the SQL transaction of an application"),
        ("checked", None, "checked, by an operator or a statement in SQL"),
        ("wrong price", None, "wrong price, by an operator or a statement in SQL"),
        (None, None, "discharged in SQL, by an operator or a statement in SQL"),
    ],
)
def test_who_has_decided_and_why(lives: Lives, reason: str | None, instance_id: int | None, detail: str) -> None:
    txn_id = lives.op("rollback", NOW, reason=reason, instance_id=instance_id)
    (_, decided) = lives.of(txn_id).sorted()
    assert (decided.what, decided.reason, decided.instance_id) == ("rolled back", reason, instance_id)
    assert decided.detail == f"0 posted, 0 accepted: {detail}"


def test_a_message_whose_transaction_is_nowhere(lives: Lives) -> None:
    txn_id = UUID(bytes=TxnIds(1, b"x").next())
    half_id = lives.half(NOW, txn_id=txn_id)
    found = timeline.of_message(lives.connection, half_id)
    assert found is not None
    assert (found.txn_id, found.outcome) == (txn_id, "unknown")
    assert "neither a decision about its transaction" in found.notes[0]


def test_what_the_store_made_and_does_not_know_any_more(lives: Lives, command: Command, database_url: str) -> None:
    secret = bytes(lives.connection.scalars(select(store_identity.c.secret)).one())
    lives.connection.rollback()
    txn_id = UUID(bytes=TxnIds(1, secret).next())
    lives.kept_from("op", NOW + timedelta(days=2))
    done = command("transaction", "show", str(txn_id), "--database-url", database_url)
    assert (done.returncode, done.stdout) == (1, "")
    declared = as_utc(declared_at(txn_id.bytes))
    assert f"is not known any more: it was declared at {declared}, and decisions are kept since " in done.stderr
    lives.kept_from("half", NOW + timedelta(days=2))
    done = command("message", "show", str(id_at(NOW) | SLOTS), "--database-url", database_url)
    assert (done.returncode, "is not known any more, if it ever was" in done.stderr) == (1, True)


def _letter(lives: Lives, original_id: int, at: datetime) -> int:
    """A dead letter of the message, at the address ``%DLQ%orders``."""
    box = "insert into coordinator.address (name, kind, routing) values ('%DLQ%orders', 'normal', 'queue')"
    address = lives.connection.scalar(text(f"{box} on conflict (name) do update set kind = 'normal' returning id"))
    letter = lives.message_at(address, encode_symbol(ORIGINAL_ID) + encode_long(original_id), at)
    lives.connection.commit()
    return letter


def test_each_message_of_a_transaction_has_its_letter(lives: Lives) -> None:
    """However many of them there are."""
    at = NOW - timedelta(hours=1)
    txn_id = lives.op("commit", at, posted=25)
    letters = []
    for _ in range(25):
        lives.op("dead-letter", at, half_id := lives.half(at, txn_id=txn_id))
        letters.append(_letter(lives, half_id, at))
    found = lives.of(txn_id)
    assert sorted(event.message or 0 for event in found.events if event.what == "letter") == letters
    assert found.notes == []


@pytest.mark.parametrize("times", [2, 22])
def test_letters_of_one_message_at_about_one_time(lives: Lives, times: int) -> None:
    """It was moved back, and failed again: each letter comes once, and the note of those that are too many too."""
    at = NOW - timedelta(hours=1)
    half_id = lives.half(at)
    letters = []
    for number in range(times):
        lives.op("dead-letter", at + timedelta(seconds=number), half_id)
        letters.append(_letter(lives, half_id, at + timedelta(seconds=number)))
    found = timeline.of_message(lives.connection, half_id)
    assert found is not None
    assert [event.message for event in found.sorted() if event.what == "letter"] == letters[:20]
    told = f"message {half_id} became a dead letter, or was replayed, more than 20 times"
    assert found.notes == [told] * (times > 20)


@pytest.mark.parametrize("checkable", [False, True])
def test_a_transaction_that_retires_many(lives: Lives, rows: Rows, checkable: bool) -> None:
    """As many as are asked for, and how one sees the others; decided, or undecided."""
    at = NOW - timedelta(minutes=5)
    halves = [lives.half(at, entry_id=0) for _ in range(5)]
    if checkable:
        txn_id = rows.checkable(1)
        held = {"txn_id": txn_id, "group_id": lives.group, "decision": "accept", "attempts": 0, "wait_ms": 0}
        rows_held = [{**held, "entry_id": each, "half_id": each} for each in halves]
        lives.connection.execute(insert(pending_retirement), rows_held)
        lives.connection.commit()
        as_utc = ["the first 3 deliveries that it retired are shown; --limit N shows more"]
    else:
        txn_id = lives.op("commit", at, *halves)
        lives.op("reject", at, *halves, txn_id=txn_id)
        as_utc = ["it retired 4 more deliveries; --limit N shows more"]
    for most, notes in ((3, as_utc), (100, [])):
        found = lives.of(txn_id, most)
        retired = [event.message for event in found.events if event.what in ("accepted", "rejected", "now held")]
        assert (retired, found.notes) == (halves[:most] * (1 if checkable else 2), notes)


def test_a_store_that_is_away(command: Command) -> None:
    done = command("transaction", "show", "0" * 32, "--database-url", "postgresql://user:secret@127.0.0.1:1/shop")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: database at 127.0.0.1:1/shop: Connection refused\n"


@pytest.mark.rule("S7")
def test_what_came_from_the_wire_forges_no_line(lives: Lives, rows: Rows, command: Command, database_url: str) -> None:
    txn_id = rows.txn(1, owner="shop\n2026-01-01 committed\x1b[2J")
    done = command("transaction", "show", str(txn_id), "--database-url", database_url)
    assert done.returncode == 0, done.stderr
    assert r"by shop\n2026-01-01 committed\x1b[2J at instance 1" in done.stdout
    assert len(done.stdout.splitlines()) == 14
    assert lives.connection.scalar(select(func.count()).select_from(op)) == 0
