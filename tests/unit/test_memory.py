"""What a worker has freed goes back to the system."""

from __future__ import annotations

from coordinator.memory import give_back, resident

_MIB = 1 << 20


def test_what_was_freed_between_what_is_used_goes_back() -> None:
    octets = [bytes(60_000) for _ in range(1000)]
    del octets[::2]
    before = resident()
    give_back()
    assert before - resident() > 20 * _MIB
    assert len(octets) == 500
