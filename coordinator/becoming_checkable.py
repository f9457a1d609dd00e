"""What makes a transaction checkable (rules H1, H2): its control link or its connection says so, or the first message
of it that names a producer group, or goes to an address of kind transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.address.addresses import shown
from coordinator.checkable import NOTHING_ASKED, asked_terms, producer_group
from coordinator.errors import Condition, Refusal
from coordinator.halves import HalfPost, Halves
from coordinator.holds import hold
from coordinator.memory import POST_OCTETS
from coordinator.transitions import CHECKABLE, TxnEvent, after
from store.codec.message import PRODUCER_GROUP

if TYPE_CHECKING:
    from coordinator.address.nodes import Address
    from coordinator.check_back import Checkable
    from coordinator.checkable import CheckTerms
    from store.codec.message import Facts


def look_at_group(txn: Checkable | None, facts: Facts, address: Address, terms: CheckTerms) -> None:
    """A message names its producer group, or goes to an address of kind transaction (H1, H2): its transaction becomes
    checkable. Or it says how its checkable transaction is to be checked (H7). ``txn``: None outside transactions, where
    neither means anything.

    :raises Refusal: it may not be posted so.
    """
    if txn is None:
        if address.transactional:
            text = f"the address {shown(address.name)} is of kind transaction, and the message came in none"
            raise Refusal(Condition.PRECONDITION_FAILED, text)
        return
    if txn.refused_work:
        return
    named = facts.producer_group
    group = None if named is None else producer_group(named, f"the application property {PRODUCER_GROUP}")
    if not txn.checkable:
        group = group or producer_group(address.name, "the name of the address, which is the producer group,")
        _make_checkable(txn, Halves(group, terms, txn.control.number, NOTHING_ASKED))
    elif group is not None and group != txn.halves.group:
        text = f"the transaction has the producer group {shown(txn.halves.group)}, and a message in it {shown(group)}"
        refusal = Refusal(Condition.PRECONDITION_FAILED, text)
        txn.refuse(refusal)
        raise refusal
    asked = asked_terms(dict(facts.checks), "the application property ")
    halves = txn.halves
    if not halves.entered:
        halves.asked = asked.before(halves.asked)


def _make_checkable(txn: Checkable, halves: Halves) -> None:
    """What the transaction has posted and retired so far goes to the store at once."""
    txn.state = after(txn.state, TxnEvent.MADE_CHECKABLE)
    posted, txn.posts = txn.posts, []
    txn.halves, txn.checkable = halves, True
    held = sum(POST_OCTETS + (len(message) if isinstance(message, bytes) else 0) for _, message, _ in posted)
    txn.counted -= held
    txn.instance.memory.transactions -= held
    txn.spooled = 0
    for address, message, terms in posted:
        halves.place(address)
        txn.on_its_way(HalfPost(None, None, txn, address, message, terms), len(message))
    for entry in txn.retired:
        hold(txn, entry)


def declared_checkable(txn: Checkable, halves: Halves) -> None:
    """As a message with a producer group does, with the declare: there is no work yet."""
    txn.state = CHECKABLE
    txn.halves, txn.checkable = halves, True
