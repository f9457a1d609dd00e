"""Links on which messages go out: consumers that take, browsers that look (rules T26 to T34, P5 to P8, P11, P16)."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from coordinator import groups
from coordinator import message as messages
from coordinator.directory import Address
from coordinator.encoding import DecodeError
from coordinator.errors import Condition, Refusal
from coordinator.groups import Group
from coordinator.outcomes import ACCEPTED, FAILED, RELEASED, Kind, Outcome
from coordinator.queues import Entry, Queue, now_micros
from coordinator.search import Search
from links import container, engine, filters, states
from links.filters import Filters
from links.link import Attaching, Link
from store import queries

if TYPE_CHECKING:
    from links.connection import Connection
    from store.errors import StoreError
    from store.queries import Row

_keys = count(1)

#: octets a session may have waiting to be written before its consumers stop
_MOST_BACKLOG = 1 << 20
_BROWSED_AT_ONCE = 200

_TOPICS = frozenset(("topic", "temporary-topic"))


def attach_source(connection: Connection, pointer: engine.Pointer) -> None:
    """A client wants to consume or browse: find the address (or make it), then answer."""
    source = engine.link_remote_source(pointer)
    service = connection.service
    capabilities = engine.symbols_of(engine.terminus_capabilities(source))
    topic = not _TOPICS.isdisjoint(capabilities)
    browse = engine.terminus_distribution_mode(source) == engine.DIST_MODE_COPY
    dynamic = bool(engine.terminus_is_dynamic(source))
    source_name = engine.address_of(source)
    name, group_name = (None, None) if source_name is None else groups.part(source_name)
    asked = filters.asked(engine.value_of(engine.terminus_filter(source)))
    attaching = Attaching(connection, pointer)
    lasting = name is None or engine.terminus_expiry_policy(source) == engine.EXPIRE_NEVER
    shared, globally = "shared" in capabilities, "global" in capabilities
    subscription = groups.subscription(
        connection.container, engine.link_name(pointer), shared=shared, globally=globally
    )

    def found(address: Address | Refusal) -> None:
        if not attaching.open:
            if dynamic and isinstance(address, Address):
                service.directory.remove_dynamic(address)
        elif isinstance(address, Refusal):
            connection.refuse_attach(attaching, address)
        else:
            if dynamic:
                connection.dynamic[pointer] = address
            if group_name is not None:
                join(address, Group(name=group_name, lasting=True))
            elif address.queue is not None:
                attach(address, address.queue, None)
            elif lasting:
                join(address, Group(name=subscription, lasting=True, ends_with_close=True))
            else:
                own = f"shared/{service.instance_id}" if shared else service.uuids.next().hex()
                join(address, Group(name=f"{subscription}/{own}"[-1024:], lasting=False))

    def join(address: Address, group: Group) -> None:
        service.join(address, group, lambda queue: joined(address, group, queue))

    def joined(address: Address, group: Group, queue: Queue | Refusal) -> None:
        if isinstance(queue, Refusal):
            if attaching.open:
                connection.refuse_attach(attaching, queue)
        elif not attaching.open:
            if not group.lasting:
                service.remove_group(address, queue)
        else:
            attach(address, queue, group)

    def attach(address: Address, queue: Queue, group: Group | None) -> None:
        if browse and not address.topic:
            connection.attached(Browsing(connection, pointer, address, queue, asked.without_no_local()))
        elif group is not None and address.topic and group_name is None:
            known = asked if not shared else asked.without_no_local()
            if any(isinstance(other, Subscribing) and other.selects != known.text for other in queue.consumers):
                refusal = Refusal(Condition.NOT_ALLOWED, "the subscription is shared with another selector")
                connection.refuse_attach(attaching, refusal)
                return
            connection.attached(Subscribing(connection, pointer, address, queue, group, known))
        else:
            kind = Consuming if asked.selector is None else Choosing
            connection.attached(kind(connection, pointer, address, queue, group, asked.without_no_local()))

    def looked_up(topic_name: str | StoreError | None) -> None:
        """A null source asks for a subscription that is there already: a client that wants to end it."""
        nonlocal subscription
        if not attaching.open:
            return
        if isinstance(topic_name, str):
            service.resolve(topic_name, found)
            return
        anyones = groups.anyones(engine.link_name(pointer))
        if anyones is not None and anyones != subscription:
            subscription = anyones
            service.subscription(subscription, looked_up)
            return
        connection.refuse_attach(
            attaching, Refusal(Condition.NOT_FOUND, f"there is no lasting subscription {subscription!r}")
        )

    if topic and shared and globally and not lasting and service.peers:
        # its links may be at any instance, and none knows which of them is the last
        raise Refusal(
            Condition.NOT_IMPLEMENTED,
            "a shared subscription that does not last needs a client's id where several instances share the store",
        )

    if dynamic:
        connection.attached(attaching)
        service.make_dynamic(found, topic=topic)
    elif name is None:
        connection.attached(attaching)
        service.subscription(subscription, looked_up)
    else:
        connection.attached(attaching)
        service.resolve(name, found, topic=topic)


class Outgoing(Link):
    """What consumers and browsers share: the answer to the attach, and how a delivery is made."""

    __slots__ = ("_address", "_queue", "_store_prefix", "credit", "default_outcome", "draining", "key", "presettled")

    def __init__(
        self, connection: Connection, pointer: engine.Pointer, address: Address, queue: Queue, honoured: Filters
    ) -> None:
        super().__init__(connection, pointer)
        self.key = next(_keys)
        self._address = address
        self._queue = queue
        self._store_prefix = connection.service.store_id.encode() + b":"
        self.presettled = engine.link_remote_snd_settle_mode(pointer) == engine.SND_SETTLED
        #: Proton 0.40 drops the source's default-outcome, so that T28's own default holds
        self.default_outcome: Outcome | None = None
        source = engine.link_source(pointer)
        engine.terminus_copy(source, engine.link_remote_source(pointer))
        if engine.terminus_get_type(source) != engine.SOURCE:  # it asked for a subscription by the link's name alone
            engine.terminus_set_type(source, engine.SOURCE)
            engine.terminus_set_expiry_policy(source, engine.EXPIRE_NEVER)
        engine.set_address(source, engine.address_of(engine.link_remote_source(pointer)) or address.name)
        # P8: filters that are not known are left out of the answer
        engine.put(honoured.answer(), engine.terminus_filter(source))
        engine.put(container.symbols(container.OUTCOMES), engine.terminus_outcomes(source))
        engine.terminus_copy(engine.link_target(pointer), engine.link_remote_target(pointer))
        engine.link_set_snd_settle_mode(pointer, engine.link_remote_snd_settle_mode(pointer))
        engine.link_set_rcv_settle_mode(pointer, engine.link_remote_rcv_settle_mode(pointer))
        engine.link_set_max_message_size(pointer, int(connection.service.limits.max_message_size_bytes))
        engine.link_open(pointer)
        self.credit = max(0, engine.link_credit(pointer))
        self.draining = bool(engine.link_get_drain(pointer))
        connection.mark()

    def on_flow(self) -> None:
        self.credit = max(0, engine.link_credit(self.pointer))
        self.draining = bool(engine.link_get_drain(self.pointer))
        self._queue.touch()
        self.connection.mark()

    def drained(self) -> None:
        engine.link_drained(self.pointer)
        self.credit = 0
        self.draining = False
        self.connection.mark()

    def _deliver(self, entry: Entry) -> engine.Pointer:
        octets = entry.message
        assert octets is not None
        if entry.attempts or entry.expires or entry.annotations:
            left = max(1, (entry.expires - now_micros()) // 1000) if entry.expires else None
            octets = messages.outgoing(octets, entry.attempts, left, entry.annotations)
        pointer = self.pointer
        delivery = engine.outgoing_delivery(pointer, self._store_prefix + b"%d" % entry.id)
        engine.link_send(pointer, octets, len(octets))
        engine.link_advance(pointer)
        self.credit -= 1
        self.connection.mark()
        return delivery


class Consuming(Outgoing):
    """Implements :class:`coordinator.queues.Consumer`."""

    __slots__ = ("_backlog", "_group", "_most_unsettled", "_starved", "_unsettled")

    def __init__(
        self,
        connection: Connection,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        group: Group | None,
        honoured: Filters,
    ) -> None:
        """``group``: None for the default group."""
        super().__init__(connection, pointer, address, queue, honoured)
        self._group = group
        self._unsettled: dict[engine.Pointer, Entry] = {}
        self._most_unsettled = connection.service.limits.unsettled_per_link
        self._backlog = 0
        self._starved = False
        self._join()

    def _join(self) -> None:
        self._queue.add(self)

    # -- deliveries

    @property
    def room(self) -> int:
        room = self._most_unsettled - len(self._unsettled)
        if self.credit < room:
            room = self.credit
        if room <= 0 or self._starved:
            return 0
        self._backlog = engine.session_outgoing_bytes(self.session)
        # what the engine has made frames of is no longer the session's, and waits for the socket
        if self._backlog > _MOST_BACKLOG or self.connection.writing:
            self._starve()
            return 0
        return room

    def _starve(self) -> None:
        if not self._starved:
            self._starved = True
            self.connection.starved.append(self)

    def fed(self) -> None:
        """Something was written: see again."""
        self._starved = False
        if self.open:
            if engine.session_outgoing_bytes(self.session) > _MOST_BACKLOG:
                self._starve()
            else:
                self._queue.touch()

    def send(self, entry: Entry) -> bool:
        delivery = self._deliver(entry)
        if self.presettled:
            engine.delivery_settle(delivery)
            self.connection.service.settle_later(entry, ACCEPTED)
        else:
            entry.link = self
            entry.delivery = delivery
            self._unsettled[delivery] = entry
        self._backlog += entry.size
        if self._backlog > _MOST_BACKLOG:
            self._starve()
            return False
        return True

    # -- outcomes

    def on_delivery(self, delivery: engine.Pointer) -> None:
        entry = self._unsettled.get(delivery)
        if entry is None:
            return
        state = engine.delivery_remote_state(delivery)
        settled = bool(engine.delivery_settled(delivery))
        if state == engine.TRANSACTIONAL:
            self._retire_in_transaction(entry, delivery, settled)
            return
        if entry.txn is not None:
            # a plain state after a transactional one changes nothing before the discharge but the settlement
            entry.peer_settled = entry.peer_settled or settled
            return
        if entry.outcome is not None:
            return  # on its way to the store
        outcome = ACCEPTED if state == engine.ACCEPTED else states.plain_outcome(delivery, state)
        if outcome is None:
            if not settled:
                return
            outcome = self.default_outcome or RELEASED
        entry.outcome = outcome
        self.connection.service.settle_later(entry, outcome)

    def _retire_in_transaction(self, entry: Entry, delivery: engine.Pointer, settled: bool) -> None:
        service = self.connection.service
        try:
            txn_id, outcome = states.retirement_of(delivery)
        except DecodeError as error:
            self.refuse(Refusal(Condition.DECODE_ERROR, str(error)))
            return
        txn = service.find(txn_id, self.connection)
        enlisted = entry.txn
        if txn is None or txn.wanted is not None:
            if enlisted is not None and enlisted.id == txn_id:
                entry.peer_settled = entry.peer_settled or settled  # its discharge is under way (T34)
            elif enlisted is None and entry.last_txn == txn_id:
                if settled:  # it was part of that transaction, which rolled back (T34, T28)
                    self._settle_plainly(entry, self.default_outcome or FAILED)
            else:  # T30
                if settled and enlisted is None and entry.outcome is None:
                    self._settle_plainly(entry, self.default_outcome or FAILED)
                self.refuse(service.unknown(txn_id))
            return
        if entry.outcome is not None and enlisted is None:
            return  # settled outside transactions already
        if enlisted is not None and enlisted is not txn:  # T29
            refusal = Refusal(
                Condition.TXN_ROLLBACK, "a delivery was retired in one transaction and then in another, both undecided"
            )
            control = txn.control
            assert isinstance(control, Link)
            control.refuse(refusal)
            return
        txn.retire(entry, outcome or self.default_outcome or FAILED, settled)

    def _settle_plainly(self, entry: Entry, outcome: Outcome) -> None:
        entry.outcome = outcome
        self.connection.service.settle_later(entry, outcome)

    def retired(self, entry: Entry, outcome: Outcome) -> None:
        delivery = entry.delivery
        if self.open and self._unsettled.pop(delivery, None) is entry:
            if not engine.delivery_settled(delivery):
                engine.delivery_update(delivery, states.CODE[outcome.kind])
            engine.delivery_settle(delivery)
            self.connection.mark()
            if self.credit:
                self._queue.touch()

    def unretired(self, entry: Entry, description: str) -> None:
        if self.open:
            self._unsettled.pop(entry.delivery, None)
            self.refuse(Refusal(Condition.INTERNAL_ERROR, description))

    # -- the end

    def lost(self) -> None:
        """What was sent and not decided comes back with one more attempt (D5); what is in a transaction waits for
        it.
        """
        self._queue.remove(self)
        service = self.connection.service
        volatile = self._group is not None and not self._group.lasting and not self._queue.consumers
        unsettled = self._unsettled
        self._unsettled = {}
        for entry in unsettled.values():
            entry.link = None
            entry.delivery = None
            if entry.txn is not None or entry.outcome is not None:
                continue
            if volatile:  # nobody is left to have it
                self._queue.done_with(entry)
            else:
                entry.outcome = FAILED
                service.settle_later(entry, FAILED)
        if volatile:
            service.remove_group(self._address, self._queue)

    @property
    def subscription(self) -> bool:
        """Whether the link is of a lasting subscription, which ends when it is closed and not merely detached (D1)."""
        return self._group is not None and self._group.ends_with_close

    def end_subscription(self) -> None:
        self.connection.service.remove_group(self._address, self._queue)


class Choosing(Consuming):
    """A consumer of a queue with a selector: it looks for its messages itself (P16)."""

    __slots__ = ("_search", "_selector")

    def __init__(
        self,
        connection: Connection,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        group: Group | None,
        honoured: Filters,
    ) -> None:
        assert honoured.selector is not None
        self._selector = honoured.selector
        super().__init__(connection, pointer, address, queue, group, honoured)

    def _join(self) -> None:
        self._search = Search(self._queue, self, self._selector)
        self._queue.searches.append(self._search)
        self._queue.touch()

    def retired(self, entry: Entry, outcome: Outcome) -> None:
        if outcome.undeliverable_here or outcome.kind is Kind.REJECTED:
            self._search.refused(entry.id)
        super().retired(entry, outcome)

    def lost(self) -> None:
        self._queue.searches.remove(self._search)
        super().lost()


class Subscribing(Consuming):
    """A consumer of a subscription to a topic: what does not match is nobody's, and done with (P16)."""

    __slots__ = ("_selector", "selects")

    def __init__(
        self,
        connection: Connection,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        group: Group,
        honoured: Filters,
    ) -> None:
        self._selector = honoured.selector
        #: those that share a subscription have one selector
        self.selects = honoured.text
        queue.not_from = connection if honoured.no_local else None
        super().__init__(connection, pointer, address, queue, group, honoured)

    def send(self, entry: Entry) -> bool:
        selector = self._selector
        if selector is None or entry.message is None or selector.matches(entry.message, entry.attempts):
            return super().send(entry)
        self.connection.service.settle_later(entry, ACCEPTED)
        return True

    def lost(self) -> None:
        self._queue.not_from = None
        super().lost()


class Browsing(Outgoing):
    """Looks at what is committed and in nobody's hands, in order, and takes nothing (P8)."""

    __slots__ = ("_at", "_exhausted", "_loading", "_selector")

    def __init__(
        self, connection: Connection, pointer: engine.Pointer, address: Address, queue: Queue, honoured: Filters
    ) -> None:
        super().__init__(connection, pointer, address, queue, honoured)
        self._selector = honoured.selector
        self._at = 0
        self._loading = False
        self._exhausted = False
        queue.browsers.append(self)
        queue.touch()

    def on_flow(self) -> None:
        self._exhausted = False  # a drain wants to know what is there now
        super().on_flow()

    def arrived(self) -> None:
        self._exhausted = False

    def fed(self) -> None:
        """Written out: look on."""
        if self.open:
            self._queue.touch()

    def advance(self) -> None:
        if self._loading or not self.open:
            return
        if self.connection.writing:
            if self not in self.connection.starved:
                self.connection.starved.append(self)
        elif not self._exhausted and self.credit > 0:
            self._loading = True
            parameters = [
                self._queue.group_id.to_bytes(4, "big"),
                self._at.to_bytes(8, "big"),
                (_BROWSED_AT_ONCE if self._selector else min(self.credit, _BROWSED_AT_ONCE)).to_bytes(4, "big"),
                _MOST_BACKLOG.to_bytes(8, "big"),
            ]
            self.connection.service.queries.ask(queries.BROWSE, parameters, self._loaded)
        elif self.draining:
            self.drained()

    def _loaded(self, rows: list[Row] | StoreError) -> None:
        self._loading = False
        if not self.open or not isinstance(rows, list):
            return
        self._exhausted = not rows
        for row in rows:
            if self.credit <= 0:
                break  # it looks at more than it may send
            self._at = row[0]
            held = self._queue.held.get(self._at)
            if held is not None and held.link is not None:
                continue  # in a consumer's hands
            entry = self.connection.service.entry_of(self._queue, row)
            if self._selector is not None and not self._selector.matches(entry.message or b"", entry.attempts):
                continue
            delivery = self._deliver(entry)
            if self.presettled:
                engine.delivery_settle(delivery)
        self._queue.touch()

    def on_delivery(self, delivery: engine.Pointer) -> None:
        """Outcomes mean nothing here; the delivery is settled when the peer says anything of it."""
        engine.delivery_settle(delivery)
        self.connection.mark()

    def lost(self) -> None:
        self._queue.browsers.remove(self)
