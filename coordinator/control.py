"""Control declares and discharges transactions (part 4, sections 4.1 to 4.3; rules T7 to T15), apart from the wire.

A control link decodes the requests, and sends the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from coordinator.address.addresses import shown
from coordinator.checkable import NO_OWN_TERMS
from coordinator.errors import Condition, Refusal
from coordinator.in_store import make_checkable
from coordinator.transitions import TxnEvent
from store.decisions import Undecided
from store.errors import AddressGone, StoreError
from store.reasons import ASKED, DISCHARGED, LINK_LOST, PARTIAL_DELIVERY

if TYPE_CHECKING:
    from coordinator.checkable import OwnCheckTerms
    from coordinator.registry import Registry
    from coordinator.transaction import Transaction
    from store.decisions import Decision, Decisions

_TXN_ID_OCTETS = 16


class Answers(Protocol):
    """A control link, which sends the answers. ``answer``: the delivery of the discharge."""

    @property
    def open(self) -> bool: ...

    def accept(self, answer: object) -> None: ...

    def reject(self, answer: object, refusal: Refusal) -> None: ...

    def refuse(self, refusal: Refusal) -> None:
        """Detach the link with the refusal."""

    @property
    def number(self) -> int:
        """The number of its connection at this instance; 0: the connection is closed."""

    @property
    def user_id(self) -> str | None:
        """The id of the user that its client has logged in as; None: the client has no login."""

    def may_decide(self, group: str, *, own: bool) -> bool:
        """Whether its connection belongs to the producer group: it names the group, or has a checker (H20). ``own``:
        the transaction is its user's; another user's needs the permission to check the group (S3).
        """

    @property
    def may_query(self) -> bool:
        """Whether it may query others' transactions, or discharge those of some producer group (S3)."""

    @property
    def may_manage(self) -> bool:
        """Whether it may query the decisions of others' transactions (S3)."""


class Control:
    """Declares and discharges for one control link. ``owner``: its connection (T12); ``timeout`` in seconds (T14)."""

    __slots__ = ("_answers", "_decisions", "_group", "_own_terms", "_owner", "_registry", "_timeout", "_txns", "named")

    def __init__(
        self,
        registry: Registry,
        decisions: Decisions,
        owner: object,
        timeout: float,
        answers: Answers,
        group: str | None = None,
        own_terms: OwnCheckTerms = NO_OWN_TERMS,
    ) -> None:
        """``group``: the producer group of its transactions, which are checkable; None: they are plain, unless their
        messages name a group. ``own_terms``: the client's check terms.
        """
        self._group = group
        self._own_terms = own_terms
        self._registry = registry
        self._decisions = decisions
        self._owner = owner
        self._timeout = timeout
        self._answers = answers
        self._txns: dict[bytes, Transaction] = {}
        self.named = str(owner).replace("\0", "").encode()

    def declare(self) -> Transaction:
        """Begin a transaction.

        :raises Refusal: the connection has too many undecided transactions.
        """
        txn = self._registry.declare(self._owner, self, self._timeout, self._answers.user_id)
        self._txns[txn.id] = txn
        if self._group is not None:
            make_checkable(txn, self._group, self._registry.check_terms, self._own_terms)
        return txn

    @property
    def number(self) -> int:
        return self._answers.number

    def discharge(self, txn_id: bytes, fail: bool, answer: object) -> Transaction | None:
        """Discharge a transaction; return it if its decision is under way or made, else None."""
        txn = self._registry.find(txn_id, self._owner)
        if txn is None:
            self._answer_from_store(txn_id, fail, answer)
        elif txn.partials:  # T15
            refusal = Refusal(
                Condition.TXN_ROLLBACK, "discharged while a delivery of the transaction has more frames to come"
            )
            txn.refuse(refusal)  # a checkable one would stay undecided, and could be committed without that delivery
            txn.abandon(TxnEvent.CONTROL_LOST, PARTIAL_DELIVERY)
            self._answers.reject(answer, refusal)
            self._answers.refuse(refusal)
        elif txn.discharged:
            refusal = Refusal(Condition.ILLEGAL_STATE, "the transaction's discharge is under way already")
            self._answers.reject(answer, refusal)
        else:
            # another control link of the connection may have declared it
            if txn.control is not self:
                txn.control.give_up(txn_id)
                txn.control = self
                self._txns[txn_id] = txn
            txn.discharge(fail, answer)
            return txn
        return None

    def _answer_from_store(self, txn_id: bytes, fail: bool, answer: object) -> None:
        """Answer from the store a discharge whose transaction is not open on this connection (T10, T11, T14). The query
        rolls back a transaction without a decision.
        """
        if not self._answers.open:
            return
        registry = self._registry
        if not registry.genuine(txn_id, self._answers.user_id):
            self._answer_undecided(txn_id, fail, answer)
            return
        refusal = registry.unknown(txn_id, self._answers.user_id)
        if refusal.condition is Condition.TXN_TIMEOUT and not fail:
            self._answers.reject(answer, refusal)
            return
        txn = registry.txns.get(txn_id)
        if txn is not None:
            txn.abandon(TxnEvent.ASKED, ASKED)
        txn = registry.txns.get(txn_id)
        if txn is not None and (txn.in_store is None or not txn.open):
            # its decision is on its way to the store: query again after it
            txn.when_decided(lambda: self._answer_from_store(txn_id, fail, answer))
            return
        self._decisions.ask(txn_id, lambda found: self._found(found, txn_id, fail, answer))

    def _answer_undecided(self, txn_id: bytes, fail: bool, answer: object) -> None:
        """Query the decision of another user's or an unknown transaction, without deciding it (S3)."""
        answers = self._answers
        if len(txn_id) != _TXN_ID_OCTETS or not answers.may_query:
            answers.reject(answer, _never_given_out())
            return

        def decided(found: Decision | Undecided | StoreError | None) -> None:
            if isinstance(found, Undecided):
                shown = answers.may_manage or answers.may_decide(found.group, own=False)
            else:
                shown = isinstance(found, StoreError) or (found is not None and answers.may_manage)
            if shown:
                self._found(found, txn_id, fail, answer, own=False)
            elif answers.open:
                answers.reject(answer, _never_given_out())

        self._decisions.read(txn_id, decided)

    def _found(
        self,
        found: Decision | Undecided | StoreError | None,
        txn_id: bytes,
        fail: bool,
        answer: object,
        *,
        own: bool = True,
    ) -> None:
        """Answer the discharge with what the store has found. ``own``: the transaction is this user's."""
        answers = self._answers
        if not answers.open:
            return
        if isinstance(found, Undecided):
            self._decide(found.group, txn_id, fail, answer, own=own)
        elif isinstance(found, AddressGone):
            text = "an address that the transaction posted to was removed: it can only be rolled back"
            answers.reject(answer, Refusal(Condition.RESOURCE_DELETED, text))
        elif isinstance(found, StoreError):
            answers.reject(
                answer, Refusal(Condition.INTERNAL_ERROR, "the store cannot say now what became of it: ask again")
            )
        elif found is None:
            answers.reject(answer, Refusal(Condition.TXN_UNKNOWN_ID, "the txn-id is older than decisions are kept"))
        elif (found.decision == "rollback") == fail:
            answers.accept(answer)
        elif fail:
            text = f"the transaction was committed before{found.by}"
            answers.reject(answer, Refusal(Condition.ILLEGAL_STATE, text))
        else:
            answers.reject(answer, rolled_back(found.reason, found.by))

    def _decide(self, group: str, txn_id: bytes, fail: bool, answer: object, *, own: bool) -> None:
        """Discharge a checkable transaction that another connection has left, or still has open (H20)."""
        if not self._answers.may_decide(group, own=own):
            text = (
                f"the transaction is undecided, and not this connection's: one of the producer group {shown(group)} "
                "discharges it, or a checker"
            )
            self._answers.reject(answer, Refusal(Condition.TXN_UNKNOWN_ID, text))
            return
        decision, reason = ("rollback", DISCHARGED) if fail else ("commit", "")
        self._decisions.decide(txn_id, decision, reason, lambda found: self._found(found, txn_id, fail, answer))

    def discharged(self, txn: Transaction, refusal: Refusal | None) -> None:
        """Accept the discharge of a decided transaction (``txn.answer``, if there is one), or reject it with the
        refusal.
        """
        self._txns.pop(txn.id, None)
        if not self._answers.open or txn.answer is None:
            return
        if refusal is None:
            self._answers.accept(txn.answer)
        else:
            self._answers.reject(txn.answer, refusal)

    def refuse(self, refusal: Refusal) -> None:
        """Detach the link; its transactions roll back with it (T29)."""
        self._answers.refuse(refusal)

    def give_up(self, txn_id: bytes) -> None:
        """Forget a transaction that another control link of the connection discharges."""
        self._txns.pop(txn_id, None)

    def lost(self, *, ended: bool) -> None:
        """Roll back the undecided transactions of the detached link at once (T13). ``ended``: by the service."""
        for txn in list(self._txns.values()):
            txn.counts_as_failed = not ended
            txn.abandon(TxnEvent.CONTROL_LOST, LINK_LOST)
        self._txns.clear()


def _never_given_out() -> Refusal:
    """Return the refusal of an unknown txn-id, which is also the answer for another user's transaction."""
    return Refusal(Condition.TXN_UNKNOWN_ID, "this store never gave out such a txn-id")


def rolled_back(reason: str, by: str) -> Refusal:
    """Return the refusal of a commit that came after the rollback."""
    if reason == ASKED:
        reason = "another connection asked for its outcome before it was discharged"
    return Refusal(Condition.TXN_ROLLBACK, f"the transaction was rolled back{by}: {reason}")
