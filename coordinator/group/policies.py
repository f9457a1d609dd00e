"""What an address lays down for the messages of its groups."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.retries import IMMEDIATE, Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """``on_expiry``: ``drop`` or ``dead-letter``."""

    #: after so many failed deliveries a message is moved to the dead letters
    max_attempts: int
    on_expiry: str
    #: message groups keep their order, each with one consumer at a time (P18)
    fifo: bool
    #: this is an address of dead letters: what fails here stays here
    dead_letters: bool
    #: how long a failed delivery waits before the next (D2)
    retry: Retry = IMMEDIATE
