"""What the store counts of a history, by its own views."""

from __future__ import annotations

from typing import Any

import psycopg

from store.tables import SCHEMA
from tests.model.state import ADDRESSES, POLICIES
from tests.model.truth import address, group


def of_history(connection: psycopg.Connection[Any], history: str) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    """As the views tell them (H18): of each queue the messages that wait or are on their way, and those whose time has
    not come; of each address those of undecided transactions.
    """
    queues = {(address(history, each.address), group(history, queue)): queue for queue, each in enumerate(POLICIES)}
    addresses = {address(history, number): number for number in range(ADDRESSES)}
    rows = connection.execute(
        f"""select address, consumer_group, ready + inflight, scheduled from {SCHEMA}.groups
             where address = any(%s)""".encode(),
        [list(addresses)],
    ).fetchall()
    waiting = {queues[name, of]: (here, later) for name, of, here, later in rows if (name, of) in queues}
    pending = connection.execute(
        f"select address, pending from {SCHEMA}.addresses where address = any(%s) and pending > 0".encode(),
        [list(addresses)],
    ).fetchall()
    return waiting, {addresses[name]: number for name, number in pending}


def listening(connection: psycopg.Connection[Any], history: str) -> int:
    """How many groups of listeners there are."""
    names = [address(history, number) for number in range(ADDRESSES)]
    row = connection.execute(
        f"""select count(*) from {SCHEMA}.address a join {SCHEMA}.consumer_group g on g.address_id = a.id
             where a.name = any(%s) and g.instance_id is not null""".encode(),
        [names],
    ).fetchone()
    assert row is not None
    return int(row[0])
