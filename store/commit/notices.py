"""What a batch tells other instances: the groups that have entries which none of them has leased."""

from __future__ import annotations

from collections.abc import Mapping, Set

#: In :attr:`Batch.wake`: all groups. A notice names at most :data:`MOST_WOKEN` groups.
EVERY_GROUP = 0
MOST_WOKEN = 200
#: And at most so many message groups, whose names are longer.
MOST_KEYS_WOKEN = 150
#: Octets that a notice may have.
_MOST_OCTETS = 7999


def notice(groups: Mapping[int, int], keys: Set[tuple[int, int]]) -> bytes:
    """The payload of the notice: ``group>lowest``, an id from which on it has entries, or ``group/key`` of a message
    group, each; ``group`` alone where the id is not known. Empty, for all, if they are too many.
    """
    told = {group: f"{group}>{lowest:x}" for group, lowest in groups.items()}
    if len(keys) > MOST_KEYS_WOKEN:
        told = {**{group: str(group) for group, _ in keys}, **told}
    if EVERY_GROUP in told or len(told) > MOST_WOKEN:
        return b""
    named = [f"{group}/{key:x}" for group, key in sorted(keys) if group not in told]
    payload = ",".join([*(told[group] for group in sorted(told)), *named]).encode()
    return payload if len(payload) <= _MOST_OCTETS else b""
