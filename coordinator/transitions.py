"""The life of a transaction, as a table: everything that changes its state is in here.

Part 4, sections 4.2 to 4.4; rollback-only is rules T22 and T23. The picture in ``docs/explanation/states.md`` is drawn
from this table, and a test walks it.
"""

from __future__ import annotations

from enum import Enum


class TxnState(Enum):
    ACTIVE = "active"
    ROLLBACK_ONLY = "rollback-only"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"


class TxnEvent(Enum):
    WORK_REFUSED = "work-refused"
    DISCHARGE = "discharge"
    DISCHARGE_FAIL = "discharge-fail"
    CONTROL_LOST = "control-lost"
    TIMEOUT = "timeout"
    ASKED = "asked"
    DURABLE = "durable"
    STORE_REFUSED = "store-refused"


_A, _R, _C = TxnState.ACTIVE, TxnState.ROLLBACK_ONLY, TxnState.COMMITTING
_DONE, _UNDONE = TxnState.COMMITTED, TxnState.ROLLED_BACK

#: (state, event) -> next state; a pair that is not here is refused.
TRANSACTION: dict[tuple[TxnState, TxnEvent], TxnState] = {
    (_A, TxnEvent.WORK_REFUSED): _R,
    (_A, TxnEvent.DISCHARGE): _C,
    (_A, TxnEvent.DISCHARGE_FAIL): _UNDONE,
    (_A, TxnEvent.CONTROL_LOST): _UNDONE,
    (_A, TxnEvent.TIMEOUT): _UNDONE,
    (_A, TxnEvent.ASKED): _UNDONE,
    (_R, TxnEvent.WORK_REFUSED): _R,
    (_R, TxnEvent.DISCHARGE): _UNDONE,
    (_R, TxnEvent.DISCHARGE_FAIL): _UNDONE,
    (_R, TxnEvent.CONTROL_LOST): _UNDONE,
    (_R, TxnEvent.TIMEOUT): _UNDONE,
    (_R, TxnEvent.ASKED): _UNDONE,
    # The commit is on its way to the store: nothing but the store's word changes it any more.
    (_C, TxnEvent.CONTROL_LOST): _C,
    (_C, TxnEvent.TIMEOUT): _C,
    (_C, TxnEvent.ASKED): _C,
    (_C, TxnEvent.DURABLE): _DONE,
    (_C, TxnEvent.STORE_REFUSED): _UNDONE,
    # Rolled back; its op may still be on its way to the store.
    (_UNDONE, TxnEvent.CONTROL_LOST): _UNDONE,
    (_UNDONE, TxnEvent.TIMEOUT): _UNDONE,
    (_UNDONE, TxnEvent.ASKED): _UNDONE,
}


def after(state: TxnState, event: TxnEvent) -> TxnState:
    """The next state; KeyError where the standard allows no such event."""
    return TRANSACTION[state, event]
