"""Asking what became of a transaction decides it, and no answer is given that may change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from unittest.mock import Mock
from uuid import UUID

import psycopg
import pytest

from store import decisions, partitions
from store.database import connected
from store.decisions import MOST_WAITING, Decision, Decisions, Undecided
from store.embedded.server import EmbeddedServer
from store.errors import AddressGone, StoreError, StoreUnavailable
from store.ids import HalfIds, UuidV7
from store.tables import SCHEMA
from tests.fix_loop import EpollLoop
from tests.fix_proxy import Proxy
from tests.fix_store_driver import ME, WAIT_FOR_STANDBY, Truth, let_commits_wait

OTHER = 9
ROLLED_BACK = Decision("rollback", "asked")


class Asker:
    """Questions in a loop of their own; ``heard``: the answers in their order."""

    def __init__(self, url: str) -> None:
        self.loop = EpollLoop()
        self.decisions = Decisions(self.loop, url, ME)
        self.decisions.start()
        self.heard: list[tuple[bytes, Decision | Undecided | StoreError | None]] = []

    def ask(self, txn_id: bytes) -> None:
        self.decisions.ask(txn_id, lambda found: self.heard.append((txn_id, found)))

    def answer(self, txn_id: bytes) -> Decision | Undecided | StoreError | None:
        seen = len(self.heard)
        self.ask(txn_id)
        self.loop.run_until(lambda: len(self.heard) > seen)
        return self.heard[-1][1]

    def close(self) -> None:
        self.decisions.close()
        self.loop.close()


@pytest.fixture
def asker(database_url: str) -> Iterator[Asker]:
    asker = Asker(database_url)
    yield asker
    asker.close()


@pytest.fixture
def txn_id() -> bytes:
    return UuidV7().next()


def _decide(connection: psycopg.Connection, txn_id: bytes, decision: str) -> None:
    connection.execute(
        f"insert into {SCHEMA}.op (id, decision, txn_id, posted, instance_id) values (%s, %s, %s, 1, %s)".encode(),
        (UUID(bytes=txn_id), decision, UUID(bytes=txn_id), OTHER),
    )


def _ops(truth: Truth) -> list[tuple[bytes, str, str | None]]:
    return [(row[0].bytes, *row[1:]) for row in truth.rows(f"select id, decision, reason from {SCHEMA}.op order by id")]


def _waits(truth: Truth) -> bool:
    """The asker's connection, for a lock."""
    waiting = "select 1 from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
    return bool(truth.rows(waiting, f"coordinator decisions {ME}"))


@pytest.mark.rule("T11")
def test_what_has_no_decision_is_rolled_back_by_the_question(asker: Asker, truth: Truth, txn_id: bytes) -> None:
    assert asker.answer(txn_id) == ROLLED_BACK
    assert _ops(truth) == [(txn_id, "rollback", "asked")]
    assert asker.answer(txn_id) == ROLLED_BACK


@pytest.mark.rule("T11")
@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_the_decision_that_is_there_is_told(asker: Asker, database_url: str, txn_id: bytes, decision: str) -> None:
    with psycopg.connect(database_url) as other:
        _decide(other, txn_id, decision)
    assert asker.answer(txn_id) == Decision(decision, "")


@pytest.mark.rule("T11")
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_decision_under_way_is_waited_for_and_holds_up_no_other_question(
    asker: Asker, truth: Truth, database_url: str, txn_id: bytes, ends: str
) -> None:
    with psycopg.connect(database_url) as other:
        _decide(other, txn_id, "commit")
        asker.ask(txn_id)
        asker.loop.run_until(lambda: _waits(truth))
        for _ in range(3):
            assert asker.answer(UuidV7().next()) == ROLLED_BACK
        assert txn_id not in dict(asker.heard)
        if ends == "rollback":
            other.rollback()
    asker.loop.run_until(lambda: txn_id in dict(asker.heard))
    assert dict(asker.heard)[txn_id] == (Decision("commit", "") if ends == "commit" else ROLLED_BACK)


@pytest.mark.rule("T11", "H5", "H20")
@pytest.mark.parametrize("listed", [False, True], ids=["its first row", "listed as a plain one"])
def test_a_question_beside_the_first_half_leaves_the_transaction_undecided(
    asker: Asker, truth: Truth, database_url: str, txn_id: bytes, listed: bool
) -> None:
    """The batch that makes it checkable is under way: the question waits for it, and for no other question."""
    assert asker.answer(UuidV7().next()) == ROLLED_BACK
    row = (
        f"insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired, producer_group) "
        "values (%s, %s, 'client', now(), now(), 0, 0, %s) "
        "on conflict (id) do update set producer_group = excluded.producer_group returning 1"
    )
    for _ in range(listed):
        truth.rows(row, UUID(bytes=txn_id), OTHER, None)
    with psycopg.connect(database_url) as other:
        other.execute(row.encode(), (UUID(bytes=txn_id), OTHER, "shop"))
        asker.ask(txn_id)
        asker.loop.run_until(lambda: _waits(truth) or len(asker.heard) > 1)
        assert asker.answer(UuidV7().next()) == ROLLED_BACK
        assert txn_id not in dict(asker.heard)
    asker.loop.run_until(lambda: txn_id in dict(asker.heard))
    assert dict(asker.heard)[txn_id] == Undecided("shop")
    assert txn_id not in truth.ops()


@pytest.mark.rule("T11")
def test_a_question_leaves_no_row_of_an_undecided_transaction(asker: Asker, truth: Truth, txn_id: bytes) -> None:
    assert asker.answer(txn_id) == ROLLED_BACK
    assert truth.rows(f"select * from {SCHEMA}.txn") == []


@pytest.mark.rule("T10", "H16")
def test_what_is_older_than_decisions_are_kept_is_not_decided(asker: Asker, truth: Truth, txn_id: bytes) -> None:
    truth.run(f"insert into {SCHEMA}.retention (table_name, kept_from) values ('op', now()::date + 2)")
    assert asker.answer(txn_id) is None
    assert _ops(truth) == []
    truth.run(f"update {SCHEMA}.retention set kept_from = now()::date - 1")
    assert asker.answer(txn_id) == ROLLED_BACK


@pytest.mark.rule("T11")
def test_a_question_whose_connection_is_lost_is_asked_again(proxy: Proxy, truth: Truth, txn_id: bytes) -> None:
    asker = Asker(proxy.url)
    assert asker.answer(UuidV7().next()) == ROLLED_BACK
    with proxy.held("replies"):
        asker.ask(txn_id)
        asker.loop.run_until(lambda: txn_id in truth.ops())
        proxy.cut()
    asker.loop.run_until(lambda: len(asker.heard) == 2)
    assert asker.heard[1] == (txn_id, ROLLED_BACK)
    asker.close()


@pytest.mark.rule("T11")
def test_a_question_that_waits_too_long_is_told_so_and_nothing_is_said_for_it(
    proxy: Proxy, truth: Truth, txn_id: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is under way, the other waits behind it."""
    asker = Asker(proxy.url)
    assert asker.answer(UuidV7().next()) == ROLLED_BACK
    monkeypatch.setattr(decisions, "LONGEST_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(decisions, "_LOOK_SECONDS", 0.1)
    behind = UuidV7().next()
    with proxy.held("replies"):
        asker.ask(txn_id)
        asker.ask(behind)
        asker.loop.run_until(lambda: len(asker.heard) == 3)
    assert [asked for asked, _ in asker.heard[1:]] == [txn_id, behind]
    assert all(isinstance(said, StoreUnavailable) for _, said in asker.heard[1:])
    monkeypatch.undo()
    assert asker.answer(txn_id) == ROLLED_BACK
    assert asker.answer(behind) == ROLLED_BACK
    assert len(asker.heard) == 5
    asker.close()


@pytest.mark.rule("T11")
def test_it_is_connected_before_the_first_question(asker: Asker) -> None:
    """With the connections used up later, there is an answer."""
    asker.loop.run_until(lambda: asker.decisions.connection.up)


def test_questions_that_wait_are_bounded(asker: Asker) -> None:
    ids = UuidV7()
    for _ in range(MOST_WAITING):
        asker.ask(ids.next())
    assert not asker.heard
    asker.ask(ids.next())
    assert isinstance(asker.heard[0][1], StoreUnavailable)


@pytest.mark.rule("T8", "T11")
def test_a_decision_that_no_standby_has_is_not_told(own_server: tuple[EmbeddedServer, str], txn_id: bytes) -> None:
    """It can be seen, as the server process that waited for the standby was ended."""
    _, url = own_server
    with connected(url) as connection:
        partitions.make_ahead(connection)
    truth = Truth(url)
    let_commits_wait(truth, url)
    asker = Asker(url)

    def commit() -> None:
        try:
            with psycopg.connect(url) as other:
                _decide(other, txn_id, "commit")
        except psycopg.OperationalError:
            pass  # ended while it waited

    committing = threading.Thread(target=commit)
    committing.start()
    asker.loop.run_until(lambda: truth.rows(WAIT_FOR_STANDBY))
    truth.run(f"select pg_terminate_backend(pid) from ({WAIT_FOR_STANDBY}) w")
    committing.join()
    assert txn_id in truth.ops()
    asker.ask(txn_id)
    asker.loop.run_until(lambda: truth.rows(WAIT_FOR_STANDBY))
    asker.loop.run_for(0.5)
    assert not asker.heard
    truth.run("alter system reset synchronous_standby_names")
    truth.run("select pg_reload_conf()")
    asker.loop.run_until(lambda: asker.heard)
    assert asker.heard == [(txn_id, Decision("commit", ""))]
    asker.close()
    truth.close()


@pytest.fixture
def checkable(truth: Truth) -> bytes:
    """A checkable transaction with one half."""
    return _checkable(truth)


#: one for all: two that begin in the same millisecond give the same
_half_ids = HalfIds(ME)


def _checkable(truth: Truth, address: int = 1) -> bytes:
    txn_id, half_id = UuidV7().next(), _half_ids.next()
    truth.run(
        f"insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired, producer_group) "
        f"values ('{txn_id.hex()}', {ME}, 'client', now(), now(), 1, 0, 'shop'); "
        f"insert into {SCHEMA}.half (id, txn_id, address_id, message) "
        f"values ({half_id}, '{txn_id.hex()}', {address}, 'x'); "
        f"insert into {SCHEMA}.pending (txn_id, half_id, address_id) values ('{txn_id.hex()}', {half_id}, {address})"
    )
    return txn_id


def _decision(asker: Asker, txn_id: bytes, decision: str) -> Decision | Undecided | StoreError | None:
    seen = len(asker.heard)
    asker.decisions.decide(txn_id, decision, "checked", lambda found: asker.heard.append((txn_id, found)))
    asker.loop.run_until(lambda: len(asker.heard) > seen)
    return asker.heard[-1][1]


@pytest.mark.rule("H5", "H8")
@pytest.mark.parametrize(("first", "second"), [("commit", "rollback"), ("rollback", "commit")])
def test_the_first_decision_of_a_checkable_transaction_is_told_to_all(
    asker: Asker, truth: Truth, checkable: bytes, first: str, second: str
) -> None:
    assert _decision(asker, checkable, first) == Decision(first, "checked")
    assert _decision(asker, checkable, second) == Decision(first, "checked")
    assert asker.answer(checkable) == Decision(first, "checked")
    assert truth.rows(f"select instance_id from {SCHEMA}.op") == [(ME,)]
    assert len(truth.entries()) == (first == "commit")


@pytest.mark.rule("H8")
def test_what_is_not_known_is_not_decided(asker: Asker, truth: Truth, txn_id: bytes) -> None:
    assert _decision(asker, txn_id, "commit") is None
    assert _ops(truth) == []


@pytest.mark.rule("H8")
def test_a_commit_to_an_address_that_is_gone(asker: Asker, truth: Truth, checkable: bytes) -> None:
    truth.run(f"delete from {SCHEMA}.address")
    assert isinstance(_decision(asker, checkable, "commit"), AddressGone)
    assert _ops(truth) == []
    assert _decision(asker, checkable, "rollback") == Decision("rollback", "checked")


def _decide_all(asker: Asker, wanted: dict[bytes, str]) -> None:
    """Ask for all at once; their answers are heard."""
    asker.loop.run_until(lambda: asker.decisions.connection.idle)
    for txn_id, decision in wanted.items():
        asker.decisions.decide(txn_id, decision, "checked", partial(_hear, asker, txn_id))
    asker.loop.run_until(lambda: len(asker.heard) == len(wanted))


def _hear(asker: Asker, txn_id: bytes, found: Decision | StoreError | None) -> None:
    asker.heard.append((txn_id, found))


@pytest.mark.rule("H8", "H12")
def test_decisions_that_wait_go_to_the_store_together(asker: Asker, truth: Truth, txn_id: bytes) -> None:
    """In one SQL transaction, but for the first, which was alone when it came."""
    txns = [_checkable(truth) for _ in range(6)]
    truth.run(f"select {SCHEMA}.decide('{txns[3].hex()}', 'commit', 'by hand')")
    wanted = {each: "rollback" if number % 2 else "commit" for number, each in enumerate(txns)} | {txn_id: "commit"}
    _decide_all(asker, wanted)
    expected = {each: Decision(decision, "checked") for each, decision in wanted.items()}
    assert dict(asker.heard) == expected | {txns[3]: Decision("commit", "by hand"), txn_id: None}
    written = f"select distinct written_xid from {SCHEMA}.op where reason = 'checked'"
    assert len(truth.rows(written)) == 2
    assert len(truth.entries()) == 4


@pytest.mark.rule("H11")
def test_one_that_is_locked_or_cannot_be_committed_stops_no_decision_that_waits_with_it(
    asker: Asker, truth: Truth, database_url: str
) -> None:
    txns = [_checkable(truth) for _ in range(4)]
    gone = _checkable(truth, address=4711)
    locked = txns[2]
    with psycopg.connect(database_url) as other:
        other.execute(f"select from {SCHEMA}.txn where id = %s for update".encode(), [UUID(bytes=locked)])
        asker.loop.run_until(lambda: asker.decisions.connection.idle)
        for txn_id in (*txns[:2], gone, *txns[2:]):
            asker.decisions.decide(txn_id, "commit", "checked", partial(_hear, asker, txn_id))
        asker.loop.run_until(lambda: len(asker.heard) == 4)
        assert locked not in dict(asker.heard)
    asker.loop.run_until(lambda: len(asker.heard) == 5)
    heard = dict(asker.heard)
    assert isinstance(heard.pop(gone), AddressGone)
    assert heard == dict.fromkeys(txns, Decision("commit", "checked"))


@pytest.mark.rule("T11", "H11", "X3")
def test_one_that_comes_after_many_that_are_locked_waits_for_one_of_them(
    asker: Asker, truth: Truth, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As commits of applications hold them that take long. They have their turns between others."""
    locked = [_checkable(truth) for _ in range(5)]
    sent = Mock(wraps=asker.decisions.connection.execute)
    monkeypatch.setattr(asker.decisions.connection, "execute", sent)
    with psycopg.connect(database_url) as other:
        other.execute(f"select from {SCHEMA}.txn for update".encode())
        for txn_id in locked:
            asker.decisions.decide(txn_id, "commit", "checked", partial(_hear, asker, txn_id))
        asker.loop.run_until(lambda: sent.call_count > 2 * len(locked) and _waits(truth))
        for _ in range(3):
            before = sent.call_count
            assert asker.answer(UuidV7().next()) == ROLLED_BACK
            names = [call.args[0] for call in sent.call_args_list[before:]]
            assert names.count(b"decide_as") <= 1, "one more of them at most, while the answer is read"
            asker.loop.run_until(lambda: _waits(truth))
        assert set(dict(asker.heard)).isdisjoint(locked)
    asker.loop.run_until(lambda: len(asker.heard) == 3 + len(locked))


@pytest.mark.rule("H8", "H11")
def test_of_those_decided_together_the_one_that_cannot_be_committed_alone_is_told_so(
    asker: Asker, truth: Truth
) -> None:
    txns, gone = [_checkable(truth) for _ in range(3)], _checkable(truth, address=4711)
    _decide_all(asker, dict.fromkeys((*txns[:2], gone, txns[2]), "commit"))
    heard = dict(asker.heard)
    assert isinstance(heard.pop(gone), AddressGone)
    assert heard == dict.fromkeys(txns, Decision("commit", "checked"))


@pytest.mark.rule("H5")
def test_two_decisions_of_one_transaction_that_wait_together(asker: Asker, truth: Truth, checkable: bytes) -> None:
    others = [_checkable(truth) for _ in range(2)]
    asker.loop.run_until(lambda: asker.decisions.connection.idle)
    rivals = ((others[0], "commit"), (checkable, "rollback"), (others[1], "commit"), (checkable, "commit"))
    for txn_id, decision in rivals:
        asker.decisions.decide(txn_id, decision, "checked", partial(_hear, asker, txn_id))
    asker.loop.run_until(lambda: len(asker.heard) == 4)
    assert [found for txn_id, found in asker.heard if txn_id == checkable] == [Decision("rollback", "checked")] * 2


@pytest.mark.rule("H11")
def test_a_defect_of_one_asker_costs_no_other_its_answer(asker: Asker, truth: Truth) -> None:
    txns = [_checkable(truth) for _ in range(4)]
    asker.loop.contained = []

    def broken(found: Decision | StoreError | None) -> None:
        raise ValueError(found)

    asker.loop.run_until(lambda: asker.decisions.connection.idle)
    for txn_id in txns:
        found = broken if txn_id == txns[2] else partial(_hear, asker, txn_id)
        asker.decisions.decide(txn_id, "commit", "checked", found)
    asker.loop.run_until(lambda: len(asker.heard) == 3)
    assert len(asker.loop.contained) == 1
