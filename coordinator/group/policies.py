"""What an address lays down for the messages of its groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """``on_expiry``: ``drop`` or ``dead-letter``."""

    #: failed deliveries, then a message goes to the dead letters
    max_attempts: int
    on_expiry: str
    #: message groups keep their order, each with one consumer at a time (P18)
    fifo: bool
    #: this is an address of dead letters: its failures go nowhere else
    dead_letters: bool
