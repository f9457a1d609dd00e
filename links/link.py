"""A link carries deliveries one way; this module has the base of incoming and outgoing links, and of refused ones."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Condition, Redirect, Refusal
from coordinator.printable import printable
from coordinator.retirement import Departure
from links import container, engine, frames, states
from links.close_reason import CloseReason
from store.codec.encoding import DecodeError
from store.codec.values import Described, Map

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.outcomes import Outcome
    from links.connection import Connection
    from store.permissions import Verb
    from store.spool import Octets

log = structlog.get_logger(__name__)

#: states of which the engine keeps no values: their octets are not counted
_STATES_WITHOUT_VALUES = (engine.ACCEPTED, engine.RELEASED)
#: roles of links: what the client is
SENDER, RECEIVER, COORDINATOR, CHECKER = "sender", "receiver", "coordinator", "checker"
#: no deliveries
NONE: Mapping[engine.Pointer, bytes] = MappingProxyType({})


#: The identity of a link over connections (part 2, 2.6.1): user, container (the connection if it has no id), whether
#: the
#: peer sends, and name.
Identity = tuple[str | None, str, bool, str]
#: characters of a node property's name in an error
_LONGEST_KEY = 100


class Link:
    """One end of a link in the engine. Code that waited for the store checks ``open`` before it uses ``pointer``."""

    __slots__ = ("_channels", "connection", "departure", "identity", "name", "open", "pointer", "right", "session")

    #: what the peer is by this link; empty: the link is refused, or not answered yet
    role: str = ""
    #: the most octets of a whole message that is received in one step; below 0: none is
    takes: int = -1
    #: deliveries that were undecided when the link ended, with the id of the transaction that retired them, or empty
    undecided: Mapping[engine.Pointer, bytes] = NONE

    def __init__(self, connection: Connection, pointer: engine.Pointer) -> None:
        self.connection = connection
        self._channels = connection.guard.channels
        self.departure = Departure.LOST
        self.pointer = pointer
        self.session = engine.link_session(pointer)
        self.name = engine.link_name(pointer)
        #: includes the user, else any client could end the links, or with a control link the transactions, of another
        #: (S3)
        self.identity: Identity = (
            connection.user_id,
            connection.container or f"\0{connection.number}",
            bool(engine.link_is_receiver(pointer)),
            self.name,
        )
        self.open = True
        #: the right that the link needs to stay open (S3)
        self.right: tuple[Verb, str] | None = None

    def complete(
        self, delivery: engine.Pointer, message: Octets, state: int, settled: bool, txn_id: bytes | None
    ) -> bool:
        """Handle a whole message. ``txn_id``: of a transactional state, if it is as long as ours. True: the link itself
        requests the write of its answer.
        """
        raise NotImplementedError

    def on_delivery(self, delivery: engine.Pointer) -> bool | None:
        """Handle any other event of a delivery. True: like :meth:`complete`."""
        raise NotImplementedError

    def on_flow(self) -> None:
        """Handle the peer's flow, or a transfer that the engine has written. The link requests its own writes."""
        raise NotImplementedError

    def lost(self) -> None:
        """Release everything, as the link was detached, or its session or connection ended; the pointer must not be
        used for changes.
        """
        raise NotImplementedError

    @property
    def carried(self) -> int:
        """How many deliveries the link has carried, by the counts that its flow control keeps."""
        return 0

    def refuse(self, refusal: Refusal) -> None:
        """Close the link with this error (part 2, section 2.6.5)."""
        if not self.open:
            return
        self.connection.erred(refusal.condition, refusal.description)
        log.info(
            "link refused",
            link=self.name,
            peer=self.connection.peer,
            user=self.connection.user,
            condition=refusal.condition.value,
            description=refusal.description,
        )
        _set_error(self.connection, self.pointer, refusal)
        self.departure = Departure.ENDED
        self.connection.endpoints.detach(self)

    def _drop_octets(self) -> None:
        """Discard the received octets of the current delivery, which the engine would keep."""
        while engine.link_recv(self.pointer, engine.message_buffer, engine.MESSAGE_ROOM) > 0:
            pass

    def cut_off(self) -> None:
        """Refuse the transaction of an incomplete post, as the service ends the session (T22)."""
        if engine.link_is_receiver(self.pointer) and (current := engine.link_current(self.pointer)) != engine.NULL:
            self._refuse_incomplete(current)

    def _refuse_incomplete(self, delivery: engine.Pointer, taken: bytes = b"") -> None:
        """Refuse the transaction in a delivery's state, as the link does not handle the delivery: it ends for it, or
        has ended before all of it. ``taken``: the transaction that has the delivery already.
        """
        if engine.delivery_remote_state(delivery) != engine.TRANSACTIONAL:
            return
        try:
            txn_id = states.txn_id_of(delivery)
        except DecodeError:
            return
        if txn_id != taken:
            self.connection.service.registry.refuse_incomplete(txn_id, self.connection)

    def _room_for_state(self, delivery: engine.Pointer, octets: int) -> bool:
        """Count the octets of a large state in the engine; False: too many, and the connection is closed."""
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
        self._refuse_incomplete(delivery)

    def on_flow(self) -> None:
        pass  # the credit is read from the engine after the attach

    def lost(self) -> None:
        self.connection.parked.forget(self)


def copy_source(connection: Connection, pointer: engine.Pointer) -> None:
    """Copy the peer's source into our answer, also without an address: the engine treats such a source as null."""
    source, asked = engine.link_source(pointer), connection.hidden_fields(pointer)
    engine.terminus_copy(source, engine.link_remote_source(pointer))
    if asked is not None and asked.source:
        engine.terminus_set_type(source, engine.SOURCE)
        if asked.default_outcome is not None:
            answer_default_outcome(connection, pointer, asked.default_outcome)


def answer_default_outcome(connection: Connection, pointer: engine.Pointer, outcome: Outcome) -> None:
    """Put the default-outcome of our source into the answer to the attach, which is not written yet."""
    properties = engine.terminus_properties(engine.link_source(pointer))
    marked = frames.with_default_outcome(states.encoded(outcome), engine.encoded_short(properties) or b"")
    engine.put_octets(marked, properties)
    connection.output.frames.due = True


def copy_target(connection: Connection, pointer: engine.Pointer) -> None:
    """Copy the peer's target into our answer, also without an address."""
    target, asked = engine.link_target(pointer), connection.hidden_fields(pointer)
    engine.terminus_copy(target, engine.link_remote_target(pointer))
    if asked is not None and asked.target:
        engine.terminus_set_type(target, engine.TARGET)


def check_node(asked: engine.Pointer) -> None:
    """Check the properties that a client sets for its dynamic node (part 3, section 3.5.9). ``asked``: its terminus.

    :raises Refusal: a property is unknown, or has another type.
    """
    name = "dynamic-node-properties"
    found = engine.value(engine.terminus_properties(asked), name)
    if found is not None and not isinstance(found, Map):
        raise Refusal(Condition.INVALID_FIELD, f"{name}: a map was expected")
    for key, wanted in found or ():
        if key == container.LIFETIME_POLICY:
            if (
                not isinstance(wanted, Described)
                or type(wanted.value) is not list
                or wanted.descriptor not in container.LIFETIME_POLICIES
            ):
                raise Refusal(Condition.INVALID_FIELD, f"{name}: {key} is a lifetime-policy, as delete-on-close")
        elif key == "supported-dist-modes":
            modes = wanted if type(wanted) is list else [wanted]
            if not modes or not all(each in ("move", "copy") for each in modes):  # Proton's clients send a string
                raise Refusal(Condition.INVALID_FIELD, f"{name}: {key} has the symbols move and copy")
        else:
            raise Refusal(
                Condition.NOT_IMPLEMENTED,
                f"{name}: {printable(str(key), _LONGEST_KEY)} is not understood; expected lifetime-policy or "
                "supported-dist-modes",
            )


def answer_terminus(answer: engine.Pointer, asked: engine.Pointer, *, lasts: bool = False) -> None:
    """Set our terminus in the answer to an attach: the peer's, except for how long it lasts (part 3, section 3.5.3).

    ``lasts``: the terminus of a lasting subscription, which outlives its link. Its unsettled deliveries do not: the
    next consumer gets them. Every other terminus ends with its link. So deliveries are never resumed, and answers have
    no map of unsettled deliveries (part 2, section 2.6.13).
    """
    engine.terminus_copy(answer, asked)
    engine.terminus_set_durability(answer, engine.DURABLE_CONFIGURATION if lasts else engine.NOT_DURABLE)
    engine.terminus_set_expiry_policy(answer, engine.EXPIRE_NEVER if lasts else engine.EXPIRE_WITH_LINK)
    engine.terminus_set_timeout(answer, 0)
    if engine.terminus_is_dynamic(answer):
        engine.put({container.LIFETIME_POLICY: container.DELETE_ON_CLOSE}, engine.terminus_properties(answer))


class Refused(Link):
    """A link that the service has closed, or the peer has detached. It discards further input, which the engine would
    keep. The engine keeps the buffer of an incomplete delivery: a connection may have only a few of those.
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
            # ``delivery`` may have been answered before it was complete, and an earlier one may still be there
            while (current := engine.link_current(pointer)) != engine.NULL:
                self._refuse_incomplete(current)
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
            self._refuse_incomplete(delivery, taken)

    def on_flow(self) -> None:
        pass

    def refuse(self, refusal: Refusal) -> None:
        """Do nothing: the link is refused already, and each further wrong transfer would be logged again."""

    def lost(self) -> None:
        self.connection.incomplete -= self._incomplete
        self._incomplete = False


def _set_error(connection: Connection, pointer: engine.Pointer, refusal: Refusal) -> None:
    """Set the error with which a link is closed next."""
    condition = engine.link_condition(pointer)
    engine.set_condition(condition, refusal.condition, refusal.description)
    if isinstance(refusal, Redirect):
        most = engine.transport_remote_max_frame(connection.transport)
        engine.set_condition_info(condition, container.redirect(refusal), most - engine.ERROR_ROOM if most else None)


def refuse_attach(connection: Connection, pointer: engine.Pointer, refusal: Refusal) -> None:
    """Answer an attach with a null terminus, then close the link (part 2, section 2.6.3)."""
    if engine.link_is_receiver(pointer):
        engine.terminus_set_type(engine.link_target(pointer), engine.UNSPECIFIED)
    else:
        engine.terminus_set_type(engine.link_source(pointer), engine.UNSPECIFIED)
    connection.erred(refusal.condition, refusal.description)
    log.info(
        "attach refused",
        link=engine.link_name(pointer),
        peer=connection.peer,
        user=connection.user,
        condition=refusal.condition.value,
        description=refusal.description,
    )
    engine.link_open(pointer)
    _set_error(connection, pointer, refusal)
    engine.link_close(pointer)
    connection.endpoints.refused(pointer)
