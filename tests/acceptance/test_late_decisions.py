"""Transactions whose decision waits for the store are in its list of undecided ones (``coordinator transactions``)."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_compiled import BOTH_RULES
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, Begin
from tests.held_store import nothing_is_decided
from tests.wire.checkable import accept, in_group
from tests.wire.frames import Accepted, Discharge

pytestmark = BOTH_RULES

#: The service looks each second for those that are older than one.
_ENTERED_SECONDS = 2.5


def _listed(service: Service, *states: str) -> dict[bytes, dict[str, Any]]:
    """The list once the transactions in it have these states, in their order."""
    deadline = time.monotonic() + PATIENCE
    while True:
        lines = json.loads(service.cli("transactions", "--json"))
        if [line["state"] for line in lines] == list(states):
            return {bytes.fromhex(line["txn_id"].replace("-", "")): line for line in lines}
        assert time.monotonic() < deadline, lines


@pytest.mark.rule("T8", "T9")
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("checkable", [False, True])
def test_a_discharge_that_waits_is_listed_until_it_is_decided(
    service: Service, begin: Begin, address: str, ask: Ask, checkable: bool, fail: bool
) -> None:
    session = begin()
    control, sender = in_group(session) if checkable else session.control(), session.sender(address)
    txn = control.declare()
    accept(sender, b"x", txn)
    accept(sender, b"y", txn)
    with nothing_is_decided(service) as waits:
        asked = control.request(Discharge(txn_id=txn, fail=fail))
        waits()
        (line,) = _listed(service, "deciding").values()
        assert line["posted"] == 2
        assert 0 < line["deciding_seconds"] < PATIENCE
        assert line["producer_group"] == ("shop" if checkable else None)
        assert not session.answers[asked]
    assert control.answer_to(asked).state == Accepted()
    _none_is_left(ask)
    assert json.loads(service.cli("outcome", txn.hex(), "--json"))["outcome"] == ("rollback" if fail else "commit")


@pytest.mark.rule("H7", "T14")
def test_the_others_are_open_or_left(service: Service, begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    left, control = in_group(other), session.control()
    txns = [left.declare(), control.declare()]
    accept(other.sender(address), b"x", txns[0])
    accept(session.sender(address), b"y", txns[1])
    left.detach()
    lines = _listed(service, "left", "open")
    assert list(lines) == txns
    assert [line["deciding_seconds"] for line in lines.values()] == [None, None]
    control.roll_back(txns[1])
    in_group(other).roll_back(txns[0])
    _none_is_left(ask)


@pytest.mark.rule("T8")
def test_one_that_was_listed_before_is_listed_once(service: Service, begin: Begin, address: str, ask: Ask) -> None:
    """What holds up the commit is the table of halves."""
    session = begin()
    control = session.control()
    txn = control.declare()
    accept(session.sender(address), b"x", txn)
    _listed(service, "open")
    with psycopg.connect(running_url(service.data_dir)) as holding:
        holding.execute("lock table coordinator.half in share mode")
        asked = control.request(Discharge(txn_id=txn, fail=False))
        assert list(_listed(service, "deciding")) == [txn]
    assert control.answer_to(asked).state == Accepted()
    _none_is_left(ask)


@pytest.mark.rule("T8")
def test_one_whose_entry_waits_behind_the_batch_is_listed(
    service: Service, begin: Begin, address: str, ask: Ask
) -> None:
    """It was to be entered as undecided, and was discharged before that could be written."""
    sessions = begin(), begin()
    controls = [session.control() for session in sessions]
    txns = [control.declare() for control in controls]
    senders = [session.sender(address) for session in sessions]
    accept(senders[0], b"x", txns[0])
    with nothing_is_decided(service) as waits:
        asked = [controls[0].request(Discharge(txn_id=txns[0], fail=False))]
        waits()
        accept(senders[1], b"y", txns[1])
        assert list(_listed(service, "deciding")) == txns[:1]
        time.sleep(_ENTERED_SECONDS)
        asked.append(controls[1].request(Discharge(txn_id=txns[1], fail=False)))
        assert list(_listed(service, "deciding", "deciding")) == txns
    for control, number in zip(controls, asked, strict=True):
        assert control.answer_to(number).state == Accepted()
    _none_is_left(ask)


def _none_is_left(ask: Ask) -> None:
    deadline = time.monotonic() + PATIENCE
    while ask("select from coordinator.txn"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
