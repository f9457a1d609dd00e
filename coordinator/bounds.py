"""Bounds limit one worker and are not settings: they are far above the needs of an application, and an error or a log
line names each (S4). Those in octets shrink with ``limits.memory_bytes`` (:mod:`coordinator.memory`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of one peer, one queue and one batch. Tests use smaller ones."""

    #: the highest channel of a connection: its sessions less one (part 2, 2.7.1)
    channel_max: int = 1023
    #: the highest handle of a session: its links less one (part 2, 2.7.2)
    handle_max: int = 1023
    #: links of one connection, over all its sessions
    links_per_connection: int = 4096
    #: connections that have not logged in, or are not open yet; beyond it, one of the host with the most is closed
    connections_unopened: int = 2000
    #: seconds a client has for TLS, its login and its open (part 2, 2.4.1)
    opening_seconds: float = 30
    #: credit given to a sender
    link_credit: int = 1000
    #: unsettled deliveries of one consumer
    unsettled_per_link: int = 10_000
    #: undecided transactions of one connection
    transactions_per_connection: int = 10_000
    #: the age from which on a transaction is in the store's list of undecided ones
    register_after_seconds: float = 1
    #: addresses created because one connection named them, and its dynamic ones that exist
    addresses_per_connection: int = 1000
    #: consumer groups of one address besides the default one, subscriptions among them
    groups_per_address: int = 10_000
    #: octets in memory of incomplete messages; beyond it they are written to a file
    unfinished_bytes: int = 32 << 20
    #: octets that wait for the store; beyond it, posters are not read
    waiting_bytes: int = 64 << 20
    #: octets that a peer leaves unread; beyond it, the peer is not read either
    unread_bytes: int = 4 << 20
    #: messages and octets that a queue holds in memory
    window_messages: int = 2000
    window_bytes: int = 8 << 20
    #: messages and octets of one group commit
    batch_messages: int = 2000
    batch_bytes: int = 4 << 20


#: the bounds of a service in production
USUAL = Bounds()
