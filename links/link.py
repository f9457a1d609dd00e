"""What incoming and outgoing links have in common."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Condition, Refusal
from coordinator.retirement import Departure
from links import container, engine, frames, performatives, states
from links.close_reason import CloseReason
from store.codec.encoding import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.outcomes import Outcome
    from links.connection import Connection
    from store.permissions import Verb
    from store.spool import Octets

log = structlog.get_logger(__name__)

#: the engine keeps nothing of these, so that a large state beside them is not counted for them
_STATES_WITHOUT_VALUES = (engine.ACCEPTED, engine.RELEASED)
#: no deliveries
NONE: Mapping[engine.Pointer, bytes] = MappingProxyType({})


#: user, container (the connection where it has no id), whether the peer sends, and name: what makes it the same link on
#: another connection (part 2, 2.6.1)
Identity = tuple[str | None, str, bool, str]


class Link:
    """Code that waited for the store checks ``open`` before it uses ``pointer``."""

    __slots__ = ("_channels", "connection", "departure", "identity", "name", "open", "pointer", "right", "session")

    #: octets of a message that is taken at once where it is whole; below 0: none is
    takes: int = -1
    #: once it has ended: what it left of what a client may retire, with the id of the transaction that has it, or none
    undecided: Mapping[engine.Pointer, bytes] = NONE

    def __init__(self, connection: Connection, pointer: engine.Pointer) -> None:
        self.connection = connection
        self._channels = connection.guard.channels
        self.departure = Departure.LOST
        self.pointer = pointer
        self.session = engine.link_session(pointer)
        self.name = engine.link_name(pointer)
        #: with its user, else any client could end the links, and with a control link the transactions, of another (S3)
        self.identity: Identity = (
            connection.user_id,
            connection.container or f"\0{connection.number}",
            bool(engine.link_is_receiver(pointer)),
            self.name,
        )
        self.open = True
        #: without it, the link ends (S3)
        self.right: tuple[Verb, str] | None = None

    def complete(
        self, delivery: engine.Pointer, message: Octets, state: int, settled: bool, txn_id: bytes | None
    ) -> bool:
        """A message was taken. ``txn_id``: of a transactional state, where it is as long as ours. True: the link asks
        itself for what is to be written about it to be written.
        """
        raise NotImplementedError

    def on_delivery(self, delivery: engine.Pointer) -> bool | None:
        """All else that is reported of a delivery. True: as above."""
        raise NotImplementedError

    def on_flow(self) -> None:
        """The peer's flow, or a transfer that the engine has written. The link asks for what is to be written."""
        raise NotImplementedError

    def lost(self) -> None:
        """The link was detached, or its session or connection ended: release everything, and change nothing by the
        pointer.
        """
        raise NotImplementedError

    def refuse(self, refusal: Refusal) -> None:
        """Close the link with this error (part 2, section 2.6.5)."""
        if not self.open:
            return
        log.info(
            "link refused",
            link=self.name,
            peer=self.connection.peer,
            user=self.connection.user,
            condition=refusal.condition.value,
            description=refusal.description,
        )
        engine.set_condition(engine.link_condition(self.pointer), refusal.condition, refusal.description)
        self.departure = Departure.ENDED
        self.connection.endpoints.detach(self)

    def _drop_octets(self) -> None:
        """Those that have come of the delivery that it is at: the engine would keep them."""
        while engine.link_recv(self.pointer, engine.message_buffer, engine.MESSAGE_ROOM) > 0:
            pass

    def cut_off(self) -> None:
        """Its session ends from our side: the engine gets no more of a post that is not complete (T22)."""
        if engine.link_is_receiver(self.pointer) and (current := engine.link_current(self.pointer)) != engine.NULL:
            self._not_taken(current)

    def _not_taken(self, delivery: engine.Pointer, taken: bytes = b"") -> None:
        """It is a post for which the link ends, or which comes behind its end, or of which some would; or is retired
        there. ``taken``: the transaction that has it.
        """
        if engine.delivery_remote_state(delivery) != engine.TRANSACTIONAL:
            return
        try:
            txn_id = states.txn_id_of(delivery)
        except DecodeError:
            return
        if txn_id != taken:
            self.connection.service.registry.not_taken(txn_id, self.connection)

    def _room_for_state(self, delivery: engine.Pointer, octets: int) -> bool:
        """Whether the connection goes on when the engine keeps so many octets of a large state."""
        if engine.delivery_remote_state(delivery) in _STATES_WITHOUT_VALUES:
            return True
        if self.connection.output.hold_state(delivery, octets):
            return True
        text = "large states of deliveries take too much memory (limits.memory_bytes): say less, or of fewer at once"
        self.connection.force_close(CloseReason.LIMIT_EXCEEDED, Condition.RESOURCE_LIMIT_EXCEEDED, text)
        return False


class Attaching(Link):
    """A link whose attach waits for the store. ``open`` is false once the peer has detached it."""

    __slots__ = ()

    def refuse(self, refusal: Refusal) -> None:
        self.connection.endpoints.refuse_attach(self, refusal)

    def on_delivery(self, delivery: engine.Pointer) -> None:
        self.refuse(Refusal(Condition.TRANSFER_LIMIT_EXCEEDED, "a transfer before there was credit"))
        self._not_taken(delivery)

    def on_flow(self) -> None:
        pass  # its credit is read from the engine once it is attached

    def lost(self) -> None:
        self.connection.parked.forget(self)


def copy_source(connection: Connection, pointer: engine.Pointer) -> None:
    """The peer's source in our answer, also where it has no address: the engine takes such a one for none."""
    source, asked = engine.link_source(pointer), connection.asked(pointer)
    engine.terminus_copy(source, engine.link_remote_source(pointer))
    if asked is not None and asked.source:
        engine.terminus_set_type(source, engine.SOURCE)
        if asked.default_outcome is not None:
            answer_default_outcome(connection, pointer, asked.default_outcome)


def answer_default_outcome(connection: Connection, pointer: engine.Pointer, outcome: Outcome) -> None:
    """The answer to the attach, which is not written yet, says that our source has this default-outcome."""
    properties = engine.terminus_properties(engine.link_source(pointer))
    marked = frames.with_default_outcome(performatives.encoded(outcome), engine.encoded_short(properties) or b"")
    engine.put_octets(marked, properties)
    connection.output.frames.due = True


def copy_target(connection: Connection, pointer: engine.Pointer) -> None:
    """The same of its target."""
    target, asked = engine.link_target(pointer), connection.asked(pointer)
    engine.terminus_copy(target, engine.link_remote_target(pointer))
    if asked is not None and asked.target:
        engine.terminus_set_type(target, engine.TARGET)


def answer_terminus(answer: engine.Pointer, asked: engine.Pointer, *, lasts: bool = False) -> None:
    """Our terminus in the answer to an attach: as asked for, except for how long it lasts (part 3, section 3.5.3).

    ``lasts``: the terminus of a lasting subscription, which outlives its link. Its unsettled deliveries do not: the
    next consumer gets them. Every other terminus ends with its link. So no delivery is ever resumed, and no answer has
    a map of unsettled deliveries (part 2, section 2.6.13).
    """
    engine.terminus_copy(answer, asked)
    engine.terminus_set_durability(answer, engine.DURABLE_CONFIGURATION if lasts else engine.NOT_DURABLE)
    engine.terminus_set_expiry_policy(answer, engine.EXPIRE_NEVER if lasts else engine.EXPIRE_WITH_LINK)
    engine.terminus_set_timeout(answer, 0)
    if engine.terminus_is_dynamic(answer):
        engine.put({container.LIFETIME_POLICY: container.DELETE_ON_CLOSE}, engine.terminus_properties(answer))


class Refused(Link):
    """A link that we have closed, or that the peer has detached. What the peer still sends is discarded, as the engine
    would keep it. The engine keeps the buffer of a delivery that is not complete: a connection may have only a few of
    those.
    """

    __slots__ = ("_incomplete", "undecided")

    def __init__(
        self, connection: Connection, pointer: engine.Pointer, undecided: Mapping[engine.Pointer, bytes]
    ) -> None:
        super().__init__(connection, pointer)
        self.open = False
        self.undecided = undecided
        self._incomplete = bool(engine.link_is_receiver(pointer)) and engine.link_current(pointer) != engine.NULL
        connection.incomplete += self._incomplete

    def on_delivery(self, delivery: engine.Pointer) -> None:
        pointer = self.pointer
        if engine.link_is_receiver(pointer):
            # ``delivery`` may have been answered before all of it had come, and one before it may be there still
            while (current := engine.link_current(pointer)) != engine.NULL:
                self._not_taken(current)
                self._drop_octets()
                if engine.delivery_partial(current):
                    self.connection.incomplete += not self._incomplete
                    self._incomplete = True
                    break
                engine.link_advance(pointer)
                engine.discard(current)
                self.connection.mark()
                self.lost()
            return
        if self._channels.largest:
            self._room_for_state(delivery, self._channels.largest)
        taken = self.undecided.get(delivery)
        if taken is not None:
            self._not_taken(delivery, taken)

    def on_flow(self) -> None:
        pass

    def refuse(self, refusal: Refusal) -> None:
        """It is: each of many transfers that are wrong would be told of again."""

    def lost(self) -> None:
        self.connection.incomplete -= self._incomplete
        self._incomplete = False


def refuse_attach(connection: Connection, pointer: engine.Pointer, refusal: Refusal) -> None:
    """Answer an attach with a null terminus, then close the link (part 2, section 2.6.3)."""
    if engine.link_is_receiver(pointer):
        engine.terminus_set_type(engine.link_target(pointer), engine.UNSPECIFIED)
    else:
        engine.terminus_set_type(engine.link_source(pointer), engine.UNSPECIFIED)
    log.info(
        "attach refused",
        link=engine.link_name(pointer),
        peer=connection.peer,
        user=connection.user,
        condition=refusal.condition.value,
        description=refusal.description,
    )
    engine.link_open(pointer)
    engine.set_condition(engine.link_condition(pointer), refusal.condition, refusal.description)
    engine.link_close(pointer)
    connection.endpoints.refused(pointer)
