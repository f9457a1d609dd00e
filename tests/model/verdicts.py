"""What the store holds, held against the model: after a crash, and when everything has settled."""

from __future__ import annotations

from tests.model.model import Model
from tests.model.state import (
    Receiver,
    Stored,
)


def crashed(model: Model, ops: dict[int, str], found: dict[int, tuple[str, int, bool]]) -> list[str]:
    """What the store holds after it, by transaction and by message (place, attempts, mark); what of it cannot be.

    What was under way may have been done or not; a transaction in full or not at all (H13).
    """
    wrong = []
    for txn in model.txns.values():
        op = ops.get(txn.number)
        allowed = {txn.op, None} if txn.pending else {"rollback" if txn.decided else txn.op}
        if op not in allowed:
            wrong.append(f"transaction {txn.number}: decided {op}, not one of {allowed}")
        if txn.open or (txn.pending and op is None):
            txn.state = "rolled-back"
        txn.op = op
    for message in list(model.messages.values()):
        states = []
        changed_by = message.changed_by
        if message.before is None or changed_by is None or changed_by.op is not None:
            states.append(message.stored.survived(sent=message.delivery is not None))
        if message.before is not None and (changed_by is None or changed_by.op is None):
            states.append(message.before[0].survived(sent=message.before[1]))
        place, attempts, marked = found.get(message.number, ("nowhere", 0, False))
        if not any(state.holds(place, attempts, marked) for state in states):
            wrong.append(f"message {message.number}: {(place, attempts, marked)}, not one of {states}")
        message.stored = Stored(place, attempts, attempts, marked)
        message.delivery = None
    wrong += [f"message {number}: it was never committed" for number in found.keys() - model.messages.keys()]
    for link in model.links.values():
        if isinstance(link, Receiver):
            for each in link.deliveries:
                each.done = each.closed = True
    model.end_all()
    model.settled()
    return wrong


def differences(
    model: Model, ops: dict[int, str], queues: list[list[tuple[int, int, bool]]], dead: set[int]
) -> list[str]:
    """What the settled store must hold, and does not: ops, (message, attempts, mark) in order, dead letters."""
    wrong = []
    for txn in model.txns.values():
        op = "rollback" if txn.decided else txn.op
        if ops.get(txn.number) != op:
            wrong.append(f"transaction {txn.number}: the store says {ops.get(txn.number)}, not {op}")
    for number, queue in enumerate(model.queues):
        wanted = [message for message in queue if message.stored.place == "queue"]
        found = queues[number]
        if [each.number for each in wanted] != [each for each, _, _ in found] or not all(
            message.stored.holds("queue", attempts, marked)
            for message, (_, attempts, marked) in zip(wanted, found, strict=True)
        ):
            wrong.append(f"queue {number}: {found}, not {[(each.number, each.stored) for each in wanted]}")
    wanted_dead = {each.number for each in model.messages.values() if each.stored.place == "dead"}
    if dead != wanted_dead:
        wrong.append(f"dead letters: {sorted(dead)}, not {sorted(wanted_dead)}")
    return wrong
