"""Checkable transactions of which the store could take nothing: they end as plain ones do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_compiled import BOTH_RULES
from tests.fix_service import Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import in_group, row
from tests.wire.frames import Accepted
from tests.wire.retirements import ops, soon, waiting

pytestmark = BOTH_RULES


@contextmanager
def _nothing_is_held(service: Service) -> Iterator[None]:
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as store:
        store.execute(
            "create function public.fault() returns trigger language plpgsql as "
            "$$ begin raise exception 'a fault' using errcode = 'data_exception'; end $$"
        )
        store.execute(
            "create trigger fault before insert on coordinator.pending_retirement for each row "
            "execute function public.fault()"
        )
        try:
            yield
        finally:
            store.execute("drop function public.fault cascade")


@pytest.mark.rule("H20", "T9", "T28")
@pytest.mark.parametrize("taken", [False, True], ids=["its own", "taken back"])
def test_what_could_not_be_held_fails_once_or_is_left_alone(
    service: Service, begin: Begin, address: str, ask: Ask, taken: bool
) -> None:
    session, other = begin(), begin()
    waiting(session, address, b"1")
    consumer, control = session.receiver(address, credit=1), in_group(session)
    txn = control.declare()
    before = len(service.log_lines())
    with _nothing_is_held(service):
        consumer.take().retire(txn, settled=True)
        service.wait_for(lambda line: line.get("unit") == "Hold", since=before)
    assert row(ask, txn) is None
    if taken:
        newest = "(select max(id) from coordinator.half)"
        ask(f"update coordinator.entry set lease = 1000 where half_id = {newest} returning 1")
    assert control.discharge(txn, fail=True) == Accepted()
    assert decided(ask, txn)[0] == "rollback"
    if taken:
        assert ops(ask, txn) == []
    else:
        soon(other.receiver(address, credit=1), b"1", 1)
        newest = "array(select max(id) from coordinator.half)"
        assert ask(f"select decision from coordinator.op where half_ids = {newest}") == [("modify",)]
