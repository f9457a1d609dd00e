"""Operations are what operators ask of the store, and do to it: each is a function, a command, and a path of the API.

A function takes a connection to the store, and the arguments of its path and its request by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from coordinator import acts

#: The arguments that no request gives: the service has them.
OF_THE_SERVICE = ("kept", "seconds")


class Operation(NamedTuple):
    """``path``: below ``/api/v1``, with arguments in braces. ``command``: what follows ``coordinator``; ``long``: it
    may take longer than a moment.
    """

    path: str
    command: str
    run: Callable[..., Any]
    long: bool = False


ACTS = (
    Operation("/transactions/{txn_id}/resolve", "transaction resolve", acts.resolve),
    Operation("/transactions/{txn_id}/resume", "transaction resume", acts.resume),
    Operation("/connections/{connection_id}/close", "connection close", acts.close),
    Operation("/dead-letters/{name:path}/replay", "dead-letters replay", acts.replay, long=True),
    Operation("/addresses/{name:path}/purge", "address purge", acts.purge, long=True),
    Operation("/groups/{name:path}/seek", "group seek", acts.seek, long=True),
)
