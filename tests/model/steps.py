"""One thing that a client, an operator or fate does, as data: a history is a list of them, and its ``repr`` is Python.

Connections, links, transactions and messages are numbers that the step which makes them chooses. A delivery is known by
its receiver and its place among all that the receiver was ever sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: A txn-id that was never given out.
NEVER_DECLARED = -1


class Outcome(Enum):
    """What a consumer says of a delivery (part 3, section 3.4)."""

    NONE = "none"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RELEASED = "released"
    #: modified, with a message annotation alone
    MARKED = "marked"
    #: modified(delivery-failed)
    FAILED = "failed"
    #: modified(undeliverable-here)
    ELSEWHERE = "elsewhere"
    #: modified(delivery-failed, undeliverable-here)
    FAILED_ELSEWHERE = "failed-elsewhere"
    #: modified, asking for the highest delay level (D2); and that with delivery-failed
    LATER = "later"
    FAILED_LATER = "failed-later"
    #: modified, asking for a delay level below 0: the dead letters
    GIVEN_UP = "given-up"
    #: nothing: its consumer vanishes, or leaves with this one first; and all others that are not decided (D5)
    LOST = "lost"
    RETURNED = "returned"

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Open:
    connection: int


@dataclass(frozen=True)
class Close:
    """``abrupt``: the socket is closed, and nothing said."""

    connection: int
    abrupt: bool = False


@dataclass(frozen=True)
class End:
    """A session; it is begun by its first link."""

    connection: int
    session: int


@dataclass(frozen=True)
class AttachControl:
    """``hasty``: its transactions are over their time as soon as they are declared. ``group``: the producer group of
    its transactions, which are checkable (H2).
    """

    link: int
    connection: int
    session: int = 0
    hasty: bool = False
    group: int | None = None


@dataclass(frozen=True)
class AttachSender:
    """``queue``: the number of an address; None for the anonymous relay. ``second``: receiver settle mode second, which
    keeps unsettled posts open up to the decision (T25).
    """

    link: int
    connection: int
    queue: int | None
    session: int = 0
    second: bool = False


@dataclass(frozen=True)
class AttachReceiver:
    link: int
    connection: int
    queue: int
    session: int = 0


@dataclass(frozen=True)
class AttachListener:
    """To a broadcast of an address: it gets what is committed from now on (D1)."""

    link: int
    connection: int
    address: int
    session: int = 0


@dataclass(frozen=True)
class Detach:
    link: int


@dataclass(frozen=True)
class Declare:
    control: int
    txn: int


@dataclass(frozen=True)
class Post:
    """``queue``: to which a message on the anonymous relay is addressed. ``malformed``: octets that are no message.
    ``group``: the producer group that it names (H2). ``later``: its time comes with :class:`ComeDue` (D7). ``key``: its
    message group (P18).
    """

    sender: int
    message: int
    txn: int | None = None
    settled: bool = False
    malformed: bool = False
    queue: int | None = None
    group: int | None = None
    later: bool = False
    key: int | None = None


@dataclass(frozen=True)
class ComeDue:
    """The time has come of all messages that wait for it, as far as they are committed (D2, D7)."""


@dataclass(frozen=True)
class Take:
    """All there is, up to ``most`` (or more, where it may come in any order): credit, and a drain."""

    receiver: int
    most: int


@dataclass(frozen=True)
class Hear:
    """A listener takes all there is for it, and settles it with this outcome."""

    listener: int
    outcome: Outcome = Outcome.ACCEPTED


@dataclass(frozen=True)
class Retire:
    """A disposition of the deliveries from ``first`` to ``last`` that the client may still speak of."""

    receiver: int
    first: int
    last: int
    outcome: Outcome = Outcome.ACCEPTED
    txn: int | None = None
    settled: bool = True


@dataclass(frozen=True)
class Rob:
    """The receiver accepts a delivery whose entry another instance has taken, which gives it back afterwards (D10)."""

    receiver: int
    place: int


@dataclass(frozen=True)
class Discharge:
    control: int
    txn: int
    fail: bool = False


@dataclass(frozen=True)
class Overdue:
    """The transaction's time runs out. Only where the clock can be moved: not through the wire."""

    txn: int


@dataclass(frozen=True)
class Decide:
    """An operator or another instance writes the op ``rollback`` into the store, or, for a checkable transaction,
    ``commit``.
    """

    txn: int
    commit: bool = False


@dataclass(frozen=True)
class Check:
    """A checker of the group comes, takes all checks that are due, answers each so, and goes.

    ``commit``: None: it does not know what became of them.
    """

    group: int
    commit: bool | None


@dataclass(frozen=True)
class Exhaust:
    """An interval passes after the last check of every transaction that had as many as there are (H10)."""


@dataclass(frozen=True)
class Replay:
    """An operator replays all dead letters of a queue to it (D4)."""

    queue: int


@dataclass(frozen=True)
class Seek:
    """An operator moves the group of a queue back to a message, or forth (H17)."""

    queue: int
    message: int
    back: bool


@dataclass(frozen=True)
class Drop:
    """The day becomes old, and retention drops what it may (H16). ``kept``: the addresses keep theirs for longer."""

    kept: bool = False


@dataclass(frozen=True)
class Settle:
    """The clients wait for every answer."""


@dataclass(frozen=True)
class Crash:
    """The instance dies as it is, and another takes its place."""


@dataclass(frozen=True)
class Restart:
    """The instance stops in order, and another takes its place. Not through the wire, where it takes too long."""


Step = (
    Open
    | Close
    | End
    | AttachControl
    | AttachSender
    | AttachReceiver
    | AttachListener
    | Detach
    | Declare
    | Post
    | ComeDue
    | Take
    | Hear
    | Retire
    | Rob
    | Discharge
    | Overdue
    | Decide
    | Check
    | Exhaust
    | Replay
    | Seek
    | Drop
    | Settle
    | Crash
    | Restart
)
