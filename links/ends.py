"""What a peer has begun and attached, as its frames say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.errors import Refusal
    from links import engine
    from links.frames import Key
    from links.termini import Termini


class Channel:
    """A session that the peer has begun. ``pointer``: the engine's, once it has it."""

    __slots__ = ("ended", "left", "links", "named", "pointer", "received")

    def __init__(self, first: int) -> None:
        self.pointer: engine.Pointer | None = None
        #: the id of the next transfer
        self.received = first
        self.links: dict[int, End] = {}
        #: how many of them have a name, by whether the peer is their sender, and the name
        self.named: Counter[tuple[bool, str]] = Counter()
        #: we have ended it: what the peer sends until it has ended it too means nothing (part 2, section 2.5.5)
        self.ended = False
        #: then, of the deliveries that it left undecided: the transactions that have them, and none
        self.left: set[bytes] = set()


class End:
    """A link that the peer has attached."""

    __slots__ = (
        "asked", "channel", "incomplete", "keys", "limit", "name", "pointer", "refusal", "second", "sends", "settled",
    )  # fmt: skip

    def __init__(self, name: str, channel: int, *, sends: bool, second: bool) -> None:
        #: as the engine knows it
        self.name = name
        #: of the peer's session
        self.channel = channel
        self.pointer: engine.Pointer | None = None
        #: the peer is its sender
        self.sends = sends
        #: its receiver settles second
        self.second = second
        #: of a receiver: the delivery-count up to which it has given credit
        self.limit = 0
        #: a delivery has begun, and more of it is to come
        self.incomplete = False
        #: and is settled
        self.settled = False
        #: under which its transfers are plain
        self.keys: set[Key] = set()
        #: why its attach is refused
        self.refusal: Refusal | None = None
        #: of its termini
        self.asked: Termini | None = None
