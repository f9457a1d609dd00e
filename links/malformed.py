"""Input that the engine may not have, or does not take (P14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Condition, Refusal
from links import engine

if TYPE_CHECKING:
    from links.connection import Connection

log = structlog.get_logger(__name__)


def may_have(connection: Connection, octets: memoryview) -> bool:
    """Whether the engine may have what was read."""
    dispositions = connection.dispositions
    if dispositions.refused:
        return False
    try:
        dispositions.look(octets)
    except Refusal as refusal:
        log.info("connection refused", peer=connection.peer, description=refusal.description)
        connection.force_close(refusal.condition, refusal.description)
        return False
    return True


def refuse(connection: Connection) -> None:
    """The engine takes no more input. Unless it closes by itself, tell the peer why (P14; part 2, section 2.8.15).

    Proton 0.40 closes with an error when the header of a frame is malformed, but not when the frame's body cannot
    be decoded or is out of its place.
    """
    state = engine.connection_state(connection.pointer)
    if not connection.open or state & engine.REMOTE_CLOSED:
        return
    if engine.is_set(engine.transport_condition(connection.transport)):
        return
    if state & engine.REMOTE_ACTIVE:
        if not connection.closing:
            connection.force_close(
                Condition.DECODE_ERROR, "a frame that cannot be decoded, or that is out of its place"
            )
    else:
        connection.output.write()
        connection.close()
