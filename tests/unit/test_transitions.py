"""The life of a transaction (``coordinator/transitions.py``): every walk through the table ends decided, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.transitions import TRANSACTION, TxnEvent, TxnState, after

DECIDED = {TxnState.COMMITTED, TxnState.ROLLED_BACK}


@pytest.mark.rule("T11")
def test_what_is_decided_stays_so() -> None:
    """Part 4, section 4.3: no event leads out of a decision."""
    leads_to = [(state, target) for (state, _), target in TRANSACTION.items() if state in DECIDED]
    assert leads_to
    assert all(target is state for state, target in leads_to)


@pytest.mark.rule("T22", "T23")
def test_what_can_only_roll_back_never_commits() -> None:
    """Part 4, section 4.4.4."""
    reached = {TxnState.ROLLBACK_ONLY}
    for _ in TxnState:
        reached |= {target for (state, _), target in TRANSACTION.items() if state in reached}
    assert reached == {TxnState.ROLLBACK_ONLY, TxnState.ROLLED_BACK}


@pytest.mark.rule("T8")
def test_committed_is_what_the_store_says() -> None:
    """Part 4, section 4.3: only the store's word makes a commit."""
    ways = {key for key, target in TRANSACTION.items() if target is TxnState.COMMITTED}
    assert ways == {(TxnState.COMMITTING, TxnEvent.DURABLE)}


@pytest.mark.rule("T13", "T14")
@pytest.mark.parametrize("event", [TxnEvent.CONTROL_LOST, TxnEvent.TIMEOUT])
@pytest.mark.parametrize("state", [state for state in TxnState if state is not TxnState.COMMITTED])
def test_a_lost_link_and_a_timeout_may_come_at_any_time(state: TxnState, event: TxnEvent) -> None:
    """Undecided: rolled back; on its way to the store: left alone."""
    open_still = state in (TxnState.ACTIVE, TxnState.ROLLBACK_ONLY)
    assert after(state, event) is (TxnState.ROLLED_BACK if open_still else state)


@given(st.lists(st.sampled_from(TxnEvent), max_size=30))
def test_any_walk(events: list[TxnEvent]) -> None:
    """Events that a state does not allow are refused, and change nothing; every state can still be ended."""
    state = TxnState.ACTIVE
    for event in events:
        try:
            state = after(state, event)
        except KeyError:
            continue
    for event in (TxnEvent.DISCHARGE, TxnEvent.DURABLE):
        if (state, event) in TRANSACTION:
            state = after(state, event)
    assert state in DECIDED
