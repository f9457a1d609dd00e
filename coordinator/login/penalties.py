"""How long a wrong password waits for its answer: longer with each by the same address, or for the same user.

A right one waits only where the same address has just been wrong about the same user, so that guesses at once gain
nothing; no client at another address waits. Of IPv6, a network of 64 bits is one address. Each worker counts for
itself, in bounded memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from coordinator.login.origin import origin_of

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 3.0
#: An address may be shared by many clients: it counts as much as a user after so many times the failures.
OF_AN_ADDRESS = 8
#: After so long without another, failures are forgotten.
FORGOTTEN_SECONDS = 600.0
#: Addresses, users, and pairs of both that are remembered; beyond it the one that failed least recently is forgotten.
MOST_REMEMBERED = 10_000

Key = TypeVar("Key", str, tuple[str, str])


class _Recent(Generic[Key]):
    """A number by key, the last changed last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, tuple[float, float]] = OrderedDict()

    def get(self, key: Key, now: float) -> float:
        found = self._known.get(key)
        return 0.0 if found is None or now - found[1] > FORGOTTEN_SECONDS else found[0]

    def put(self, key: Key, value: float, now: float) -> None:
        self._known[key] = value, now
        self._known.move_to_end(key)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)


class Penalties:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: _Recent[str] = _Recent()
        self._by_user: _Recent[str] = _Recent()
        #: when the next password of an address for a user is looked at
        self._next: _Recent[tuple[str, str]] = _Recent()

    def wait(self, address: str, user: str) -> float:
        """Seconds until a password may be looked at."""
        now = self._clock()
        return max(0.0, self._next.get((origin_of(address), user), now) - now)

    def failed(self, address: str, user: str) -> float:
        """A password was wrong. Returns the seconds until that is answered."""
        now, address = self._clock(), origin_of(address)
        of_address = self._by_address.get(address, now) + 1
        of_user = self._by_user.get(user, now) + 1
        self._by_address.put(address, of_address, now)
        self._by_user.put(user, of_user, now)
        doublings = max(of_user - 1, of_address // OF_AN_ADDRESS)
        seconds = min(FIRST_SECONDS * (1 << min(int(doublings), 10)), LONGEST_SECONDS)
        self._next.put((address, user), now + seconds, now)
        return seconds
