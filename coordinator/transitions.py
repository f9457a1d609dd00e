"""Transitions of transactions and deliveries are tables of all their states and events.

Transactions: part 4, sections 4.2 to 4.4; rollback-only is rules T22 and T23, checkable H2 to H7. Deliveries: part 3,
section 3.4, and rules T26 to T30, D5, D10. The pictures in ``docs/explanation/states.md`` are drawn from these tables,
and a test walks each cell.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class TxnState(Enum):
    """The states of a transaction at the instance that declared it."""

    #: Faster than Enum's own hash, that of the name: each transition looks up a state and an event.
    __hash__ = object.__hash__

    ACTIVE = "active"
    ROLLBACK_ONLY = "rollback-only"
    #: discharged, while posts in it wait for their addresses
    WAITING = "waiting"
    #: waiting, and rollback-only
    WAITING_REFUSED = "waiting-refused"
    #: active, and its messages are in the store (H2, H3)
    CHECKABLE = "checkable"
    #: discharged, while posts in it are on their way to the store or wait for their addresses
    WAITING_CHECKABLE = "waiting-checkable"
    #: undecided in the store, and forgotten by this instance: its producer group decides it
    LEFT = "left"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"


class TxnEvent(Enum):
    __hash__ = object.__hash__

    WORK_REFUSED = "work-refused"
    #: a message of it names its producer group, or goes to an address of kind transaction
    MADE_CHECKABLE = "made-checkable"
    #: a discharge, while posts wait for their addresses
    DISCHARGE_EARLY = "discharge-early"
    DISCHARGE = "discharge"
    DISCHARGE_FAIL = "discharge-fail"
    CONTROL_LOST = "control-lost"
    TIMEOUT = "timeout"
    ASKED = "asked"
    DURABLE = "durable"
    STORE_REFUSED = "store-refused"


#: global names, as each access by the class costs a tenth of a microsecond
(
    ACTIVE, ROLLBACK_ONLY, WAITING, WAITING_REFUSED, CHECKABLE, WAITING_CHECKABLE, LEFT, COMMITTING, COMMITTED,
    ROLLED_BACK,
) = TxnState  # fmt: skip

_A, _R, _C = ACTIVE, ROLLBACK_ONLY, COMMITTING
_W, _WR = WAITING, WAITING_REFUSED
_CH, _WCH = CHECKABLE, WAITING_CHECKABLE
_DONE, _UNDONE = COMMITTED, ROLLED_BACK

#: (state, event) -> next state; a missing pair is refused.
TRANSACTION: dict[tuple[TxnState, TxnEvent], TxnState] = {
    (_A, TxnEvent.WORK_REFUSED): _R,
    (_A, TxnEvent.DISCHARGE_EARLY): _W,
    (_A, TxnEvent.DISCHARGE): _C,
    (_A, TxnEvent.DISCHARGE_FAIL): _UNDONE,
    (_A, TxnEvent.CONTROL_LOST): _UNDONE,
    (_A, TxnEvent.TIMEOUT): _UNDONE,
    (_A, TxnEvent.ASKED): _UNDONE,
    (_R, TxnEvent.WORK_REFUSED): _R,
    (_R, TxnEvent.DISCHARGE_EARLY): _WR,
    (_R, TxnEvent.DISCHARGE): _UNDONE,
    (_R, TxnEvent.DISCHARGE_FAIL): _UNDONE,
    (_R, TxnEvent.CONTROL_LOST): _UNDONE,
    (_R, TxnEvent.TIMEOUT): _UNDONE,
    (_R, TxnEvent.ASKED): _UNDONE,
    # The discharge takes effect when the last of the posts has its address.
    (_W, TxnEvent.WORK_REFUSED): _WR,
    (_W, TxnEvent.DISCHARGE): _C,
    (_W, TxnEvent.DISCHARGE_FAIL): _UNDONE,
    (_W, TxnEvent.CONTROL_LOST): _UNDONE,
    (_W, TxnEvent.TIMEOUT): _UNDONE,
    (_W, TxnEvent.ASKED): _UNDONE,
    (_WR, TxnEvent.WORK_REFUSED): _WR,
    (_WR, TxnEvent.DISCHARGE): _UNDONE,
    (_WR, TxnEvent.DISCHARGE_FAIL): _UNDONE,
    (_WR, TxnEvent.CONTROL_LOST): _UNDONE,
    (_WR, TxnEvent.TIMEOUT): _UNDONE,
    (_WR, TxnEvent.ASKED): _UNDONE,
    # A checkable transaction is rolled back only by its discharge, or if it is rollback-only.
    (_A, TxnEvent.MADE_CHECKABLE): _CH,
    (_W, TxnEvent.MADE_CHECKABLE): _WCH,
    (_CH, TxnEvent.WORK_REFUSED): _R,
    (_CH, TxnEvent.DISCHARGE_EARLY): _WCH,
    (_CH, TxnEvent.DISCHARGE): _C,
    (_CH, TxnEvent.DISCHARGE_FAIL): _UNDONE,
    (_CH, TxnEvent.CONTROL_LOST): LEFT,
    (_CH, TxnEvent.TIMEOUT): _CH,
    (_CH, TxnEvent.ASKED): _CH,
    (_WCH, TxnEvent.WORK_REFUSED): _WR,
    (_WCH, TxnEvent.DISCHARGE): _C,
    (_WCH, TxnEvent.DISCHARGE_FAIL): _UNDONE,
    (_WCH, TxnEvent.CONTROL_LOST): LEFT,
    (_WCH, TxnEvent.TIMEOUT): _WCH,
    (_WCH, TxnEvent.ASKED): _WCH,
    (LEFT, TxnEvent.CONTROL_LOST): LEFT,
    (LEFT, TxnEvent.TIMEOUT): LEFT,
    (LEFT, TxnEvent.ASKED): LEFT,
    # The commit is on its way to the store: only the store's answer changes the state.
    (_C, TxnEvent.CONTROL_LOST): _C,
    (_C, TxnEvent.TIMEOUT): _C,
    (_C, TxnEvent.ASKED): _C,
    (_C, TxnEvent.DURABLE): _DONE,
    (_C, TxnEvent.STORE_REFUSED): _UNDONE,
    # Rolled back, while its op may be on its way to the store. If the store refuses the op, it has one already, or
    # gets one without the work.
    (_UNDONE, TxnEvent.CONTROL_LOST): _UNDONE,
    (_UNDONE, TxnEvent.TIMEOUT): _UNDONE,
    (_UNDONE, TxnEvent.ASKED): _UNDONE,
    (_UNDONE, TxnEvent.DURABLE): _UNDONE,
    (_UNDONE, TxnEvent.STORE_REFUSED): _UNDONE,
}


def after(state: TxnState, event: TxnEvent) -> TxnState:
    """Return the next state; KeyError if the standard does not allow the event."""
    return TRANSACTION[state, event]


def _after_txn(event: TxnEvent) -> dict[TxnState, TxnState]:
    return {state: after for (state, each), after in TRANSACTION.items() if each is event}


#: next states for the events of every transaction, at a fifth of the time
AFTER_DISCHARGE, AFTER_DURABLE = _after_txn(TxnEvent.DISCHARGE), _after_txn(TxnEvent.DURABLE)


class DeliveryState(StrEnum):
    """The states of a delivery at the instance that leased its entry."""

    #: leased to this instance, and on no link
    HELD = "held"
    SENT = "sent"
    #: retired in a transaction that is undecided
    ENLISTED = "enlisted"
    #: its outcome is on its way to the store
    DECIDED = "decided"
    #: no longer at this instance: it is in the store, or deleted
    GONE = "gone"


class DeliveryEvent(StrEnum):
    SEND = "send"
    #: it cannot be sent: it has expired (P12), or cannot be decoded
    UNSENT = "unsent"
    #: an outcome outside transactions, or a settlement without one
    OUTCOME = "outcome"
    #: an outcome in a transaction
    RETIRE = "retire"
    LINK_LOST = "link-lost"
    #: its transaction was rolled back, and the peer has not settled it (T27)
    KEPT = "kept"
    #: returned to the window: an outcome that keeps it is durable, or the store has refused its outcome
    BACK = "back"
    #: an outcome that completes it is durable, or it returns to the store
    LEAVES = "leaves"


SEND, UNSENT, OUTCOME, RETIRE, LINK_LOST, KEPT, BACK, LEAVES = DeliveryEvent
HELD, SENT, ENLISTED, DECIDED, GONE = DeliveryState

#: (state, event) -> next state; a missing pair is refused.
DELIVERY: dict[tuple[DeliveryState, DeliveryEvent], DeliveryState] = {
    (HELD, SEND): SENT,
    (HELD, UNSENT): DECIDED,
    (HELD, LEAVES): GONE,
    (SENT, UNSENT): DECIDED,
    (SENT, OUTCOME): DECIDED,
    (SENT, RETIRE): ENLISTED,
    (SENT, LINK_LOST): DECIDED,
    # Its transaction decides; a later outcome replaces the previous one (T26, T29).
    (ENLISTED, OUTCOME): ENLISTED,
    (ENLISTED, RETIRE): ENLISTED,
    (ENLISTED, LINK_LOST): ENLISTED,
    (ENLISTED, KEPT): SENT,
    (ENLISTED, BACK): HELD,
    (ENLISTED, LEAVES): GONE,
    # Any further outcome has no effect.
    (DECIDED, OUTCOME): DECIDED,
    (DECIDED, RETIRE): DECIDED,
    (DECIDED, LINK_LOST): DECIDED,
    (DECIDED, BACK): HELD,
    (DECIDED, LEAVES): GONE,
}


def _after(event: DeliveryEvent) -> dict[DeliveryState, DeliveryState]:
    return {state: after for (state, each), after in DELIVERY.items() if each is event}


#: next states for the events of every message
AFTER_SEND, AFTER_RETIRE, AFTER_LEAVES = _after(SEND), _after(RETIRE), _after(LEAVES)
