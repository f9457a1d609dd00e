"""What became of a transaction, or of a message, after its days were archived and dropped: the timeline of before, read
from the archive (rules H15, R35).
"""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from typer.testing import CliRunner

from coordinator import timeline
from coordinator.__main__ import app
from coordinator.address.dead_letters import ORIGINAL_ID
from store.codec.encoding import encode_long, encode_symbol
from store.ids import ADMINISTRATION, begin_of
from store.partitions import make_days
from store.tables import address, consumer_group, half
from tests.fix_archive import NAME, OLD, Change, Old, changed, without_manifest
from tests.wire.messages import Properties, section
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("H15", "R35")

LATER = OLD + timedelta(days=2)
#: all days go, or the first alone
ENDS = pytest.mark.parametrize("end", [None, OLD + timedelta(days=1)])


@pytest.fixture
def lives(old: Old) -> Old:
    """Its groups are older than all messages."""
    old.connection.execute(update(consumer_group).values(created_at=text("now() - interval '60 days'")))
    old.connection.commit()
    return old


def _told(old: Old, what: UUID | int, *, root: Path | None = None) -> list[dict[str, Any]]:
    of = timeline.of_transaction(old.connection, what, 100, root) if isinstance(what, UUID) else None
    found = of or (timeline.of_message(old.connection, what, root) if isinstance(what, int) else None)
    old.connection.rollback()
    assert found is not None
    assert found.notes == []
    events = found.plain()["events"]
    return [event | ({"at": None} if event["what"].startswith("now ") else {}) for event in events]


def _same_after_the_drop(old: Old, end: date | None, *those: UUID | int) -> list[list[bool]]:
    """Whether each event came from the archive."""
    before = [_told(old, what) for what in those]
    assert not [event for events in before for event in events if event["archived"]]
    old.write(end)
    assert old.drop().emptied
    after = [_told(old, what, root=old.root) for what in those]
    assert [[event | {"archived": False} for event in events] for events in after] == before
    return [[event["archived"] for event in events] for events in after]


@ENDS
def test_a_commit_with_its_messages_and_deliveries(lives: Old, end: date | None) -> None:
    first, second = lives.half(OLD, b"1"), lives.half(OLD, b"2")
    lives.op(OLD, "accept", [first], instance_id=3)
    txn_id = lives.op(OLD, "commit", [second, first], posted=3, instance_id=3)
    posted = [lives.half(OLD, b"m" * number, txn_id) for number in (1, 2)]
    posted.append(lives.half(OLD, b"waits", txn_id, waiting=True))
    lives.op(OLD, "reject", [second], txn_id=txn_id, reason="wrong", instance_id=3)
    lives.op(OLD, "accept", [posted[0]])
    lives.op(LATER, "accept", [posted[1]], instance_id=4)
    whole, one, late, waits = _same_after_the_drop(lives, end, txn_id, first, posted[1], posted[2])
    # Declared and committed; it accepted two and rejected one; it posted three, of which one waits and so stays.
    assert len(whole) == 11
    assert whole.count(False) == (3 if end is None else 4)
    assert all(one)
    assert late == [False, True, True, end is None]
    assert waits.count(False) == 3


@ENDS
def test_a_rollback(lives: Old, end: date | None) -> None:
    retired = lives.half(OLD)
    txn_id = lives.op(OLD, "rollback", [], posted=2, reason="timeout", instance_id=5)
    lives.op(OLD, "modify", [retired], txn_id=txn_id, instance_id=5)
    lives.op(LATER, "accept", [retired])
    lives.half(OLD, b"1", txn_id)
    checkable = lives.half(OLD, b"2", txn_id)
    whole, one = _same_after_the_drop(lives, end, txn_id, checkable)
    assert sorted(whole) == [False, True, True, True, True]
    assert sorted(one) == [False, True, True]


def _marked(old: Old, original: int, near: int, to: str | None) -> int:
    """A dead letter of a message, in ``to``; or (None) what a command replayed of one."""
    make_days(old.connection, [OLD])
    address_id, half_id = old.address, near + 1 | ADMINISTRATION << 12
    if to is not None:
        half_id = near + 1
        old.connection.execute(upsert(address).values(name=to).on_conflict_do_nothing())
        address_id = old.connection.execute(select(address.c.id).where(address.c.name == to)).scalar_one()
    row = {"id": half_id, "address_id": address_id, "message": encode_symbol(ORIGINAL_ID) + encode_long(original)}
    old.connection.execute(
        insert(half).values(**row, posted_at=text("to_timestamp(:at)").bindparams(at=begin_of(OLD).timestamp() + 30))
    )
    old.connection.commit()
    return half_id


@ENDS
def test_one_retried_dead_lettered_and_replayed(lives: Old, end: date | None) -> None:
    half_id, another = lives.half(OLD, b"1"), lives.half(OLD, b"another")
    for _ in range(2):
        lives.op(OLD, "modify", [half_id], instance_id=2)
    lives.op(OLD, "dead-letter", [half_id], reason="attempts used up: 3 of 3", instance_id=2)
    letter = _marked(lives, half_id, half_id + 1_000, "%DLQ%orders")
    # nothing of its life: at the same time, of another message, or at another address
    for number, (of, to) in enumerate([(another, "%DLQ%orders"), (another, None), (half_id, "%DLQ%other")]):
        _marked(lives, of, half_id + 3_000 + 2 * number, to)
    box = insert(consumer_group).values(
        address_id=_address_of(lives, letter), created_at=text("now() - interval '60 days'")
    )
    group = lives.connection.execute(box.returning(consumer_group.c.id)).scalar_one()
    lives.connection.commit()
    lives.op(OLD, "accept", [letter], reason="replayed", group_ids=[group])
    again = _marked(lives, half_id, half_id + 2_000, None)
    lives.op(LATER, "accept", [again])
    (whole,) = _same_after_the_drop(lives, end, half_id)
    assert len(whole) == 8
    assert whole.count(False) == (0 if end is None else 1)


def _address_of(old: Old, half_id: int) -> int:
    found: int = old.connection.execute(
        text("select address_id from coordinator.half where id = :id"), {"id": half_id}
    ).scalar_one()
    return found


def test_a_group_that_is_forgotten_has_the_name_that_the_archive_has(lives: Old) -> None:
    first, second = lives.half(OLD), lives.half(OLD)
    txn_id = lives.op(OLD, "commit", [first], posted=0)
    lives.op(OLD, "reject", [second], txn_id=txn_id)
    lives.write()
    lives.drop()
    for table in ("consumer_group", "removed_group"):
        lives.connection.execute(text(f"delete from coordinator.{table}"))
    lives.connection.commit()

    def groups(what: UUID | int) -> list[str]:
        return [event["group"] for event in _told(lives, what, root=lives.root) if event["group"]]

    assert [groups(what) for what in (first, second, txn_id)] == [["orders"], ["orders"], ["orders", "orders"]]


NEVER_MADE = [
    ("transaction", "ffffffff-ffff-ffff-ffff-ffffffffffff", "was not made by this store"),
    ("transaction", "e677d21f-dbff-7000-8000-000000000000", "was not made by this store"),  # the last day of year 9999
    ("transaction", "00000000-0000-0000-0000-000000000000", "was not made by this store"),
    ("message", str((1 << 63) - 1), f"the store has no message {(1 << 63) - 1}"),
    ("message", "0", "message 0 is not known any more"),
]


def test_ids_that_nothing_can_have_are_not_known(lives: Old, database_url: str) -> None:
    lives.op(OLD, "accept", [lives.half(OLD)])
    lives.write()
    lives.drop()
    for noun, what, says in NEVER_MADE:
        done = CliRunner().invoke(app, [noun, "show", what, "--database-url", database_url])
        assert (done.exit_code, says in done.stderr) == (1, True), (what, done.stderr, done.exception)


def test_the_message_id_of_its_client_in_the_days_of_a_time(lives: Old, database_url: str) -> None:
    """One that waits is in the store and in the archive, and counts once; one has so much before its message-id that
    the store would read more of it."""
    order = Properties(message_id="order-7").encoded()
    lives.half(OLD, Properties(message_id="x", subject="order-7").encoded())
    dropped = lives.half(OLD, order)
    lives.op(OLD, "accept", [dropped])
    waits = lives.half(OLD, order, waiting=True)
    large = lives.half(LATER, section(0x72, {Symbol("x-opt-much"): "x" * 10_000}) + order)

    def run(what: str, *more: object) -> tuple[int, str]:
        bounds = ("--since", OLD, *more)
        done = CliRunner().invoke(app, ["message", "show", what, *map(str, bounds), "--database-url", database_url])
        return done.exit_code, done.output

    def found(*more: object) -> list[tuple[int, bool]]:
        status, told = run("order-7", *more, "--json")
        assert status == 0, told
        posts = [line["events"][0] for line in json.loads(told)]
        return [(post["message"], post["archived"]) for post in posts]

    assert found() == [(dropped, False), (waits, False), (large, False)]
    lives.write()
    lives.drop()
    assert found() == [(dropped, True), (waits, False), (large, True)]
    assert found("--until", OLD + timedelta(days=1)) == [(dropped, True), (waits, False)]
    assert found("--until", "9999-12-31") == found()
    assert found("--no-archive") == [(waits, False)]
    assert (
        f"the archive was not read, and has dropped days: {NAME}, {LATER.isoformat()}"
        in run("order-7", "--no-archive", "--until", LATER + timedelta(days=1))[1]
    )
    status, told = run("order-8")
    assert (status, f"the archive was read, 2 days from {NAME} to {LATER.isoformat()}" in told) == (1, True)
    status, told = run("order-8", "--no-archive")
    assert (status, f"the archive was not read, and has dropped days: {NAME}, {LATER.isoformat()}" in told) == (1, True)
    changed("half.parquet")(lives, OLD)
    assert run("order-7")[0] == 2


def _no_file(old: Old, day: date) -> None:
    (old.root / "op" / day.isoformat() / "delivery.parquet").unlink()


def _no_folder(old: Old, _: date) -> None:
    old.root.rename(old.root.with_name("away"))


DAMAGES: list[tuple[Change, str]] = [
    (changed("half.parquet"), f"half/{NAME}/half.parquet: changed; its SHA-256 is "),
    (without_manifest, f"half/{NAME}/manifest.json: No such file or directory"),
    (_no_file, f"op/{NAME}/delivery.parquet: No such file or directory"),
    (_no_folder, "archive.json: there is no such file"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGES)
def test_of_a_damaged_archive_no_timeline_is_shown(lives: Old, database_url: str, damage: Change, says: str) -> None:
    half_id = lives.half(OLD)
    lives.op(OLD, "accept", [half_id])
    lives.write()
    lives.drop()
    damage(lives, OLD)
    done = CliRunner().invoke(app, ["message", "show", str(half_id), "--database-url", database_url])
    assert (done.exit_code, done.stdout, says in done.stderr) == (2, "", True)
    assert done.stderr.endswith("; --no-archive shows what the store itself has\n")


def test_the_command_reads_the_archive_that_is_on_another_or_none(lives: Old, database_url: str) -> None:
    half_id = lives.half(OLD)
    lives.op(OLD, "accept", [half_id])
    waits = lives.half(OLD, waiting=True)
    lives.op(OLD, "release", [waits])
    lives.write()
    lives.drop()
    moved = lives.root.with_name("moved")

    def run(*arguments: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["message", "show", *map(str, arguments), "--database-url", database_url])
        return done.exit_code, done.output

    status, said = run(half_id)
    assert (status, said.count("[archive] ")) == (0, 2)
    status, said = run(waits)
    assert (status, said.count("[archive] "), "now ready" in said) == (0, 1, True)
    status, said = run(half_id + 100)
    assert (status, f"the archive's copy of {NAME} does not have it either" in said) == (1, True)
    lives.root.rename(moved)
    assert run(half_id)[0] == 2
    assert run(half_id, "--archive", moved)[0] == 0
    assert run(half_id, "--archive", moved, "--no-archive")[0] == 2
    status, said = run(half_id, "--no-archive")
    assert (status, f"coordinator archive restore {NAME}" in said) == (1, True)
    status, said = run(waits, "--no-archive")
    assert (status, f"the archive was not read, and has dropped days: {NAME}" in said) == (0, True)
