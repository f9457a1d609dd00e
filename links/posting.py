"""Links on which clients post, in transactions or without (rules T20 to T25, P9, P10, D9)."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import structlog

from coordinator.directory import Address
from coordinator.encoding import DecodeError
from coordinator.errors import Condition, Refusal
from coordinator.message import examine, to_of
from coordinator.transactions import Transaction
from links import container, engine, states, values
from links.incoming import Incoming
from links.link import Attaching, answer_terminus

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.entries import Entry
    from links.connection import Connection
    from store.commit.batch import Batch
    from store.commit.terms import Terms
    from store.errors import StoreError
    from store.spool import Octets

log = structlog.get_logger(__name__)

_TOPICS = frozenset(("topic", "temporary-topic"))


def attach_target(connection: Connection, pointer: engine.Pointer) -> None:
    """A client wants to post: find the address (or make it), then answer. No credit is given before."""
    target = engine.link_remote_target(pointer)
    service = connection.service
    capabilities = values.symbols(engine.terminus_capabilities(target), "the capabilities of the target")
    topic = not _TOPICS.isdisjoint(capabilities)
    # T23: a refused post does not spoil its transaction
    properties = values.properties(engine.link_remote_properties(pointer), "the properties of the attach")
    continues = properties.get(container.ON_REFUSED_POST) == "continue"
    name = engine.address_of(target)

    dynamic = bool(engine.terminus_is_dynamic(target))
    attaching = Attaching(connection, pointer)
    connection.attached(attaching)

    def found(address: Address | Refusal) -> None:
        if not attaching.open:
            if dynamic and isinstance(address, Address):
                service.directory.remove_dynamic(address)
        elif isinstance(address, Refusal):
            connection.refuse_attach(attaching, address)
        else:
            if dynamic:
                connection.dynamic[pointer] = address
            connection.attached(Posting(connection, pointer, address, continues))

    if dynamic:
        service.make_dynamic(found, topic=topic)
    elif name is None:
        connection.attached(Posting(connection, pointer, None, continues))
    else:
        service.resolve(name, found, topic=topic)


class PlainPost:
    """Unit: one message posted outside transactions."""

    __slots__ = ("_address", "_delivery", "_entry", "_id", "_link", "_message", "_terms")

    def __init__(
        self, link: Posting, delivery: engine.Pointer | None, address: Address, message: Octets, terms: Terms
    ) -> None:
        """``delivery``: None where the peer settled it."""
        self._link = link
        if delivery is not None:
            link.unanswered += 1
        self._delivery = delivery
        self._address = address
        self._message = message
        self._terms = terms
        self._entry: Entry | None = None
        self._id = 0

    def write(self, batch: Batch) -> None:
        connection = self._link.connection
        service = connection.service
        if self._id:  # written before, in a batch that was refused for another unit
            service.unposted(self._entry)
        half_id = self._id = self._id or service.ids.next()
        batch.half(half_id, bytes(16), self._address.id, self._message)
        self._entry = service.write_entry(batch, self._address, half_id, self._message, self._terms, connection)

    def durable(self) -> None:
        link = self._link
        link.connection.service.posted(self._address, self._entry, self._id, self._terms)
        if self._delivery is not None:
            if link.open:
                engine.delivery_update(self._delivery, engine.ACCEPTED)
                engine.delivery_settle(self._delivery)
                link.connection.mark()
            link.answered()

    def refused(self, error: StoreError) -> None:
        link = self._link
        link.connection.service.unposted(self._entry)
        refusal = Refusal(Condition.INTERNAL_ERROR, "the store could not take the message")
        if self._delivery is not None and link.open:
            link.reject(self._delivery, refusal)
        link.refuse(refusal)
        if self._delivery is not None:
            link.answered()


class Posting(Incoming):
    """``address``: None on the anonymous relay, where each message says ``to`` (P9). ``continues``: a refused post does
    not spoil its transaction (T23).
    """

    __slots__ = (
        "_address",
        "_continues",
        "_leave",
        "_partial_txn",
        "_refusal",
        "_second",
        "_waiting",
        "unanswered",
    )

    def __init__(
        self, connection: Connection, pointer: engine.Pointer, address: Address | None, continues: bool
    ) -> None:
        limits = connection.service.limits
        super().__init__(connection, pointer, limits.link_credit, int(limits.max_message_size_bytes))
        connection.posting += 1
        self._address = address
        self._partial_txn: Transaction | None = None
        #: posts outside transactions that the store has not taken yet, and that the peer waits for
        self.unanswered: int = 0
        #: what ends the link once they are answered, and what is said to posts until then
        self._leave: Callable[[], None] | None = None
        self._refusal: Refusal | None = None
        #: deliveries of the relay whose address is being looked up, and those behind them
        self._waiting: deque[tuple[engine.Pointer, Octets, bool, Transaction | None]] = deque()
        self._second = engine.link_remote_rcv_settle_mode(pointer) == engine.RCV_SECOND
        self._continues = continues
        engine.terminus_copy(engine.link_source(pointer), engine.link_remote_source(pointer))
        target = engine.link_target(pointer)
        answer_terminus(target, engine.link_remote_target(pointer))
        if address is not None:
            engine.set_address(target, address.name)
        engine.link_set_snd_settle_mode(pointer, engine.link_remote_snd_settle_mode(pointer))
        engine.link_set_rcv_settle_mode(pointer, engine.link_remote_rcv_settle_mode(pointer))
        self.start()

    # -- partial deliveries

    def partial(self, delivery: engine.Pointer) -> None:
        if self._partial_txn is None and engine.delivery_remote_state(delivery) == engine.TRANSACTIONAL:
            try:
                txn_id = states.txn_id_of(delivery)
            except DecodeError:
                return  # refused when it is complete
            txn = self.connection.service.find(txn_id, self.connection)
            if txn is not None:
                txn.partials += 1
                self._partial_txn = txn

    def partial_refused(self, refusal: Refusal) -> None:
        """T22, T23: the link ends, but its transaction must not be committed without the message."""
        if self._partial_txn is not None and self._partial_txn.open:
            self._partial_txn.refuse(refusal)

    def partial_ended(self) -> None:
        if self._partial_txn is not None:
            self._partial_txn.partials -= 1
            self._partial_txn = None

    # -- messages

    def on_message(self, delivery: engine.Pointer, message: Octets, state: int, settled: bool) -> None:
        txn: Transaction | None = None
        if state == engine.TRANSACTIONAL:
            service = self.connection.service
            try:
                txn_id = states.txn_id_of(delivery)
            except DecodeError as error:
                self._refuse_unknown(delivery, settled, Refusal(Condition.DECODE_ERROR, str(error)))
                return
            txn = service.find(txn_id, self.connection)
            if txn is None or txn.wanted is not None:
                self._refuse_unknown(delivery, settled, service.unknown(txn_id))
                return
        if self._refusal is not None:
            self._refuse_post(delivery, settled, txn, self._refusal)
        elif self._waiting:
            self._park(delivery, message, settled, txn)
        else:
            self._post(delivery, message, settled, txn)

    def _post(self, delivery: engine.Pointer, message: Octets, settled: bool, txn: Transaction | None) -> None:
        service = self.connection.service
        try:
            facts = examine(message)
            address = self._address
            if address is None:
                address = service.directory.known(_to(message))
                if address is None:
                    self._park(delivery, message, settled, txn)
                    self._look_up(_to(message))
                    return
            terms = service.terms(facts, address)
            if txn is None:
                service.commit.add(
                    PlainPost(self, None if settled else delivery, address, message, terms), len(message)
                )
                if settled:
                    engine.delivery_settle(delivery)
                return
            txn.post(address, message, terms)
        except DecodeError as error:
            self._refuse_post(delivery, settled, txn, Refusal(Condition.DECODE_ERROR, f"malformed message: {error}"))
            return
        except Refusal as refusal:
            self._refuse_post(delivery, settled, txn, refusal)
            return
        if not settled:
            engine.set_state(delivery, engine.TRANSACTIONAL, txn.wire_state)
            if self._second:
                txn.unsettled_posts.append((self, delivery))
                return
        engine.delivery_settle(delivery)

    def _refuse_unknown(self, delivery: engine.Pointer, settled: bool, refusal: Refusal) -> None:
        """T24: the message is never stored."""
        if settled:
            engine.delivery_settle(delivery)
            self.refuse(refusal)
        else:
            self.reject(delivery, refusal)

    def _refuse_post(self, delivery: engine.Pointer, settled: bool, txn: Transaction | None, refusal: Refusal) -> None:
        """T22, T23. A settled post outside transactions has no other way to hear of it than the end of its link."""
        log.info(
            "post refused",
            peer=self.connection.peer,
            address=None if self._address is None else self._address.name,
            condition=refusal.condition.value,
            description=refusal.description,
        )
        if txn is not None and not self._continues:
            txn.refuse(refusal)
        if not settled:
            if txn is None:
                self.reject(delivery, refusal)
            else:
                engine.set_state(delivery, engine.TRANSACTIONAL, states.rejected_in(txn.id, refusal))
                engine.delivery_settle(delivery)
                self.connection.mark()
            return
        engine.delivery_settle(delivery)
        if txn is None:
            self.refuse(refusal)
        elif self._continues:
            txn.refuse(refusal)  # settled: the peer cannot know of it but by the discharge (T22)

    def reject(self, delivery: engine.Pointer, refusal: Refusal) -> None:
        engine.set_rejected(delivery, refusal.condition, refusal.description)
        engine.delivery_settle(delivery)
        self.connection.mark()

    # -- the relay

    def _park(self, delivery: engine.Pointer, message: Octets, settled: bool, txn: Transaction | None) -> None:
        """Until an address is known, deliveries of this link wait in their order, and discharges wait for them."""
        self._waiting.append((delivery, message, settled, txn))
        if txn is not None:
            txn.parked += 1

    def _look_up(self, name: str) -> None:
        self.connection.service.resolve(name, self._looked_up)

    def _looked_up(self, address: Address | Refusal) -> None:
        waiting = self._waiting
        if not self.open or not waiting:
            return
        if isinstance(address, Refusal):
            delivery, _, settled, txn = waiting.popleft()
            self._refuse_post(delivery, settled, txn if txn is not None and txn.open else None, address)
            if txn is not None:
                txn.unpark()
        while waiting and self.open:
            delivery, message, settled, txn = waiting[0]
            if txn is not None and not txn.open:  # its time ran out meanwhile
                waiting.popleft()
                self._refuse_unknown(delivery, settled, self.connection.service.unknown(txn.id))
                continue
            name = _to_or_none(message)
            if name is not None and self.connection.service.directory.known(name) is None:
                self._look_up(name)
                return
            waiting.popleft()
            self._post(delivery, message, settled, txn)
            if txn is not None:
                txn.unpark()
        self._left()
        self.connection.mark()

    # -- the end

    @property
    def busy(self) -> bool:
        """Something that was posted is not answered yet. The engine settles what is not when a link ends, without an
        outcome: that would say nothing of a message that may not be stored.
        """
        return bool(self.unanswered or self._waiting)

    def when_answered(self, leave: Callable[[], None]) -> None:
        """End the link by ``leave`` when it is no longer busy; until then it takes nothing more."""
        self._leave = leave

    def answered(self) -> None:
        self.unanswered -= 1
        self._left()

    def _left(self) -> None:
        if self._leave is not None and not self.busy:
            leave, self._leave = self._leave, None
            leave()
            self.connection.mark()

    def refuse(self, refusal: Refusal) -> None:
        if self.open and self.busy:
            self._refusal = self._refusal or refusal
            if self._leave is None:
                self._leave = partial(super().refuse, refusal)
        else:
            super().refuse(refusal)

    def _give_credit(self) -> None:
        if self._leave is None:
            super()._give_credit()

    def decided(self, delivery: object, committed: bool) -> None:
        """T25."""
        if self.open:
            engine.delivery_update(delivery, engine.ACCEPTED if committed else engine.RELEASED)
            engine.delivery_settle(delivery)
            self.connection.mark()

    def lost(self) -> None:
        self._leave = None
        super().lost()
        self.connection.posting -= 1
        while self._waiting:
            _, _, _, txn = self._waiting.popleft()
            if txn is not None and txn.open:
                txn.refuse(Refusal(Condition.TXN_ROLLBACK, "a link was detached before what it posted was taken"))
                txn.unpark()


def _to(message: Octets) -> str:
    name = to_of(message)
    if name is None:
        raise Refusal(Condition.PRECONDITION_FAILED, "the anonymous relay needs the property to in each message")
    return name


def _to_or_none(message: Octets) -> str | None:
    try:
        return to_of(message)
    except DecodeError:
        return None  # refused when its turn comes
