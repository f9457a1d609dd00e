"""Posting links receive the posts of clients, inside transactions or outside (rules T20 to T25, P9, P10, D9)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog
from proton import symbol

from coordinator.address.nodes import Address, check_target
from coordinator.errors import Condition, Refusal
from coordinator.memory import POST_OCTETS
from coordinator.posts import Relay
from links import container, engine, states, steps
from links.incoming import Incoming
from links.link import SENDER, Attaching, answer_terminus, check_node, copy_source
from store.codec.encoding import DecodeError
from store.permissions import Verb

if TYPE_CHECKING:
    from coordinator.transaction import Transaction
    from links.connection import Connection
    from store.spool import Octets

log = structlog.get_logger(__name__)

#: octets of a producer's name (P22)
LONGEST_PRODUCER = 200

#: the most octets of a delivery in the engine: an incomplete one is moved out of it every few frames
_MOST_IN_ENGINE = 1 << 16

_TOPICS = frozenset(("topic", "temporary-topic"))


def attach_target(connection: Connection, pointer: engine.Pointer) -> None:
    """Attach a link for posts: find or create the address, then answer and grant credit."""
    target = engine.link_remote_target(pointer)
    service = connection.service
    capabilities = engine.symbols(engine.terminus_capabilities(target), "the capabilities of the target")
    topic = not _TOPICS.isdisjoint(capabilities)
    # T23: a refused post does not make its transaction rollback-only
    properties = engine.properties(engine.link_remote_properties(pointer), "the properties of the attach")
    continues = properties.get(container.ON_REFUSED_POST) == "continue"
    producer = _producer(properties.get(container.PRODUCER))
    name = engine.address_of(target)
    outcomes = engine.symbols(
        engine.terminus_outcomes(engine.link_remote_source(pointer)), "the outcomes of the source"
    )
    rejects = not outcomes or "amqp:rejected:list" in outcomes  # a source without a list accepts all

    dynamic = bool(engine.terminus_is_dynamic(target))
    attaching = Attaching(connection, pointer)
    if dynamic:
        check_node(target)
    if name is not None and not dynamic:
        service.elsewhere.check_link(name, name)
        connection.need(Verb.SEND, name)
        attaching.right = Verb.SEND, name
        check_target(name)
    connection.endpoints.attached(attaching)

    def found(address: Address | Refusal) -> None:
        if not attaching.open:
            if dynamic and isinstance(address, Address):
                service.directory.remove_dynamic(address, connection)
        elif isinstance(address, Refusal):
            connection.endpoints.refuse_attach(attaching, address)
        else:
            if dynamic:
                connection.endpoints.dynamic[pointer] = address
            connection.endpoints.attached(Posting(connection, pointer, address, continues, rejects, producer))

    if dynamic:
        connection.parked.ask(attaching, partial(service.directory.make_dynamic, maker=connection, topic=topic), found)
    elif name is None:
        connection.endpoints.attached(Posting(connection, pointer, None, continues, rejects, producer))
    else:
        question = partial(service.directory.resolve, name, maker=connection, topic=topic)
        connection.parked.ask(attaching, question, found)


def _producer(said: object) -> str | None:
    """Return the producer that the properties of an attach name; None: they name none.

    :raises Refusal: it is no name.
    """
    if said is None:
        return None
    if not isinstance(said, str) or not 0 < len(said.encode()) <= LONGEST_PRODUCER or "\0" in said:
        text = f"{container.PRODUCER} is a string of 1 to {LONGEST_PRODUCER} octets, without NUL"
        raise Refusal(Condition.INVALID_FIELD, text)
    return said


class Posting(Incoming):
    """Receives posts, which :mod:`coordinator.posts` accepts or refuses; implements
    :class:`coordinator.posts.PostLink`.

    ``address``: None on the anonymous relay, where the ``to`` of each message names it (P9). ``continues``: a refused
    post does not make its transaction rollback-only (T23). ``rejects``: its source accepts the outcome rejected.
    ``producer``: the name that its client gives (P22).
    """

    role = SENDER
    __slots__ = (
        "_awaited", "_named", "_partial_txn", "_posts", "_rejects", "_sizes", "_stood_still", "address", "continues",
        "producer", "relay", "second",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        pointer: engine.Pointer,
        address: Address | None,
        continues: bool,
        rejects: bool,
        producer: str | None,
    ) -> None:
        service = connection.service
        super().__init__(connection, pointer, service.bounds.link_credit, int(service.limits.max_message_size_bytes))
        connection.posting += 1
        self.address: Address | None = address
        self.producer: str | None = producer
        self._partial_txn: Transaction | None = None
        self._posts = connection.service.posts
        self.relay = Relay(self._posts, self) if address is None else None
        self._rejects = rejects
        #: whether the error of its end names the delivery that is the reason
        self._named = False
        self.second = engine.link_remote_rcv_settle_mode(pointer) == engine.RCV_SECOND
        #: with receiver settle mode second: octets of posts not answered yet; and of answered ones that their sender
        #: has not settled
        self._sizes: dict[engine.Pointer, int] = {}
        self._awaited: dict[engine.Pointer, int] = {}
        self._stood_still = False
        self.continues = continues
        copy_source(connection, pointer)
        target = engine.link_target(pointer)
        answer_terminus(target, engine.link_remote_target(pointer))
        if address is not None:
            address.users.add(self)
            engine.set_address(target, address.name)
        engine.link_set_snd_settle_mode(pointer, engine.link_remote_snd_settle_mode(pointer))
        engine.link_set_rcv_settle_mode(pointer, engine.link_remote_rcv_settle_mode(pointer))
        self.start()

    @property
    def peer(self) -> str:
        return self.connection.peer

    # -- partial deliveries

    def partial(self, delivery: engine.Pointer) -> None:
        if self._partial_txn is None and engine.delivery_remote_state(delivery) == engine.TRANSACTIONAL:
            try:
                txn_id = states.txn_id_of(delivery)
            except DecodeError:
                return  # refused when it is complete
            self._partial_txn = self._posts.begin(self, txn_id)

    def partial_refused(self, delivery: engine.Pointer, refusal: Refusal) -> None:
        """Refuse an incomplete post: the transaction must not commit without the message (T22, T23)."""
        txn, settled = self._partial_txn, bool(engine.delivery_settled(delivery))
        if txn is not None and txn.open and (settled or not self.continues):
            txn.refuse(refusal)
        if settled:
            engine.delivery_settle(delivery)
        elif txn is not None:
            self.rejected_in(delivery, txn, refusal)
        else:
            self.rejected(delivery, refusal)
        if delivery in self._awaited:  # the rest of it need not be sent
            self._settle_awaited(delivery)

    def partial_ended(self) -> None:
        if self._partial_txn is not None:
            self._partial_txn.partials -= 1
            self._partial_txn = None

    # -- messages

    def on_message(
        self, delivery: engine.Pointer, message: Octets, state: int, settled: bool, txn_id: bytes | None
    ) -> bool:
        malformed = None
        if state == engine.TRANSACTIONAL and txn_id is None:
            try:
                txn_id = states.txn_id_of(delivery)
            except DecodeError as error:
                malformed = Refusal(Condition.DECODE_ERROR, str(error))
        if settled:  # a settled post gets no answer, so that the engine need not keep it
            tag = None if self.relay is None and self.producer is None else engine.tag_of(delivery)
            engine.delivery_settle(delivery)
            delivery = tag
        elif self.second:
            self._sizes[delivery] = len(message) + POST_OCTETS if isinstance(message, bytes) else POST_OCTETS
        if malformed is not None:
            self._posts.refuse_unknown(self, delivery, settled, malformed)
        else:
            self._posts.take(self, delivery, message, settled, txn_id)
        return True

    def tag(self, delivery: engine.Pointer | bytes, settled: bool) -> bytes:
        found = bytes(delivery) if settled else engine.tag_of(delivery)
        if not 0 < len(found) <= states.LONGEST_TAG:
            text = f"a delivery-tag of {len(found)} octets: of a producer 1 to {states.LONGEST_TAG} are expected"
            raise Refusal(Condition.INVALID_FIELD, text)
        return found

    def waits(self, delivery: engine.Pointer, octets: int) -> None:
        self.unanswered += 1
        self.connection.output.hold_post(min(octets, _MOST_IN_ENGINE))

    def accepted_in(self, delivery: engine.Pointer, txn: Transaction) -> None:
        self.connection.output.put_off.add(txn)
        self._answer_in(delivery, txn)

    def _answer_in(self, delivery: engine.Pointer, txn: Transaction) -> None:
        steps.answer(delivery, engine.TRANSACTIONAL, txn.wire_state, not self.second)

    def stored_in(self, delivery: engine.Pointer, octets: int, txn: Transaction) -> None:
        self._release(octets)
        if self.open:
            self._answer_in(delivery, txn)
            self.connection.mark()
        self._answered()

    def not_stored_in(self, delivery: engine.Pointer, octets: int, txn: Transaction, refusal: Refusal) -> None:
        self._release(octets)
        if self.open:
            self.rejected_in(delivery, txn, refusal)
        self._answered()

    def rejected_in(self, delivery: engine.Pointer, txn: Transaction, refusal: Refusal) -> None:
        if not self._rejects:
            if txn.open:
                txn.refuse(refusal)  # T23: even if a refused post does not end it, as no outcome reports this one
            self.rejected(delivery, refusal)
            return
        self.connection.erred(refusal.condition, refusal.description)
        tag = None if self.relay is None else engine.tag_of(delivery)
        engine.set_state(delivery, engine.TRANSACTIONAL, states.rejected_in(txn.id, refusal, tag))
        self._conclude(delivery)

    def rejected(self, delivery: engine.Pointer, refusal: Refusal) -> None:
        info: dict[object, object] = {}
        if self.relay is not None:  # anonymous terminus 1.0, section 2.2
            info[symbol(states.DELIVERY_TAG)] = engine.tag_of(delivery)
        if not self._rejects:
            if info and not self._named:  # the delivery for which the link ends
                self._named = True
                engine.set_condition_info(engine.link_condition(self.pointer), info)
            self.refuse(refusal)
            return
        self.connection.erred(refusal.condition, refusal.description)
        engine.set_rejected(delivery, refusal.condition, refusal.description, info)
        self._conclude(delivery)

    def refuse_settled(self, delivery: bytes | None, refusal: Refusal) -> None:
        if self.open and self._leave is None and delivery is not None:  # anonymous terminus 1.0, section 2.2
            info: dict[object, object] = {symbol(states.DELIVERY_TAG): delivery}
            engine.set_condition_info(engine.link_condition(self.pointer), info)
        self.refuse(refusal)

    def _conclude(self, delivery: engine.Pointer) -> None:
        """Settle a post that has its outcome; with receiver settle mode second, after its sender (part 2, section
        2.8.3): until then it uses up credit.

        If memory is short, the oldest are settled at once.
        """
        self.connection.mark()
        if not self.second or engine.delivery_settled(delivery):
            self._sizes.pop(delivery, None)
            engine.delivery_settle(delivery)
            return
        size = self._sizes.pop(delivery, POST_OCTETS)
        self._awaited[delivery] = size
        memory = self.connection.service.memory
        memory.unread += size
        while self._awaited and memory.unread > memory.most:
            self._settle_awaited(next(iter(self._awaited)))
        if len(self._awaited) >= self._used >= self._credit and not self._stood_still:
            self._stood_still = True
            log.warning(
                "no credit for a sender that settles none of its answered posts (receiver settle mode second)",
                link=self.name,
                peer=self.peer,
                user=self.connection.user,
                unsettled=len(self._awaited),
            )

    def settled_later(self, delivery: engine.Pointer) -> None:
        if delivery in self._awaited and engine.delivery_settled(delivery):
            self._settle_awaited(delivery)

    def _unsettled(self) -> int:
        return len(self._awaited)

    def _settle_awaited(self, delivery: engine.Pointer) -> None:
        self.connection.service.memory.unread -= self._awaited.pop(delivery)
        engine.delivery_settle(delivery)
        self.connection.mark()
        self._top_up_late()

    def parked(self, octets: int) -> None:
        self.connection.parked.add(octets)

    def caught_up(self) -> None:
        self._left()
        if self.open:
            self._top_up_late()
        self.connection.mark()

    # -- answers of the store

    def stored(self, delivery: engine.Pointer, octets: int) -> None:
        self._release(octets)
        if self.open:
            engine.delivery_update(delivery, engine.ACCEPTED)
            self._conclude(delivery)
        self._answered()

    def _release(self, octets: int) -> None:
        connection = self.connection
        connection.output.release_post(min(octets, _MOST_IN_ENGINE))
        if connection.paused and connection.open:
            if not connection.must_pause:
                connection.service.loop.call_later(0, connection.resume)
            elif connection.service.commit.overfull:  # the group commit may have become overfull during the pause
                connection.service.when_uncongested(connection.resume)

    def not_stored(self, delivery: engine.Pointer, octets: int, refusal: Refusal) -> None:
        self._release(octets)
        if self.open:
            self.rejected(delivery, refusal)
        if refusal.condition is not Condition.RESOURCE_DELETED:  # the relay still has its other addresses
            self.refuse(refusal)
        self._answered()

    # -- the end

    @property
    def busy(self) -> bool:
        return bool(self.unanswered or (self.relay is not None and self.relay.waiting))

    def _give_credit(self) -> None:
        if not (self.relay is not None and self.relay.waiting):
            super()._give_credit()

    def decided(self, delivery: object, committed: bool) -> None:
        """Settle a post by its transaction's decision (T25)."""
        if self.open:
            engine.delivery_update(delivery, engine.ACCEPTED if committed else engine.RELEASED)
            self._conclude(delivery)

    def left(self, delivery: object) -> None:
        if self.open:
            self._conclude(delivery)

    def lost(self) -> None:
        self.connection.service.memory.unread -= sum(self._awaited.values())
        self._awaited = {}
        super().lost()
        if self.address is not None:
            self.address.users.discard(self)
        self.connection.posting -= 1
        if self.relay is not None:
            self.relay.link_lost()
