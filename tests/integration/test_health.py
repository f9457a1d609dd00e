"""What ``coordinator check`` makes of the beats of several instances."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from store import health, recovery


@pytest.mark.rule("H19")
@pytest.mark.parametrize(
    ("waits", "told"),
    [((0.0, 4.0), None), ((6.0, 30.0), 30.0), ((30.0, 6.0), 30.0)],
    ids=["short", "the second longer", "the first longer"],
)
def test_the_longest_wait_of_those_that_live_is_told(
    database: Connection, waits: tuple[float, float], told: float | None
) -> None:
    """Most batches wait for a moment; an instance that ended a moment ago waits for nothing."""
    instances = [recovery.register(database, "1").instance_id for _ in range(3)]
    for instance, seconds in zip(instances, (*waits, 9000.0), strict=True):
        change = text("update coordinator.heartbeat set commit_waits_seconds = :seconds where instance_id = :instance")
        database.execute(change, {"seconds": seconds, "instance": instance})
    ended = text("update coordinator.instance set ended_at = now() where id = :instance")
    database.execute(ended, {"instance": instances[2]})
    database.commit()
    found = health.read(database)
    assert (found.commit_waits_seconds, found.instances_alive) == (told, 2)
