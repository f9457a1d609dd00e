"""What the store holds, held against the model: after a crash, and when everything has settled."""

from __future__ import annotations

from tests.model.model import Model
from tests.model.state import Receiver, Stored, Txn


def crashed(
    model: Model,
    ops: dict[int, str],
    found: dict[int, tuple[str, int, bool]],
    halves: dict[int, set[int]],
    held: dict[int, set[int]],
    heard: set[int],
) -> list[str]:
    """What the store holds after it, by transaction and by message (place, attempts, mark), and the messages that
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
    holding = {each.message.number: each for txn in undecided for each in txn.retired}
    for message in list(model.messages.values()):
        kept = message.number in holding
        states = []
        changed_by = message.changed_by
        if message.before is None or changed_by is None or changed_by.op is not None:
            states.append(message.stored.survived(sent=message.delivery is not None and not kept))
        if message.before is not None and (changed_by is None or changed_by.op is None):
            states.append(message.before[0].survived(sent=message.before[1] and not kept))
        place, attempts, marked = found.get(message.number, ("nowhere", 0, False))
        if not any(state.holds(place, attempts, marked) for state in states):
            wrong.append(f"message {message.number}: {(place, attempts, marked)}, not one of {states}")
        message.stored = Stored(place, attempts, attempts, marked)
        message.delivery = holding.get(message.number)
    wrong += [f"message {number}: it was never committed" for number in found.keys() - model.messages.keys()]
    for link in model.links.values():
        if isinstance(link, Receiver):
            for each in link.deliveries:
                each.done = each.closed = True
    model.end_all()
    model.settled()
    return wrong


def _left_undecided(txn: Txn, op: str | None, there: set[int], held: set[int], heard: set[int]) -> list[str]:
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
    retired = {each.message.number for each in deliveries}
    if op is None and not txn.held <= held <= retired:
        wrong.append(f"transaction {txn.number}: it holds {held}, of {retired}, {txn.held} for sure")
    if op is not None and (there or held):
        wrong.append(f"transaction {txn.number}: decided {op}, and the messages {there | held} wait for a decision")
    txn.op = op
    txn.overdue = False
    if op is None:
        txn.posts = [(queue, number) for queue, number in txn.posts if number in there]
        txn.retired = [each for each in deliveries if each.message.number in held]
        txn.stored, txn.held, txn.entered = there, held, bool(there or held)
        txn.state = "left"
    elif txn.state in ("active", "left", "rollback-only"):
        txn.state = "committed" if op == "commit" else "rolled-back"
    return wrong


def differences(
    model: Model,
    ops: dict[int, str],
    queues: list[list[tuple[int, int, bool]]],
    dead: set[int],
    halves: dict[int, set[int]],
    held: dict[int, set[int]],
    later: set[int],
) -> list[str]:
    """What the settled store must hold, and does not: ops, (message, attempts, mark) in order, dead letters, messages
    of undecided transactions; ``later``: those whose time has not come.
    """
    wrong = []
    for txn in model.txns.values():
        op = "rollback" if txn.decided else txn.op
        there = halves.get(txn.number, set())
        undecided = {message for _, message in txn.posts} if txn.entered and op is None else set()
        if there != undecided:
            wrong.append(f"transaction {txn.number}: the messages {there} wait for a decision, not {undecided}")
        retired = {each.message.number for each in txn.retired} if txn.entered and op is None else set()
        if held.get(txn.number, set()) != retired:
            wrong.append(f"transaction {txn.number}: it holds {held.get(txn.number)}, not {retired}")
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
    wanted_later = {each.number for each in model.messages.values() if each.stored.place == "later"}
    if later != wanted_later:
        wrong.append(f"to be delivered later: {sorted(later)}, not {sorted(wanted_later)}")
    wanted_dead = {each.number for each in model.messages.values() if each.stored.place == "dead"}
    if dead != wanted_dead:
        wrong.append(f"dead letters: {sorted(dead)}, not {sorted(wanted_dead)}")
    return wrong
