"""What becomes of entries on their way to the dead letters where the store refuses to take them back."""

from __future__ import annotations

import psycopg
import pytest
from structlog.testing import capture_logs

from coordinator.address import dead_letters
from store.tables import SCHEMA
from tests.fix_instance import Instance
from tests.refusing import refused

LETTERS = f"select from {SCHEMA}.entry e join {SCHEMA}.consumer_group g on g.id = e.group_id "
LETTERS += f"join {SCHEMA}.address a on a.id = g.address_id where a.name = '%DLQ%orders'"


@pytest.mark.rule("D4")
def test_what_could_not_be_moved_is_moved_later(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter was refused, and then the return of the entry, too: it stays leased to this instance, and no other takes
    it up.
    """
    monkeypatch.setattr(dead_letters, "_AGAIN_SECONDS", 0.2)
    instance = Instance(database_url)
    queue = instance.resolve("orders").queue
    assert queue is not None
    with psycopg.connect(database_url, autocommit=True) as store:
        store.execute(f"insert into {SCHEMA}.half (id, address_id, message) values (1, 1, 'm')".encode())
        columns = "(group_id, id, half_id, failed)"
        store.execute(f"insert into {SCHEMA}.entry {columns} values ({queue.group_id}, 1, 1, 'rejected')".encode())
        store.execute(f"alter table {SCHEMA}.half add constraint no_letters check (id = 1)".encode())
        instance.service._dead_letters.wake()
        with capture_logs() as lines:
            instance.loop.run_until(lambda: lines and lines[-1]["event"] == "a dead letter was refused")
        with refused(database_url, f"update of lease on {SCHEMA}.entry") as tries:
            store.execute(f"alter table {SCHEMA}.half drop constraint no_letters".encode())
            instance.loop.run_until(tries)
        instance.loop.run_until(lambda: store.execute(LETTERS.encode()).rowcount)
    instance.close()
