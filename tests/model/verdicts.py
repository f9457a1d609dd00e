"""What the store holds, held against the model: after a crash, and when everything has settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.model import Model
from tests.model.state import Departure, Receiver, Stored, Txn

if TYPE_CHECKING:
    from tests.model import truth


def crashed(
    model: Model,
    ops: dict[int, str],
    found: dict[tuple[int, int], Stored],
    halves: dict[int, set[int]],
    held: dict[int, set[tuple[int, int]]],
    heard: set[int],
) -> list[str]:
    """What the store holds after it, by transaction, and by queue and message, and the messages that
    undecided transactions have posted, and retired; what of it cannot be. ``heard``: messages whose posts were accepted
    before.

    What was under way may have been done or not; a transaction in full or not at all (H13).
    """
    wrong = []
    for txn in model.txns.values():
        op = ops.get(txn.number)
        there = halves.get(txn.number, set())
        if txn.entered:
            wrong += _left_undecided(txn, op, there, held.get(txn.number, set()), heard)
            continue
        allowed = {txn.op, None} if txn.pending else {"rollback" if txn.decided else txn.op}
        if op not in allowed:
            wrong.append(f"transaction {txn.number}: decided {op}, not one of {allowed}")
        if txn.open or (txn.pending and op is None):
            txn.state = "rolled-back"
        txn.op = op
    undecided = [txn for txn in model.txns.values() if txn.entered and txn.op is None]
    holding = {each.message.name: each for txn in undecided for each in txn.retired}
    for name, message in list(model.messages.items()):
        kept = name in holding
        states = []
        changed_by = message.changed_by
        if message.before is None or changed_by is None or changed_by.op is not None:
            states.append(message.stored.survived(sent=message.delivery is not None and not kept))
        if message.before is not None and (changed_by is None or changed_by.op is None):
            states.append(message.before[0].survived(sent=message.before[1] and not kept))
        now = found.get(name, Stored("nowhere"))
        if not any(state.holds(now) for state in states):
            wrong.append(f"message {name}: {now}, not one of {states}")
        message.stored = now
        message.delivery = holding.get(name)
    wrong += [f"message {each}: it was never committed" for each in found.keys() - model.messages.keys()]
    for link in model.links.values():
        if isinstance(link, Receiver):
            for each in link.deliveries:
                each.done = each.closed = True
    model.end_all(Departure.ENDED)
    model.settled()
    return wrong


def _left_undecided(
    txn: Txn, op: str | None, there: set[int], held: set[tuple[int, int]], heard: set[int]
) -> list[str]:
    """What cannot be of a checkable transaction (H3, H13, H20). ``there``: its messages in the store; ``held``: those
    that it has retired.
    """
    wrong = []
    if op not in ({txn.op, None} if txn.pending and not txn.others else {txn.op}):
        wrong.append(f"transaction {txn.number}: decided {op}, not {txn.op}")
    posted = {number for _, number in txn.posts}
    answered = (heard & posted) - txn.plain
    sure = txn.stored | answered | (txn.plain if answered else set())
    if op is None and not sure <= there <= posted:
        wrong.append(f"transaction {txn.number}: the messages {there} are there, of {posted}, {sure} for sure")
    deliveries = txn.retired + txn.giving_back
    retired = {each.message.name for each in deliveries}
    if op is None and not txn.held <= held <= retired:
        wrong.append(f"transaction {txn.number}: it holds {held}, of {retired}, {txn.held} for sure")
    if op is not None and (there or held):
        wrong.append(f"transaction {txn.number}: decided {op}, and the messages {there | held} wait for a decision")
    txn.op = op
    txn.overdue = False
    if op is None:
        txn.posts = [(queue, number) for queue, number in txn.posts if number in there]
        txn.retired = [each for each in deliveries if each.message.name in held]
        txn.stored, txn.held, txn.entered = there, held, bool(there or held)
        txn.state = "left"
    elif txn.state in ("active", "left", "rollback-only"):
        txn.state = "committed" if op == "commit" else "rolled-back"
    return wrong


def differences(model: Model, found: truth.Stored) -> list[str]:
    """What the settled store must hold, and does not."""
    wrong = []
    for txn in model.txns.values():
        op = "rollback" if txn.decided else txn.op
        there = found.halves.get(txn.number, set())
        undecided = {message for _, message in txn.posts} if txn.entered and op is None else set()
        if there != undecided:
            wrong.append(f"transaction {txn.number}: the messages {there} wait for a decision, not {undecided}")
        retired = {each.message.name for each in txn.retired} if txn.entered and op is None else set()
        if found.held.get(txn.number, set()) != retired:
            wrong.append(f"transaction {txn.number}: it holds {found.held.get(txn.number)}, not {retired}")
        if found.ops.get(txn.number) != op:
            wrong.append(f"transaction {txn.number}: the store says {found.ops.get(txn.number)}, not {op}")
    for number, queue in enumerate(model.queues):
        wanted = [message for message in queue if message.stored.place == "queue"]
        there_now = found.queues[number]
        if [each.number for each in wanted] != [each for each, _ in there_now] or not all(
            message.stored.holds(there) for message, (_, there) in zip(wanted, there_now, strict=True)
        ):
            wrong.append(f"queue {number}: {there_now}, not {[(each.number, each.stored) for each in wanted]}")
    wanted_later = {name: each.stored for name, each in model.messages.items() if each.stored.place == "later"}
    if found.later.keys() != wanted_later.keys() or not all(
        each.holds(found.later[name]) for name, each in wanted_later.items()
    ):
        wrong.append(f"to be delivered later: {found.later}, not {wanted_later}")
    wanted_dead = {name: each.letter for name, each in model.messages.items() if each.stored.place == "dead"}
    if found.dead != wanted_dead:
        wrong.append(f"dead letters: {found.dead}, not {wanted_dead}")
    if found.parked != model.parked:
        wrong.append(f"set aside: {found.parked}, not {model.parked}")
    return wrong
