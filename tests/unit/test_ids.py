"""Identifiers (``store/ids.py``) grow, whatever the clock does, and are never given twice (rule T7)."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.clock import CLOCK
from store.ids import SLOTS, HalfIds, TxnIds, UuidV7, declared_at, id_at, moment_of

#: microseconds after 2000-01-01 UTC, as moments
MOMENTS = st.integers(758937600000000, 1892160000000000).map(
    lambda micros: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
)


@given(st.integers(0, SLOTS - 1), st.lists(st.integers(0, 5000), max_size=20))
@example(3, [4095, 2])
@example(3, [4096])
def test_half_ids_taken_at_once_are_those_taken_one_by_one(slot: int, counts: list[int]) -> None:
    """Over the end of a millisecond's, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CLOCK, "now", lambda: 1.8e9)
        together, apart = HalfIds(slot), HalfIds(slot)
        for count in counts:
            assert together.take(count) == [apart.next() for _ in range(count)]
            assert together.last == apart.last


@given(st.integers(0, SLOTS - 1), st.lists(st.integers(-5_000, 5_000), max_size=20), st.integers(1, 300))
def test_half_ids_only_grow(slot: int, clock: list[int], burst: int) -> None:
    """Also over a clock that is set back, and beyond the 4,096 of a millisecond; the slot stays the instance's."""
    now = time.time()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CLOCK, "now", lambda: now)
        ids = HalfIds(slot)
        last = 0
        for step in clock:
            now += step / 1000
            ids.advance()
            for _ in range(burst):
                found = ids.next()
                assert found > last
                assert found >> 63 == 0
                assert (found >> 12) % SLOTS == slot
                last = found
        assert HalfIds((slot + 1) % SLOTS, above=last).next() > last


def test_a_full_millisecond_goes_on_in_the_next() -> None:
    """More than 4,096 without a tick of the clock: still this instance's own."""
    ids = HalfIds(5)
    found = [ids.next() for _ in range(20_000)]
    assert found == sorted(set(found))
    assert {(each >> 12) % SLOTS for each in found} == {5}


@given(MOMENTS)
def test_a_half_id_says_when(moment: datetime) -> None:
    """To the millisecond."""
    assert abs(moment_of(id_at(moment)) - moment) <= timedelta(milliseconds=1)
    assert id_at(moment) <= id_at(moment + timedelta(milliseconds=2))


@pytest.mark.rule("T7")
def test_txn_ids_are_uuids_that_grow() -> None:
    """RFC 9562, section 5.7: version 7, variant 10, Unix milliseconds first."""
    ids = TxnIds(70_000, b"secret")
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    found = [ids.next() for _ in range(10_000)]
    assert found == sorted(set(found))
    assert all(len(each) == 16 for each in found)
    assert {(uuid.UUID(bytes=each).version, uuid.UUID(bytes=each).variant) for each in found} == {(7, uuid.RFC_4122)}
    assert before <= declared_at(found[0]) <= datetime.now(UTC)


@pytest.mark.rule("T7")
def test_two_makers_of_txn_ids_make_no_two_alike() -> None:
    """Instances that start in the same millisecond."""
    makers = [TxnIds(number, b"secret") for number in range(10)]
    found = [maker.next() for _ in range(1000) for maker in makers]
    assert len(set(found)) == len(found)


@pytest.mark.rule("T7")
def test_txn_ids_over_a_clock_that_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on from where they were."""
    ids = UuidV7()
    first = ids.next()
    monkeypatch.setattr(CLOCK, "now", lambda: 1_000_000_000.0)
    assert ids.next() > first


@pytest.mark.rule("T7", "T10")
def test_a_store_knows_its_own_txn_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, again, other = TxnIds(1, b"secret"), TxnIds(2, b"secret"), TxnIds(1, b"another")
    monkeypatch.setattr(CLOCK, "now", lambda: 1_800_000_000.0)
    txn_id = ids.next()
    assert ids.genuine(txn_id)
    assert again.genuine(txn_id)
    assert not other.genuine(txn_id)
    for bit in range(128):
        assert not ids.genuine((int.from_bytes(txn_id, "big") ^ 1 << bit).to_bytes(16, "big")), bit
    assert not any(map(ids.genuine, (b"", b"x", txn_id[:-1], txn_id + b"x", bytes(16), UuidV7().next())))


@pytest.mark.rule("S3")
def test_a_txn_id_is_genuine_for_its_user_alone() -> None:
    ids = TxnIds(1, b"secret")
    users = (None, "alice", "alic", "alice ", "bob", "\U0001f600")
    for user in users:
        txn_id = ids.next(user)
        assert [each for each in users if ids.genuine(txn_id, each)] == [user]
        assert not TxnIds(1, b"another").genuine(txn_id, user)
