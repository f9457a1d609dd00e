"""The control link: declare and discharge (part 4, sections 4.1 to 4.3; rules T1 to T15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from coordinator.encoding import DecodeError, Described, decode
from coordinator.errors import Condition, Refusal
from coordinator.message import VALUE, sections
from coordinator.transactions import Transaction
from coordinator.transitions import TxnEvent
from links import container, engine, states, values
from links.incoming import Incoming
from store.errors import StoreError

if TYPE_CHECKING:
    from links.connection import Connection
    from store.spool import Octets

log = structlog.get_logger(__name__)

_DECLARE = (0x31, "amqp:declare:list")
_DISCHARGE = (0x32, "amqp:discharge:list")

#: what nearly every client sends: amqp-value, then a declare without fields, or a discharge(txn-id of 16 octets, fail)
_PLAIN_DECLARES = (b"\x00\x53\x77\x00\x53\x31\x45", b"\x00\x53\x77\x00\x53\x31\xc0\x01\x00")
_PLAIN_DISCHARGE = b"\x00\x53\x77\x00\x53\x32\xc0"

_LONGEST_TIMEOUT_MS = 24 * 3600 * 1000
_CREDIT = 1000
#: octets of a declare or a discharge, with whatever sections it has besides
_MOST_OCTETS = 1 << 16


class ControlLink(Incoming):
    """Implements :class:`coordinator.transactions.Control`."""

    __slots__ = ("_rejects", "_timeout", "_txns")

    waits_for_store = False

    def __init__(self, connection: Connection, pointer: engine.Pointer) -> None:
        most = int(connection.service.limits.max_message_size_bytes)
        super().__init__(connection, pointer, _CREDIT, min(_MOST_OCTETS, most))
        self._txns: dict[bytes, Transaction] = {}
        self._timeout = self._timeout_seconds()
        outcomes = values.symbols(
            engine.terminus_outcomes(engine.link_remote_source(pointer)), "the outcomes of the source"
        )
        #: no list is no restriction
        self._rejects = not outcomes or "amqp:rejected:list" in outcomes
        engine.terminus_copy(engine.link_source(pointer), engine.link_remote_source(pointer))
        target = engine.link_target(pointer)
        engine.terminus_set_type(target, engine.COORDINATOR)
        engine.put(container.symbols(container.TXN_CAPABILITIES), engine.terminus_capabilities(target))
        engine.link_set_rcv_settle_mode(pointer, engine.link_remote_rcv_settle_mode(pointer))
        engine.link_set_snd_settle_mode(pointer, engine.link_remote_snd_settle_mode(pointer))
        self.start()

    def _timeout_seconds(self) -> float:
        """T14: the link property, else the setting."""
        limit = self.connection.service.transaction_limits.timeout_seconds
        properties = values.properties(engine.link_remote_properties(self.pointer), "the properties of the attach")
        asked = properties.get(container.TIMEOUT_MS)
        if asked is None:
            return limit
        if isinstance(asked, bool) or not isinstance(asked, int) or not 0 < asked <= _LONGEST_TIMEOUT_MS:
            raise Refusal(
                Condition.INVALID_FIELD,
                f"the link property {container.TIMEOUT_MS} is a number of milliseconds from 1 to {_LONGEST_TIMEOUT_MS}",
            )
        return asked / 1000

    # -- messages

    def on_message(self, delivery: engine.Pointer, message: Octets, state: int, settled: bool) -> None:
        if settled:  # T5
            self.refuse(
                Refusal(Condition.ILLEGAL_STATE, "a declare or discharge must be sent unsettled; nothing was done")
            )
            return
        if message in _PLAIN_DECLARES:
            self._declare(delivery)
        elif (
            message[:7] == _PLAIN_DISCHARGE
            and len(message) == 28
            and message[8:11] == b"\x02\xa0\x10"
            and message[27] in (0x41, 0x42)
        ):
            self._discharge(delivery, message[11:27], message[27] == 0x41)
        else:
            self._decode(delivery, message)

    def _decode(self, delivery: engine.Pointer, message: Octets) -> None:
        try:
            body = _body(message)
            if body is None:
                raise Refusal(
                    Condition.NOT_IMPLEMENTED, "the body must be one amqp-value with a declare or a discharge"
                )
            if body.descriptor in _DECLARE:
                if _fields(body, "declare")[:1] not in ([], [None]):  # T6
                    raise Refusal(Condition.NOT_IMPLEMENTED, "global-id: distributed transactions are not offered")
                self._declare(delivery)
            else:
                fields = _fields(body, "discharge")
                txn_id = fields[0] if fields else None
                fail = fields[1] if len(fields) > 1 else None
                if not isinstance(txn_id, bytes):
                    raise DecodeError("discharge: the field txn-id is a binary and mandatory")
                if fail is not None and not isinstance(fail, bool):  # 0 and 1 are no booleans
                    raise DecodeError("discharge: the field fail is a boolean")
                self._discharge(delivery, txn_id, fail is True)
        except DecodeError as error:
            self._reject(delivery, Refusal(Condition.DECODE_ERROR, str(error)))
        except Refusal as refusal:
            self._reject(delivery, refusal)

    def _declare(self, delivery: engine.Pointer) -> None:
        txn = self.connection.service.declare(self.connection, self, self._timeout)
        txn.wire_state = states.accepted_in(txn.id)
        self._txns[txn.id] = txn
        engine.set_state(delivery, engine.DECLARED, states.declared(txn.id))
        engine.delivery_settle(delivery)

    def _discharge(self, delivery: engine.Pointer, txn_id: bytes, fail: bool) -> None:
        service = self.connection.service
        txn = service.find(txn_id, self.connection)
        if txn is None:
            self._discharge_unknown(delivery, txn_id, fail)
        elif txn.partials:  # T15
            refusal = Refusal(
                Condition.TXN_ROLLBACK, "discharged while a delivery of the transaction has more frames to come"
            )
            txn.abandon(TxnEvent.CONTROL_LOST, "partial-delivery", refusal)
            self.refuse(refusal)
        elif txn.answer is not None:
            self._reject(delivery, Refusal(Condition.ILLEGAL_STATE, "the transaction's discharge is under way already"))
        else:
            # a transaction may be discharged on another control link of its connection than it was declared on
            if txn.control is not self:
                assert isinstance(txn.control, ControlLink)
                txn.control._txns.pop(txn_id, None)
                txn.control = self
                self._txns[txn_id] = txn
            txn.discharge(fail, delivery)

    def _discharge_unknown(self, delivery: engine.Pointer, txn_id: bytes, fail: bool) -> None:
        """T10, T14; and T11: the store remembers what was decided."""
        if not self.open:
            return
        service = self.connection.service
        refusal = service.unknown(txn_id)
        if refusal.condition is Condition.TXN_TIMEOUT and not fail:
            self._reject(delivery, refusal)
            return
        txn = service.txns.get(txn_id)
        if txn is not None and not txn.open:  # decided, and on its way to the store: the answer is there soon
            txn.when_decided(lambda: self._discharge_unknown(delivery, txn_id, fail))
            return
        if len(txn_id) != 16 or txn is not None:
            self._reject(delivery, refusal)
            return

        def found(outcome: tuple[str, str] | StoreError | None) -> None:
            if not self.open:
                return
            if isinstance(outcome, StoreError):
                self._reject(delivery, Refusal(Condition.INTERNAL_ERROR, "the store cannot say what became of it"))
            elif outcome is None:
                self._reject(delivery, refusal)
            elif (outcome[0] == "rollback") == fail:
                self._accept(delivery)
            elif fail:
                self._reject(delivery, Refusal(Condition.ILLEGAL_STATE, "the transaction was committed before"))
            else:
                self._reject(
                    delivery, Refusal(Condition.TXN_ROLLBACK, f"the transaction was rolled back: {outcome[1]}")
                )

        service.outcome(txn_id, found)

    # -- answers

    def discharged(self, txn: Transaction, refusal: Refusal | None) -> None:
        self._txns.pop(txn.id, None)
        if not self.open or txn.answer is None:
            return
        if refusal is None:
            self._accept(txn.answer)
        else:
            self._reject(txn.answer, refusal)

    def _accept(self, delivery: engine.Pointer) -> None:
        engine.delivery_update(delivery, engine.ACCEPTED)
        engine.delivery_settle(delivery)
        self.connection.mark()

    def _reject(self, delivery: engine.Pointer, refusal: Refusal) -> None:
        log.info(
            "refused on the control link",
            peer=self.connection.peer,
            condition=refusal.condition.value,
            description=refusal.description,
        )
        if not self._rejects:  # T8, T10
            self.refuse(refusal)
            return
        engine.set_rejected(delivery, refusal.condition, refusal.description)
        engine.delivery_settle(delivery)
        self.connection.mark()

    def lost(self) -> None:
        """T13: its undecided transactions roll back at once."""
        super().lost()
        for txn in list(self._txns.values()):
            txn.abandon(TxnEvent.CONTROL_LOST, "link-lost")
        self._txns.clear()


def _body(message: Octets) -> Described | None:
    """The declare or discharge in the amqp-value; other sections are ignored (T4)."""
    body = None
    for code, _, value, _ in sections(message):
        if code == VALUE:
            body, _ = decode(message, value)
    if isinstance(body, Described) and body.descriptor in _DECLARE + _DISCHARGE:
        return body
    return None


def _fields(body: Described, name: str) -> list[object]:
    if type(body.value) is not list:
        raise DecodeError(f"{name}: a list of its fields was expected")
    return body.value
