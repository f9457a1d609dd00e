"""What an address lays down for the messages of its groups, and what a group lays down itself (rules D2, P12)."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPolicies:
    """Those that a consumer group has of its own; None: as the address has it."""

    max_attempts: int | None = None
    on_expiry: str | None = None
    retry: Retry | None = None

    def over(self, policies: Policies) -> Policies:
        """The policies of the group, on an address with these."""
        return replace(
            policies,
            max_attempts=self.max_attempts or policies.max_attempts,
            on_expiry=self.on_expiry or policies.on_expiry,
            retry=self.retry or policies.retry,
        )
