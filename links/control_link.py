"""The control link decodes declares and discharges (part 4, sections 4.1 to 4.3; rules T1 to T6), which
:mod:`coordinator.control` handles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from coordinator.address.permissions import TRANSACTIONS
from coordinator.checkable import CHECK_PROPERTIES, OwnCheckTerms, producer_group, read_check_terms
from coordinator.control import Control
from coordinator.errors import Condition, Refusal
from coordinator.retirement import Departure
from links import container, engine, states, steps
from links.incoming import Incoming
from links.link import COORDINATOR, copy_source
from store.codec.encoding import DecodeError, decode
from store.codec.message import VALUE, sections
from store.codec.values import Described
from store.permissions import Verb

if TYPE_CHECKING:
    from links.connection import Connection
    from store.spool import Octets

log = structlog.get_logger(__name__)

_DECLARE = (0x31, "amqp:declare:list")
_DISCHARGE = (0x32, "amqp:discharge:list")

#: the usual encodings: amqp-value, then a declare without fields, or a discharge(txn-id of 16 octets, fail)
_PLAIN_DECLARES = (b"\x00\x53\x77\x00\x53\x31\x45", b"\x00\x53\x77\x00\x53\x31\xc0\x01\x00")
_PLAIN_DISCHARGE = b"\x00\x53\x77\x00\x53\x32\xc0"

_CREDIT = 1000
#: the most octets of a declare or a discharge with all its sections
_MOST_OCTETS = 1 << 16


class ControlLink(Incoming):
    """Receives declares and discharges, and answers them; implements :class:`coordinator.control.Answers`."""

    role = COORDINATOR
    __slots__ = ("_control", "_group", "_rejects")

    waits_for_store = False

    def __init__(self, connection: Connection, pointer: engine.Pointer) -> None:
        most = int(connection.service.limits.max_message_size_bytes)
        super().__init__(connection, pointer, _CREDIT, min(_MOST_OCTETS, most))
        properties = engine.properties(engine.link_remote_properties(pointer), "the properties of the attach")
        self._group = self._producer_group(properties)
        self._control = Control(
            connection.service.registry,
            connection.service.decisions,
            connection,
            self._timeout_seconds(properties),
            self,
            self._group,
            _read_check_terms(properties),
        )
        outcomes = engine.symbols(
            engine.terminus_outcomes(engine.link_remote_source(pointer)), "the outcomes of the source"
        )
        #: whether the source accepts the outcome rejected; a source without a list accepts all
        self._rejects = not outcomes or "amqp:rejected:list" in outcomes
        copy_source(connection, pointer)
        target = engine.link_target(pointer)
        engine.terminus_set_type(target, engine.COORDINATOR)
        engine.put(container.symbols(container.TXN_CAPABILITIES), engine.terminus_capabilities(target))
        engine.link_set_rcv_settle_mode(pointer, engine.link_remote_rcv_settle_mode(pointer))
        engine.link_set_snd_settle_mode(pointer, engine.link_remote_snd_settle_mode(pointer))
        self.start()

    def _producer_group(self, properties: dict[str, object]) -> str | None:
        """Return the producer group: the link property, else that of the connection (H2)."""
        asked, where = properties.get(container.PRODUCER_GROUP), "link property"
        if asked is None:
            octets = engine.connection_remote_properties(self.connection.pointer)
            asked = engine.properties(octets, "the properties of the open").get(container.PRODUCER_GROUP)
            where = "connection property"
        return None if asked is None else producer_group(asked, f"the {where} {container.PRODUCER_GROUP}")

    @property
    def number(self) -> int:
        return self.connection.number if self.connection.open and not self.connection.closing else 0

    @property
    def user_id(self) -> str | None:
        return self.connection.user_id

    def may_decide(self, group: str, *, own: bool) -> bool:
        if group != self._group and not self.connection.service.checks.has(self.number, group):
            return False
        return own or self.connection.may(Verb.CHECK, group)

    @property
    def may_query(self) -> bool:
        # a client without a login may query transactions of such clients only
        return self.user_id is not None and (self.may_manage or self.connection.may_ever(Verb.CHECK))

    @property
    def may_manage(self) -> bool:
        return self.connection.may(Verb.MANAGE, TRANSACTIONS)

    def _timeout_seconds(self, properties: dict[str, object]) -> float:
        """Return the timeout of its transactions: the link property, else the setting (T14)."""
        limits = self.connection.service.instance.transaction_limits
        asked = properties.get(container.TIMEOUT_MS)
        if asked is None:
            return limits.timeout_seconds
        longest = int(limits.longest_timeout_seconds * 1000)
        if isinstance(asked, bool) or not isinstance(asked, int) or not 0 < asked <= longest:
            raise Refusal(
                Condition.INVALID_FIELD,
                f"the link property {container.TIMEOUT_MS} is a number of milliseconds from 1 to {longest} "
                "(transaction.longest_timeout_seconds)",
            )
        return asked / 1000

    # -- messages

    def on_message(
        self, delivery: engine.Pointer, message: Octets, state: int, settled: bool, txn_id: bytes | None
    ) -> bool:
        if self.ending is not None:
            self._reject(delivery, self.ending)
        elif settled:  # T5
            self.refuse(
                Refusal(Condition.ILLEGAL_STATE, "a declare or discharge must be sent unsettled; nothing was done")
            )
        elif message in _PLAIN_DECLARES:
            self._declare(delivery, message)
        elif (
            message[:7] == _PLAIN_DISCHARGE
            and len(message) == 28
            and message[8:11] == b"\x02\xa0\x10"
            and message[27] in (0x41, 0x42)
        ):
            self._discharge(message[11:27], message[27] == 0x41, delivery)
        else:
            self._decode(delivery, message)
        return True

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
                self._declare(delivery, message)
            else:
                fields = _fields(body, "discharge")
                txn_id = fields[0] if fields else None
                fail = fields[1] if len(fields) > 1 else None
                if not isinstance(txn_id, bytes):
                    raise DecodeError("discharge: the field txn-id is a binary and mandatory")
                if fail is not None and not isinstance(fail, bool):  # 0 and 1 are no booleans
                    raise DecodeError("discharge: the field fail is a boolean")
                self._discharge(txn_id, fail is True, delivery)
        except DecodeError as error:
            self._reject(delivery, Refusal(Condition.DECODE_ERROR, str(error)))
        except Refusal as refusal:
            self._reject(delivery, refusal)

    def _declare(self, delivery: engine.Pointer, message: Octets) -> None:
        try:
            txn = self._control.declare()
        except Refusal as refusal:
            self._reject(delivery, refusal)
            return
        traces = self.connection.service.instance.traces
        if traces is not None:
            traces.declared(txn, message)
        txn.wire_state = states.accepted_in(txn.id)
        steps.answer(delivery, engine.DECLARED, states.declared(txn.id), True)
        self.connection.mark()

    def _discharge(self, txn_id: bytes, fail: bool, delivery: engine.Pointer) -> None:
        """Discharge the transaction; answers to its posts that are not written yet are written with the discharge's."""
        self.unanswered += 1
        txn = self._control.discharge(txn_id, fail, delivery)
        if txn is not None:
            self.connection.output.put_off.discard(txn)

    def partial_refused(self, delivery: engine.Pointer, refusal: Refusal) -> None:
        self._reject(delivery, refusal)

    # -- answers

    def accept(self, answer: object) -> None:
        engine.delivery_update(answer, engine.ACCEPTED)
        engine.delivery_settle(answer)
        self.connection.mark()
        self._answered()

    def reject(self, answer: object, refusal: Refusal) -> None:
        self._reject(answer, refusal)
        self._answered()

    def _reject(self, answer: object, refusal: Refusal) -> None:
        self.connection.erred(refusal.condition, refusal.description)
        log.info(
            "refused on the control link",
            peer=self.connection.peer,
            condition=refusal.condition.value,
            description=refusal.description,
        )
        if not self._rejects:  # T8, T10
            self.refuse(refusal)
            return
        engine.set_rejected(answer, refusal.condition, refusal.description, {})
        engine.delivery_settle(answer)
        self.connection.mark()

    def lost(self) -> None:
        super().lost()
        self._control.lost(ended=self.departure is Departure.ENDED)


def _read_check_terms(properties: dict[str, object]) -> OwnCheckTerms:
    """Return the check terms of the link properties (H7)."""
    given = {name: properties.get(f"{container.OURS}{name}") for name in CHECK_PROPERTIES}
    return read_check_terms(given, f"the link property {container.OURS}")


def _body(message: Octets) -> Described | None:
    """Return the declare or discharge in the amqp-value; other sections are ignored (T4)."""
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
