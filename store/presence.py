"""A command that counts as an instance for a moment: then no other instance holds a group whole.

While the only instance that lives holds a group whole, what lies below the id that it has read counts as its own. A
command that puts entries there registers like an instance: the others lease what they have in hand row by row, as they
do when any instance begins. It holds nothing itself. Should its process be killed or stopped for long, the watch gives
it up, and ends its session, which may have locks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.exc import DBAPIError

from store import channels, recovery
from store.errors import Fenced, StoreUnavailable
from store.tables import consumer_group, heartbeat, instance

#: How long the holder of a group may take to share it: longer than a dead one takes to be given up.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.02


class Presence:
    """``instance_id``: of the row that stands for this command."""

    def __init__(self, connection: Connection, instance_id: int) -> None:
        self._connection = connection
        self.instance_id = instance_id

    def beat(self) -> None:
        """In the transaction of the caller: this command still lives, and is not given up before the commit.

        :raises Fenced: another instance gave it up.
        """
        alive = select(instance.c.id).where(instance.c.id == self.instance_id, instance.c.ended_at.is_(None))
        if self._connection.scalar(alive.with_for_update(read=True, key_share=True)) is None:
            raise Fenced("this command was taken for dead, as it was stopped for long; run it again to finish")
        self._connection.execute(
            update(heartbeat).where(heartbeat.c.instance_id == self.instance_id).values(beaten_at=func.now())
        )

    def shared(self, group_id: int) -> bool:
        """Wait until no instance holds the group whole; the row of the group is then locked, so that none does before
        the commit of the caller. False: the group is gone.

        :raises StoreUnavailable: its holder does not answer.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        holder = select(consumer_group.c.holder).where(consumer_group.c.id == group_id).with_for_update(read=True)
        while time.monotonic() < until:
            self.beat()
            found = self._connection.scalar(holder)
            if found is None or found == 0:
                return found is not None
            self._connection.commit()
            time.sleep(_LOOK_SECONDS)
        raise StoreUnavailable(f"instance {found} holds the consumer group and does not share it; try again")


@contextmanager
def present(connection: Connection, version: str) -> Iterator[Presence]:
    """Count as an instance in this block; commits what is under way when it begins and ends."""
    presence = Presence(connection, recovery.register(connection, version).instance_id)
    name = recovery.session_name("command", presence.instance_id)
    connection.execute(select(func.set_config("application_name", name, False)))
    connection.execute(select(func.pg_notify(channels.READY, channels.ARRIVED)))
    connection.commit()
    try:
        yield presence
    except DBAPIError as error:
        connection.rollback()
        if error.connection_invalidated:
            presence.beat()  # says so, where another instance gave it up and has ended its session
        raise
    finally:
        connection.rollback()
        ours = (instance.c.id == presence.instance_id) & instance.c.ended_at.is_(None)
        connection.execute(update(instance).where(ours).values(ended_at=func.now()))
        connection.execute(text("reset application_name"))
        connection.commit()
