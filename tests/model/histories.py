"""Histories that went wrong once, as they were found and made short, and those that break a rule of posting or of
retirement where chance seldom comes. Both levels replay them."""

from __future__ import annotations

from tests.model.state import GROUPS, QUEUE_KINDS
from tests.model.steps import (
    NEVER_DECLARED,
    AttachControl,
    AttachReceiver,
    AttachSender,
    Check,
    ComeDue,
    Crash,
    Decide,
    Declare,
    Detach,
    Discharge,
    Open,
    Outcome,
    Post,
    Retire,
    Settle,
    Step,
    Take,
)

_LINKS: list[Step] = [Open(0), AttachControl(0, 0), AttachSender(1, 0, 0), AttachReceiver(2, 0, 0, session=1)]
_DELAY, _TRANSACTION = QUEUE_KINDS.index("delay"), QUEUE_KINDS.index("transaction")
_TO_KINDS: list[Step] = [
    Open(0),
    AttachControl(0, 0),
    AttachSender(1, 0, 0),
    AttachSender(2, 0, _DELAY),
    AttachSender(3, 0, _TRANSACTION),
    AttachSender(4, 0, None),
]
_LINKS_AGAIN: list[Step] = [Open(0), AttachSender(4, 0, 0), AttachReceiver(5, 0, 0, session=1)]
_ONE_TAKEN: list[Step] = [*_LINKS, Post(1, 1), Take(2, 1), Declare(0, 0)]
_ONE_HELD: list[Step] = [
    Open(0),
    AttachControl(0, 0, group=0),
    AttachSender(1, 0, 0),
    AttachReceiver(2, 0, 0, session=1),
    Post(1, 1),
    Take(2, 1),
    Declare(0, 0),
    Retire(2, 0, 0, txn=0, settled=False),
    Settle(),
]

HISTORIES: dict[str, list[Step]] = {
    # T30: it was another delivery that the transaction had part in
    "a message that came again is no part of the transaction that let it go": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, txn=0),
        Discharge(0, 0, fail=True),
        Take(2, 1),
        Retire(2, 1, 1, txn=0),
    ],
    # T28, T29: else it is leased and never delivered again
    "a delivery settled under a second transaction is settled": [
        *_ONE_TAKEN,
        AttachControl(3, 0),
        Declare(3, 1),
        Retire(2, 0, 0, txn=0, settled=False),
        Retire(2, 0, 0, txn=1, settled=True),
        Discharge(0, 0, fail=True),
        Take(2, 1),
    ],
    # P11
    "an outcome that was not taken leaves nothing to the next": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, txn=0, settled=False),
        Retire(2, 0, 0, Outcome.FAILED, settled=False),
        Detach(0),
        Retire(2, 0, 0, Outcome.MARKED, settled=False),
        Take(2, 1),
    ],
    # P11: the engine keeps the annotations for a later modified without any
    "annotations that were not taken leave nothing to the next": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, Outcome.MARKED, txn=0, settled=False),
        Retire(2, 0, 0, Outcome.MARKED, settled=False),
        Discharge(0, 0, fail=True),
        Retire(2, 0, 0, Outcome.ELSEWHERE),
    ],
    # D5: the receiver that comes finds the newer one in memory, the older one is in the store
    "what came back goes first, wherever it is": [
        *_LINKS,
        Post(1, 1),
        Take(2, 1),
        Post(1, 2),
        Detach(2),
        AttachReceiver(3, 0, 0),
        Take(3, 2),
    ],
    # P11: among other instances it was taken for what the consumer waits for
    "what a consumer has refused does not keep the next one from it": [
        *_LINKS,
        Post(1, 1),
        Post(1, 2),
        Take(2, 1),
        Retire(2, 0, 0, Outcome.ELSEWHERE),
        Take(2, 1),
    ],
    # P11: after a while, beside other instances, entries that no consumer takes go back to the store
    "what a consumer has refused does not come to it by way of the store": [
        *_LINKS,
        AttachControl(3, 0, hasty=True),
        Post(1, 1),
        Take(2, 1),
        Retire(2, 0, 0, Outcome.ELSEWHERE),
        Settle(),
        Declare(3, 0),
        Take(2, 1),
    ],
    # T27
    "a rollback leaves a delivery with its consumer": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, txn=0, settled=False),
        Discharge(0, 0, fail=True),
        Settle(),
        AttachReceiver(3, 0, 0),
        Take(3, 1),
    ],
    # T28
    "a plain settlement of what is enlisted counts at the rollback": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, txn=0, settled=False),
        Retire(2, 0, 0),
        Discharge(0, 0, fail=True),
        Take(2, 1),
    ],
    # T28, T34: the default outcome, and not the one that the settlement names
    "a settlement that names the transaction that was rolled back is one": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, txn=0, settled=False),
        Discharge(0, 0, fail=True),
        Settle(),
        Retire(2, 0, 0, txn=0),
        Take(2, 1),
    ],
    # T29
    "a second undecided transaction ends itself and leaves the first": [
        *_ONE_TAKEN,
        AttachControl(3, 0),
        Declare(3, 1),
        Retire(2, 0, 0, txn=0, settled=False),
        Retire(2, 0, 0, Outcome.RELEASED, txn=1, settled=False),
        Discharge(0, 0),
        Settle(),
        AttachReceiver(4, 0, 0),
        Take(4, 1),
    ],
    # T29, H5: else a checker commits it without the retirement
    "a second undecided transaction that is checkable rolls back": [
        *_ONE_HELD,
        AttachControl(3, 0, group=0),
        Declare(3, 1),
        Post(1, 2, txn=1),
        Settle(),
        Retire(2, 0, 0, Outcome.RELEASED, txn=1, settled=False),
        Settle(),
        Check(0, commit=True),
        Discharge(0, 0),
        Settle(),
        Take(2, 1),
    ],
    # T29
    "the later outcome in one transaction holds": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, Outcome.RELEASED, txn=0, settled=False),
        Retire(2, 0, 0, txn=0),
        Discharge(0, 0),
        Settle(),
        Take(2, 1),
    ],
    # T30
    "a transaction that was never declared detaches the link and applies nothing": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, txn=NEVER_DECLARED),
        Settle(),
        AttachReceiver(3, 0, 0),
        Take(3, 1),
    ],
    # T23
    "an unsettled post that is refused leaves nothing but a rollback": [
        *_LINKS,
        Declare(0, 0),
        Post(1, 1, txn=0),
        Post(1, 2, txn=0, malformed=True),
        Post(1, 3, txn=0),
        Discharge(0, 0),
        Settle(),
        Take(2, 3),
    ],
    # T22
    "a settled post that is refused leaves nothing but a rollback": [
        *_LINKS,
        Declare(0, 0),
        Post(1, 1, txn=0, settled=True),
        Post(1, 2, txn=0, settled=True, malformed=True),
        Discharge(0, 0),
        Settle(),
        Take(2, 2),
    ],
    # T24
    "a post in a transaction that was never declared is nowhere": [
        *_LINKS,
        Post(1, 1, txn=NEVER_DECLARED),
        Settle(),
        Post(1, 2, txn=NEVER_DECLARED, settled=True),
        Settle(),
        Take(2, 2),
    ],
    # T24: on its way, it is open no more
    "a post behind the discharge of its transaction is nowhere": [
        *_LINKS,
        Declare(0, 0),
        Post(1, 1, txn=0),
        Discharge(0, 0),
        Post(1, 2, txn=0),
        Settle(),
        Take(2, 2),
    ],
    # T25
    "a post whose sender waits for the decision gets it": [
        *_LINKS,
        AttachSender(3, 0, 0, second=True),
        Declare(0, 0),
        Post(3, 1, txn=0),
        Discharge(0, 0),
        Settle(),
        Declare(0, 1),
        Post(3, 2, txn=1),
        Post(3, 3, txn=1, malformed=True),
        Discharge(0, 1),
        Settle(),
        Take(2, 3),
    ],
    # T23, T25
    "a post whose sender waits is let go with the first that is refused": [
        *_LINKS,
        AttachSender(3, 0, 0, second=True),
        Declare(0, 0),
        Post(3, 1, txn=0),
        Post(3, 2, txn=0, malformed=True),
        Settle(),
        Discharge(0, 0),
        Settle(),
    ],
    # D7, H4: posted in each manner, decided by its owner and by an operator
    "messages that come later": [
        *_LINKS,
        AttachControl(3, 0, group=0),
        Take(2, 1),
        Post(1, 1, later=True),
        Post(1, 2, settled=True, later=True),
        Declare(0, 0),
        Post(1, 3, txn=0, later=True),
        Declare(3, 1),
        Post(1, 4, txn=1, later=True),
        Declare(3, 2),
        Post(1, 5, txn=2, later=True),
        Post(1, 6),
        Discharge(3, 2),
        Discharge(0, 0),
        Settle(),
        Decide(1, commit=True),
        Take(2, 4),
        ComeDue(),
        Post(1, 7),
        Take(2, 3),
        Take(2, 4),
    ],
    # D7, H13
    "messages that come later than a crash": [
        *_LINKS,
        Post(1, 1, later=True),
        Post(1, 2, later=True),
        Post(1, 3),
        Settle(),
        Crash(),
        *_LINKS_AGAIN,
        Take(5, 4),
        ComeDue(),
        Post(4, 4),
        Take(5, 4),
    ],
    # H1
    "posts of the wrong kind": [
        *_TO_KINDS,
        Post(2, 1),
        Post(2, 2, later=True),
        Post(3, 3),
        Post(4, 4, queue=_TRANSACTION),
        Post(4, 5, queue=_DELAY),
        Declare(0, 0),
        Post(3, 6, txn=0),
        Post(2, 7, txn=0, later=True),
        Discharge(0, 0),
        Declare(0, 1),
        Post(2, 8, txn=1),
        Discharge(0, 1),
        Settle(),
        Post(2, 9, settled=True),
        Post(3, 10, settled=True),
        Settle(),
    ],
    # H1, H2: its group is the address, but where it has one
    "a message to an address of kind transaction makes its transaction checkable": [
        *_TO_KINDS,
        Declare(0, 0),
        Post(3, 1, txn=0, group=0),
        Post(3, 2, txn=0),
        Discharge(0, 0),
        Declare(0, 1),
        Post(3, 3, txn=1),
        Post(3, 4, txn=1, group=0),
        Discharge(0, 1),
        Declare(0, 2),
        Post(1, 5, txn=2),
        Post(3, 6, txn=2),
        Settle(),
        Detach(0),
        Check(GROUPS + _TRANSACTION, commit=True),
    ],
    # H14
    "messages that are to come later from an address of kind transaction": [
        *_TO_KINDS,
        Post(3, 1, later=True),
        Declare(0, 0),
        Post(3, 2, txn=0),
        Post(3, 3, txn=0, later=True),
        Discharge(0, 0),
        Declare(0, 1),
        Post(3, 4, txn=1, settled=True, later=True),
        Discharge(0, 1),
        Settle(),
    ],
    # D9
    "a settled post outside transactions that is refused ends its link": [
        *_LINKS,
        Post(1, 1, malformed=True),
        Post(1, 2, settled=True, malformed=True),
        Settle(),
        Take(2, 2),
    ],
    # T11, H20: its owner was told that it was committed
    "a checkable transaction without work that another connection asks for": [
        Open(0),
        Open(1),
        AttachControl(0, 0, group=0),
        AttachControl(1, 1),
        Declare(0, 0),
        Discharge(1, 0, fail=True),
        Settle(),
        Discharge(0, 0),
        Settle(),
    ],
    # H2, T25: its sender waited for an answer that did not come
    "a post that is on its way when its client leaves a checkable transaction": [
        Open(0),
        AttachControl(0, 0, group=0),
        AttachSender(1, 0, 0, session=1, second=True),
        Declare(0, 0),
        Post(1, 1, txn=0),
        Detach(0),
        Settle(),
        Check(0, commit=True),
    ],
    # of the test itself, H20: what a checkable transaction holds is no delivery
    "a commit under way when the instance dies, of what the transaction holds": [*_ONE_HELD, Discharge(0, 0), Crash()],
    "a rollback under way when the instance dies, of what the transaction holds": [
        *_ONE_HELD,
        Discharge(0, 0, fail=True),
        Crash(),
    ],
    # of the test itself: an outcome under way when the instance dies may be there or not
    "a mark that was on its way when the instance died": [
        *_ONE_TAKEN,
        Retire(2, 0, 0, Outcome.MARKED),
        Crash(),
    ],
}
