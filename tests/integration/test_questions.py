"""Single questions of the service, and the connections they are asked on."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import text

from store import dead_letters as dead_letters_module
from store.asking import Query
from store.database import connected
from store.ids import HalfIds, UuidV7
from store.questions import addresses, consumer_groups, schedule
from store.tables import SCHEMA
from tests.fix_store import Rows
from tests.fix_store_driver import GROUP, ME, Asking, Truth


@pytest.mark.rule("D4")
def test_failed_entries_without_a_message_keep_no_other_from_the_dead_letters(asking: Asking, truth: Truth) -> None:
    half_id = HalfIds(ME).next()
    truth.run(
        f"insert into {SCHEMA}.entry (group_id, id, half_id, failed) "
        f"select {GROUP}, i, i, 'rejected' from generate_series(1, 300) i"
    )
    truth.run(f"insert into {SCHEMA}.half (id, address_id, message) values ({half_id}, 1, 'x')")
    truth.run(
        f"insert into {SCHEMA}.entry (group_id, id, half_id, failed) values ({GROUP}, {half_id}, {half_id}, 'rejected')"
    )
    asking.ask(dead_letters_module.lease_failed, ME)
    asking.loop.run_until(asking.answered(1))
    ((failed,),) = asking.answers
    assert (failed.group, failed.id, failed.half_id) == (GROUP, half_id, half_id)
    assert (failed.failed, failed.message) == ("rejected", b"x")


def test_addresses_are_found_by_many_names(asking: Asking, truth: Truth) -> None:
    asking.ask(addresses.find_all, ["queue", "none"])
    asking.ask(addresses.find, "queue", 3600)
    asking.loop.run_until(asking.answered(2))
    many, one = asking.answers
    assert one.routing == "queue"
    assert many == {"queue": one}


@pytest.mark.rule("P12", "D4")
def test_what_runs_out_in_the_store_does_so_by_the_policy_of_its_group(asking: Asking, rows: Rows) -> None:
    past = rows.now() - timedelta(hours=1)
    default = rows.queue("orders", on_expiry="drop")
    own = rows.queue("orders", group="billing", own={"on_expiry": "dead-letter"})
    for group in (default, own):
        rows.entry(group, expires_at=past)
    asking.ask(schedule.expire, UuidV7().next(), ME)
    asking.loop.run_until(asking.answered(1))
    assert asking.answers == [schedule.Expired(marked=1, dropped=1)]
    assert (rows.entries(default), rows.entries(own)) == ([], [(0, 0, "expired")])


@pytest.mark.rule("P12", "P18", "D3")
def test_what_waits_after_a_failure_holds_up_its_message_group_though_its_time_is_over(
    asking: Asking, rows: Rows
) -> None:
    """It is dropped when it is due, as what comes behind it goes on then; without a message group it is at once."""
    past, later = rows.now() - timedelta(hours=1), rows.now() + timedelta(hours=1)
    grouped, plain = rows.queue("orders", kind="fifo"), rows.queue("others")
    for group, key in ((grouped, -5), (plain, None)):
        rows.entry(group, expires_at=past, available_at=later, acquired=True, attempts=1, message_group=key)
    asking.ask(schedule.expire, UuidV7().next(), ME)
    asking.loop.run_until(asking.answered(1))
    assert asking.answers == [schedule.Expired(marked=0, dropped=1)]
    assert (rows.entries(grouped), rows.entries(plain)) == ([(0, 1, None)], [])


def test_limits_of_the_role_or_database_do_not_count(database_url: str, asking: Asking, truth: Truth) -> None:
    (name,) = truth.rows("select current_database()")[0]
    for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        truth.run(f"alter database {name} set {setting} = '20s'")
    shown = "select current_setting('statement_timeout'), current_setting('lock_timeout')"
    asking.queries.ask(Query(b"shown", shown, list), [], asking.answers.append)
    asking.loop.run_until(asking.answered(1))
    assert asking.answers == [[("0", "0")]]
    with connected(database_url) as connection:
        shown += ", current_setting('idle_in_transaction_session_timeout')"
        assert tuple(connection.execute(text(shown)).one()) == ("0", "0", "0")


def test_a_server_process_whose_client_is_gone_ends_though_it_waits(database_url: str, truth: Truth) -> None:
    """Else it stays until what it waits for is there, and takes a connection of the server."""
    asking = Asking(database_url)
    asking.queries.start()
    mine = "select wait_event_type from pg_stat_activity where application_name = %s"
    name = f"coordinator queries {ME}"
    with psycopg.connect(database_url) as blocker:
        blocker.execute(f"lock table {SCHEMA}.consumer_group".encode())
        asking.ask(consumer_groups.subscription_of, "none", 0)
        asking.loop.run_until(lambda: truth.rows(mine, name) == [("Lock",)])
        asking.queries.close()
        asking.loop.run_until(lambda: truth.rows(mine, name) == [])
    asking.loop.close()


def _used(truth: Truth, table: str) -> int:
    """The last of the ids that were given out."""
    (last,) = truth.rows(f"select last_value from {SCHEMA}.{table}_id_seq")[0]
    return int(last)


@pytest.mark.rule("D1", "S4")
def test_a_group_that_is_there_uses_no_id(asking: Asking, rows: Rows, truth: Truth) -> None:
    """Each attach to a named group, or to a lasting subscription, asks for it."""
    address = rows.address_of(rows.queue("orders", group="billing"))
    before = _used(truth, "consumer_group")
    for number in range(1, 4):
        asking.ask(consumer_groups.make, address, "billing", 0, 100)
        asking.loop.run_until(asking.answered(number))
    assert (len(set(asking.answers)), _used(truth, "consumer_group")) == (1, before)


@pytest.mark.rule("S4")
@pytest.mark.parametrize("table", ["address", "consumer_group"])
def test_ids_come_again_that_no_one_has(rows: Rows, truth: Truth, table: str) -> None:
    """And whose name is not remembered: halves and ops may refer to it."""
    groups = [rows.queue(name) for name in ("kept", "gone", "forgotten")]
    last = max(rows.address_of(group) if table == "address" else group for group in groups)
    remembered = {"address": "removed_address", "consumer_group": "removed_group"}[table]
    truth.run(f"delete from {SCHEMA}.address where name <> 'kept'")
    truth.run(f"delete from {SCHEMA}.{remembered} where id = {last}")
    truth.run(f"select setval('{SCHEMA}.{table}_id_seq', 2147483646)")
    made = [rows.queue(f"new {number}") for number in range(3)]
    new = [rows.address_of(group) if table == "address" else group for group in made]
    assert new == [2147483647, last, last + 1]
