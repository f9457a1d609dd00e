"""Posts handles the messages that clients post, inside transactions or outside, apart from the wire; and posts on the
anonymous relay, whose addresses it looks up (rules T20 to T25, P9, D9).

A link passes on the messages that it receives (:meth:`Posts.take`), and sends the answers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from coordinator.address.nodes import Address, check_target, resource_deleted
from coordinator.address.permissions import unauthorized
from coordinator.errors import Condition, Refusal
from coordinator.in_store import apply_producer_group
from coordinator.memory import POST_OCTETS
from store.codec.encoding import DecodeError
from store.codec.message import NO_FACTS, examine, to_of
from store.commit.terms import PLAIN
from store.errors import AddressGone, GroupsChanged, PostedBefore, StoreError
from store.permissions import Verb

if TYPE_CHECKING:
    from coordinator.address.directory import Directory, Maker
    from coordinator.address.elsewhere import Elsewhere
    from coordinator.address.enqueue import Enqueue
    from coordinator.group.entries import Entry
    from coordinator.instance import Instance
    from coordinator.registry import Registry
    from coordinator.traces import PostSpan
    from coordinator.transaction import Transaction
    from store.commit.batch import Batch
    from store.commit.terms import DeliveryTerms
    from store.spool import Octets


log = structlog.get_logger(__name__)


class PostLink(Protocol):
    """A link on which a client posts. For a ``delivery`` that its sender has settled, only the tag is used, on the
    anonymous relay, so that such posts can outlive their link.
    """

    @property
    def connection(self) -> Maker:
        """The owner of its transactions (T12), who creates the addresses that messages on the relay name. A
        subscription with no-local compares the owner with its own connection.
        """

    @property
    def peer(self) -> str:
        """The peer's name, for the log."""

    @property
    def address(self) -> Address | None:
        """The target address; None on the anonymous relay, where the ``to`` of each message names it (P9)."""

    @property
    def relay(self) -> Relay | None:
        """The queue of posts that wait for their addresses, on the anonymous relay; None on other links."""

    @property
    def continues(self) -> bool:
        """Whether a refused post leaves its transaction able to commit (T23)."""

    @property
    def second(self) -> bool:
        """Whether its sender waits for the decision (receiver settle mode second)."""

    @property
    def ending(self) -> Refusal | None:
        """The refusal with which the link is about to end, so that it accepts no more posts; None: it stays."""

    @property
    def producer(self) -> str | None:
        """The producer that its client names, whose delivery-tags name its messages (P22); None: it names none."""

    def tag(self, delivery: Any, settled: bool) -> bytes:
        """Return the tag of a producer's delivery.

        :raises Refusal: it names no message.
        """

    def waits(self, delivery: Any, octets: int) -> None:
        """Count an unsettled post as on its way to the store."""

    def stored(self, delivery: Any, octets: int) -> None:
        """Accept an unsettled post outside transactions, which is durable."""

    def not_stored(self, delivery: Any, octets: int, refusal: Refusal) -> None:
        """Reject an unsettled post outside transactions, which the store has refused."""

    def accepted_in(self, delivery: Any, txn: Transaction) -> None:
        """Accept an unsettled post as part of the transaction (T21)."""

    def rejected_in(self, delivery: Any, txn: Transaction, refusal: Refusal) -> None:
        """Reject an unsettled post, which is not part of the transaction (T23)."""

    def stored_in(self, delivery: Any, octets: int, txn: Transaction) -> None:
        """Accept a post that :meth:`waits`: it is durable, and part of the checkable transaction."""

    def not_stored_in(self, delivery: Any, octets: int, txn: Transaction, refusal: Refusal) -> None:
        """Reject a post that :meth:`waits`: the store has refused it, so that it is not part of the transaction."""

    def rejected(self, delivery: Any, refusal: Refusal) -> None:
        """Reject an unsettled post outside transactions."""

    def refuse_settled(self, delivery: Any, refusal: Refusal) -> None:
        """Detach the link, as a settled post outside transactions is refused. ``delivery``: on the relay its tag."""

    def decided(self, delivery: Any, committed: bool) -> None:
        """Settle an unsettled post by the decision of its transaction (T25)."""

    def left(self, delivery: Any) -> None:
        """Settle an unsettled post whose transaction is decided later, elsewhere."""

    def refuse(self, refusal: Refusal) -> None:
        """Detach the link with the refusal."""

    def parked(self, octets: int) -> None:
        """Count so many more octets of the link as waiting for their addresses; fewer, if below 0."""

    def caught_up(self) -> None:
        """Note that no post of the link waits for its address any more."""


class Posts:
    """Accepts or refuses the posts of an instance's clients (rules T20 to T25, D9)."""

    def __init__(
        self, instance: Instance, directory: Directory, elsewhere: Elsewhere, enqueue: Enqueue, registry: Registry
    ) -> None:
        self.instance = instance
        self.directory = directory
        self.elsewhere = elsewhere
        self.enqueue = enqueue
        self.registry = registry

    def take(self, link: PostLink, delivery: Any, message: Octets, settled: bool, txn_id: bytes | None) -> None:
        """Accept or refuse a received message. ``settled``: by its sender; ``txn_id``: None outside transactions."""
        txn = None
        if txn_id is not None:
            txn = self.registry.for_work(txn_id, link.connection)
            if txn is None:
                self.refuse_unknown(link, delivery, settled, self.registry.unknown(txn_id, link.connection.user_id))
                return
        address = link.address
        if link.ending is not None:
            self.refuse(link, delivery, settled, txn, link.ending)
        elif address is not None:
            self.post(link, delivery, message, settled, txn, address)
        else:
            assert link.relay is not None
            link.relay.take(delivery, message, settled, txn)

    def post(
        self, link: PostLink, delivery: Any, message: Octets, settled: bool, txn: Transaction | None, address: Address
    ) -> None:
        traces = self.instance.traces
        span = None if traces is None else traces.posted(message, txn, address.name)
        if span is not None:
            message = span.message
        try:
            facts = examine(message)
            if facts is NO_FACTS and not address.particular and not self.instance.disk_low:
                terms = PLAIN
            else:
                terms = self.enqueue.terms(facts, address)
                checkable = txn is not None and txn.in_store is not None
                if facts.producer_group is not None or address.transactional or (facts.checks and checkable):
                    apply_producer_group(txn, facts, address, self.registry.check_terms)
            if txn is None:
                tag = None if link.producer is None else link.tag(delivery, settled)
                if not settled:
                    link.waits(delivery, len(message))
                octets = len(message) if settled else 2 * len(message)
                unit = PlainPost(self, link, delivery, settled, address, message, terms, span, tag)
                self.instance.commit.add(unit, octets)
                return
            if txn.in_store is not None:
                txn.in_store.post(link, None if settled else delivery, address, message, terms, span)
                return
            txn.post(address, message, terms)
        except DecodeError as error:
            refusal = Refusal(Condition.DECODE_ERROR, f"malformed message: {error}")
            self.refuse(link, delivery, settled, txn, refusal)
            if span is not None:
                span.end(refusal)
            return
        except Refusal as refused:
            self.refuse(link, delivery, settled, txn, refused)
            if span is not None:
                span.end(refused)
            return
        if span is not None:
            span.end(txn.error)
        if settled:
            return
        if txn.error is not None:  # it can only roll back: later posts are refused as well (T23)
            link.rejected_in(delivery, txn, txn.error)
            return
        link.accepted_in(delivery, txn)
        if link.second:
            txn.awaits_decision(link, delivery, message)

    def refuse_unknown(self, link: PostLink, delivery: Any, settled: bool, refusal: Refusal) -> None:
        """Refuse a message whose transaction is unknown; it is never stored (T24)."""
        if settled:
            link.refuse_settled(delivery, refusal)
        else:
            link.rejected(delivery, refusal)

    def refuse(self, link: PostLink, delivery: Any, settled: bool, txn: Transaction | None, refusal: Refusal) -> None:
        """Refuse a post (T22, T23). For a post sent settled, outside transactions, only the link's end reports it to
        the sender.
        """
        log.info(
            "post refused",
            peer=link.peer,
            address=None if link.address is None else link.address.name,
            condition=refusal.condition.value,
            description=refusal.description,
        )
        if txn is None:
            self.refuse_unknown(link, delivery, settled, refusal)
            return
        if settled or not link.continues:  # for a post sent settled, only the discharge reports the refusal
            txn.refuse(refusal)
        if not settled:
            link.rejected_in(delivery, txn, refusal)

    def begin(self, link: PostLink, txn_id: bytes) -> Transaction | None:
        """Count a delivery in a transaction that is not complete: until then, a discharge is refused (T15)."""
        txn = self.registry.find(txn_id, link.connection)
        if txn is not None:
            txn.begin()
            txn.partials += 1
        return txn


class PlainPost:
    """Unit: writes one message posted outside transactions; of a producer, unless the store has one under its
    delivery-tag (P22).
    """

    __slots__ = (
        "_address", "_delivery", "_entry", "_id", "_link", "_message", "_posts", "_settled", "_span", "_tag", "_terms",
    )  # fmt: skip

    def __init__(
        self,
        of: Posts,
        link: PostLink,
        delivery: Any,
        settled: bool,
        address: Address,
        message: Octets,
        terms: DeliveryTerms,
        span: PostSpan | None,
        tag: bytes | None,
    ) -> None:
        """``settled``: by its sender. ``tag``: None where the link names no producer."""
        self._posts = of
        self._link = link
        self._delivery = delivery
        self._settled = settled
        self._address = address
        self._message = message
        self._terms = terms
        self._span = span
        self._tag = tag
        self._entry: Entry | None = None
        self._id = 0

    @property
    def owner(self) -> object:
        return self._link.connection

    def write(self, batch: Batch) -> None:
        posts = self._posts
        enqueue = posts.enqueue
        if self._span is not None:
            self._span.batch = batch
        if self._id:  # already written in a batch that the store refused because of another unit
            enqueue.unposted(self._entry)
        half_id = self._id = self._id or posts.instance.ids.next()
        batch.half(half_id, bytes(16), self._address.id, self._message)
        self._entry = enqueue.write_entry(
            batch, self._address, half_id, self._message, self._terms, self._link.connection
        )
        if self._tag is not None:
            owner, producer = self._link.connection.user_id or "", self._link.producer or ""
            batch.once(self, self._address.id, owner, producer, self._tag, half_id)

    def durable(self) -> None:
        self._posts.enqueue.posted(self._address, self._entry, self._id, self._terms)
        self._answered()

    def _answered(self) -> None:
        """Accept the post, which the store has."""
        if self._span is not None:
            self._span.end()
        if not self._settled:
            self._link.stored(self._delivery, len(self._message))

    def refused(self, error: StoreError) -> None:
        if isinstance(error, GroupsChanged):
            self._address.fans = True
            self._posts.instance.commit.add(self, len(self._message))
            return
        self._posts.enqueue.unposted(self._entry)
        if isinstance(error, PostedBefore):
            log.info("a post came again, and is stored once", peer=self._link.peer, address=self._address.name)
            self._answered()
            return
        refusal = Refusal(Condition.INTERNAL_ERROR, "the store could not take the message")
        if isinstance(error, AddressGone):
            refusal = resource_deleted(self._address)
            self._posts.directory.removed(self._address)
        if self._span is not None:
            self._span.end(refusal)
        if self._settled:
            self._link.refuse_settled(self._delivery, refusal)
            return
        self._link.not_stored(self._delivery, len(self._message), refusal)


class Parked(NamedTuple):
    """A post on the relay that waits for its address, or for a post before it."""

    delivery: Any
    message: Octets
    settled: bool
    txn: Transaction | None


class Relay:
    """Posts, in order, the messages of one link to the anonymous relay that wait for an address; discharges wait too.

    Posts that were sent settled remain when the link ends: they are forwarded as if sent on a link of their own
    (anonymous terminus 1.0, section 2.2).
    """

    __slots__ = ("_asked", "_going_on", "_link", "_link_open", "_posts", "_resolved", "waiting")

    def __init__(self, posts: Posts, link: PostLink) -> None:
        self._posts = posts
        self._link = link
        self._link_open = True
        self.waiting: deque[Parked] = deque()
        #: the post whose address is being looked up
        self._asked: Parked | None = None
        #: the result of the look-up
        self._resolved: Address | Refusal | None = None
        self._going_on = False

    def take(self, delivery: Any, message: Octets, settled: bool, txn: Transaction | None) -> None:
        """Post a message on the relay: now, if its address is known and no post waits before it, else later."""
        memory = self._posts.instance.memory
        if memory.parked > 2 * memory.most:
            text = "too many messages wait for their addresses to be looked up (limits.memory_bytes); try later"
            refusal = Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text)
            self._posts.refuse(self._link, delivery, settled, txn, refusal)
            return
        post = Parked(delivery, message, settled, txn)
        self.waiting.append(post)
        self._count(post, 1)
        if txn is not None:
            txn.begin()
            txn.parked += 1
        self._go_on()

    def _count(self, post: Parked, sign: int) -> None:
        octets = sign * (held_octets(post.message, settled=post.settled) + POST_OCTETS)
        self._posts.instance.memory.parked += octets
        self._link.parked(octets)

    def _go_on(self) -> None:
        """Post all waiting messages whose addresses are known; a loop, as a look-up may answer at once."""
        if self._going_on:
            return
        self._going_on = True
        try:
            while self.waiting and self._asked is None:
                self._next(self.waiting[0])
        finally:
            self._going_on = False
        if not self.waiting and self._link_open:
            self._link.caught_up()

    def _next(self, post: Parked) -> None:
        found, self._resolved = self._resolved, None
        if post.txn is not None and not post.txn.open:  # it was decided meanwhile: its time ran out
            self._count(self.waiting.popleft(), -1)
            if self._link_open:
                unknown = self._posts.registry.unknown(post.txn.id, self._link.connection.user_id)
                self._posts.refuse_unknown(self._link, post.delivery, post.settled, unknown)
            return
        if found is None:
            try:
                name = _to(post.message)
                self._posts.elsewhere.check_post(name)
                if not self._link.connection.may(Verb.SEND, name):
                    raise unauthorized(Verb.SEND, name)
                check_target(name)
            except DecodeError as error:
                found = Refusal(Condition.DECODE_ERROR, f"malformed message: {error}")
            except Refusal as refusal:
                found = refusal
            else:
                found = self._posts.directory.known(name)
                if found is None:
                    self._asked = post
                    self._posts.directory.resolve(name, self._answered, maker=self._link.connection)
                    return
        self._count(self.waiting.popleft(), -1)
        if isinstance(found, Refusal):
            self._posts.refuse(self._link, post.delivery, post.settled, post.txn, found)
        else:
            self._posts.post(self._link, post.delivery, post.message, post.settled, post.txn, found)
        if post.txn is not None:
            post.txn.unpark()

    def _answered(self, found: Address | Refusal) -> None:
        asked, self._asked = self._asked, None
        if self.waiting and self.waiting[0] is asked:  # else it was dropped with its link
            self._resolved = found
        self._go_on()

    def link_lost(self) -> None:
        """Drop posts that were sent unsettled: their outcome could not be sent to the sender."""
        self._link_open = False
        waiting, self.waiting = self.waiting, deque()
        for post in waiting:
            if post.settled:
                self.waiting.append(post)
                continue
            self._count(post, -1)
            if post.txn is not None and post.txn.open:
                post.txn.refuse(Refusal(Condition.TXN_ROLLBACK, "a link was detached before its posts were stored"))
                post.txn.unpark()


def held_octets(message: Octets, *, settled: bool) -> int:
    """Return the octets in memory of a message: of an unsettled one twice (the engine has a copy); 0 of a large one."""
    if not isinstance(message, bytes):
        return 0
    return len(message) if settled else 2 * len(message)


def _to(message: Octets) -> str:
    name = to_of(message)
    if name is None:
        raise Refusal(Condition.PRECONDITION_FAILED, "the anonymous relay needs the property to in each message")
    return name
