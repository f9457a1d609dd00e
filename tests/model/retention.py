"""Histories of what retention drops and what it must keep (H16), replayed at level one: through the wire, the service's
own maintenance is at work."""

from __future__ import annotations

from tests.model.steps import (
    AttachControl,
    AttachReceiver,
    AttachSender,
    ComeDue,
    Crash,
    Declare,
    Discharge,
    Drop,
    Open,
    Outcome,
    Post,
    Replay,
    Retire,
    Seek,
    Settle,
    Step,
    Take,
)

_LADDER, _OWN = 1, 5
_AT_QUEUE: list[Step] = [
    Open(0),
    AttachControl(0, 0, group=0),
    AttachSender(1, 0, 0),
    AttachReceiver(2, 0, 0, session=1),
    Post(1, 1),
    Post(1, 2),
    Take(2, 2),
]
_AT_LADDER: list[Step] = [
    Open(0),
    AttachSender(1, 0, _LADDER),
    AttachReceiver(2, 0, _LADDER, session=1),
    AttachReceiver(3, 0, _OWN, session=1),
    Post(1, 1),
    Post(1, 2),
    Take(2, 2),
    Take(3, 2),
]

RETENTION: dict[str, list[Step]] = {
    "consumed messages stay until their time is over, and come again": [
        *_AT_QUEUE,
        Retire(2, 0, 1),
        Drop(kept=True),
        Seek(0, 1, back=True),
        Take(2, 2),
        Retire(2, 2, 3),
    ],
    "what is gone does not come again, and what waits does": [
        *_AT_QUEUE,
        Retire(2, 0, 0),
        Drop(),
        Seek(0, 2, back=True),
        Retire(2, 1, 1),
        Seek(0, 2, back=True),
        Take(2, 2),
    ],
    "the half messages and retirements of an undecided transaction stay": [
        *_AT_QUEUE,
        Declare(0, 0),
        Post(1, 3, 0),
        Retire(2, 0, 0, txn=0),
        Settle(),
        Drop(),
        Crash(),
        Drop(),
        Open(1),
        AttachControl(4, 1, group=0),
        Discharge(4, 0),
    ],
    "a message stays for each of its groups, and a group that was done with it gets it again": [
        *_AT_LADDER,
        Retire(2, 0, 1),
        Retire(3, 0, 0),
        Drop(),
        Seek(_LADDER, 2, back=True),
        Take(2, 2),
    ],
    "what waits for its time stays": [
        *_AT_LADDER,
        Post(1, 3, later=True),
        Retire(2, 0, 0, Outcome.FAILED),
        Retire(2, 1, 1),
        Retire(3, 0, 1),
        Drop(),
        ComeDue(),
        Take(2, 2),
        Take(3, 2),
    ],
    "a dead letter is a message of its own, which stays, and so is what was replayed of it": [
        *_AT_QUEUE,
        Retire(2, 0, 0, Outcome.REJECTED),
        Drop(),
        Replay(0),
        Drop(),
        Take(2, 1),
        Retire(2, 2, 2),
        Seek(0, 1, back=True),
    ],
}
