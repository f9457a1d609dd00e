"""The talk between a client that logs in and the service: what each SASL mechanism says in turn (part 5, section 5.3).

An answer may take time, as the store is asked and a wrong password waits. So an exchange is given the client's octets
and says its answer when it has it; until then the client's next octets stay unread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class Code(IntEnum):
    """Of a ``sasl-outcome`` (part 5, section 5.3.3.6)."""

    OK = 0
    AUTH = 1
    #: the store does not answer: the same again may succeed
    SYS_TEMP = 4


@dataclass(frozen=True, slots=True)
class Challenge:
    octets: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end. ``data``: the last words of the mechanism. ``user``: as which the client is in, with its id; None: as
    none.
    """

    code: Code
    data: bytes | None = None
    user: str | None = None
    user_id: str | None = None


Say = Callable[[Challenge | Outcome], None]

REFUSED = Outcome(Code.AUTH)


class Exchange(Protocol):
    def take(self, response: bytes | None) -> None:
        """What the client says: first the ``initial-response`` (None: it has none), then a response to each
        challenge. The answer is said once for each.
        """

    def end(self) -> None:
        """The connection has ended: nothing is said any more."""


class Anonymous:
    """Takes anything that the client says of itself (RFC 4505), and remembers none of it."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def take(self, response: bytes | None) -> None:
        self._say(Outcome(Code.OK))

    def end(self) -> None:
        pass
