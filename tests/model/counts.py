"""What the store counts of a history, by its own views and for the metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import psycopg
from proton import Message
from sqlalchemy import Connection

from store import figures
from store.tables import SCHEMA
from tests.model.model import Model
from tests.model.state import ADDRESSES, POLICIES
from tests.model.truth import address, box, group

#: More groups and addresses than all histories have: each has figures of its own.
_ALL = 1_000_000


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


def for_metrics(
    connection: Connection, history: str
) -> tuple[dict[int, tuple[int, int]], dict[int, int], dict[int, int]]:
    """As :func:`of_history`, by what the metrics are made of (H19); and of each queue the dead letters."""
    groups = {(each.address, each.group): each for each in figures.entries(connection, named=_ALL)}
    waiting = {
        queue: (found.ready + found.inflight, found.scheduled)
        for queue, policy in enumerate(POLICIES)
        if (found := groups.get((address(history, policy.address), group(history, queue)))) is not None
    }
    halves = {each.address: each.count for each in figures.undecided(connection, named=_ALL).halves}
    pending = {number: halves[name] for number in range(ADDRESSES) if (name := address(history, number)) in halves}
    letters = {each.address: each.count for each in figures.dead_letters(connection, named=_ALL)}
    dead = {queue: letters[name] for queue in range(len(POLICIES)) if (name := box(history, queue)) in letters}
    return waiting, pending, dead


def compare(
    model: Model, store: psycopg.Connection[Any], connection: Connection, history: str, dead: Counter[int]
) -> None:
    """The views count what the model has (H18), and so do the metrics (H19). ``dead``: letters by their queue."""
    places = [Counter(each.stored.place for each in queue) for queue in model.queues]
    left = [txn for txn in model.txns.values() if txn.entered and txn.op is None and not txn.decided]
    wanted = {queue: (found["queue"], found["later"]) for queue, found in enumerate(places)}
    pending = Counter(address for txn in left for address, _ in txn.posts)
    waiting, undecided = of_history(store, history)
    told = {queue: waiting.get(queue, (0, 0)) for queue in wanted}
    assert told == wanted, f"the views count {told}, not {wanted}"
    assert undecided == pending, f"the views count {undecided} undecided, not {dict(pending)}"
    measured = for_metrics(connection, history)
    wanted_of_metrics = (waiting, undecided, dict(dead))
    assert measured == wanted_of_metrics, f"the metrics count {measured}, not {wanted_of_metrics}"


def bodies(connection: psycopg.Connection[Any], txn_id: bytes) -> list[str]:
    """Of the messages that a transaction has posted."""
    found = []
    rows = connection.execute(f"select message from {SCHEMA}.half where txn_id = %s".encode(), [UUID(bytes=txn_id)])
    for (octets,) in rows:
        message = Message()
        message.decode(octets)
        found.append(str(message.body))
    return found


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
