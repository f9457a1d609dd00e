"""Posts of clients, in transactions or without, apart from the wire; and posts on the anonymous relay, whose address
has to be looked up (rules T20 to T25, P9, D9).

A link hands over the messages that it reads (:meth:`Posts.take`), and sends the answers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from coordinator.address.nodes import Address, look_at_target, resource_deleted
from coordinator.address.permissions import unauthorized
from coordinator.errors import Condition, Refusal
from coordinator.in_store import look_at_group
from coordinator.memory import POST_OCTETS
from store.codec.encoding import DecodeError
from store.codec.message import NO_FACTS, examine, to_of
from store.commit.terms import PLAIN
from store.errors import AddressGone, GroupsChanged, StoreError
from store.permissions import Verb

if TYPE_CHECKING:
    from coordinator.address.directory import Directory, Maker
    from coordinator.address.enqueue import Enqueue
    from coordinator.group.entries import Entry
    from coordinator.instance import Instance
    from coordinator.registry import Registry
    from coordinator.transaction import Transaction
    from store.commit.batch import Batch
    from store.commit.terms import DeliveryTerms
    from store.spool import Octets


log = structlog.get_logger(__name__)


class PostLink(Protocol):
    """A link on which a client posts. Of a ``delivery`` that its sender has settled, only its tag is used, on the
    anonymous relay, so that posts that were sent settled can outlive their link.
    """

    @property
    def connection(self) -> Maker:
        """The owner of its transactions (T12), who makes the addresses that messages on the relay name. A subscription
        with no-local compares it with its own connection.
        """

    @property
    def peer(self) -> str:
        """For the log."""

    @property
    def address(self) -> Address | None:
        """None on the anonymous relay, where the ``to`` of each message names it (P9)."""

    @property
    def relay(self) -> Relay | None:
        """The posts that wait for their addresses, on the anonymous relay."""

    @property
    def continues(self) -> bool:
        """A refused post does not make its transaction rollback-only (T23)."""

    @property
    def second(self) -> bool:
        """Its sender waits for the decision (receiver settle mode second)."""

    @property
    def ending(self) -> Refusal | None:
        """The refusal with which the link is about to end; it takes no more posts."""

    def waits(self, delivery: Any, octets: int) -> None:
        """A post outside transactions, which its sender has not settled, is on its way to the store."""

    def stored(self, delivery: Any, octets: int) -> None:
        """It is durable."""

    def not_stored(self, delivery: Any, octets: int, refusal: Refusal) -> None:
        """The store has refused an unsettled post outside transactions."""

    def accepted_in(self, delivery: Any, txn: Transaction) -> None:
        """An unsettled post is part of the transaction (T21)."""

    def rejected_in(self, delivery: Any, txn: Transaction, refusal: Refusal) -> None:
        """An unsettled post is not part of the transaction (T23)."""

    def stored_in(self, delivery: Any, octets: int, txn: Transaction) -> None:
        """An unsettled post that :meth:`waits` is durable, and part of the checkable transaction."""

    def not_stored_in(self, delivery: Any, octets: int, txn: Transaction, refusal: Refusal) -> None:
        """It is not part of it: the store has refused it."""

    def rejected(self, delivery: Any, refusal: Refusal) -> None:
        """An unsettled post outside transactions is refused."""

    def refuse_settled(self, delivery: Any, refusal: Refusal) -> None:
        """A settled post outside transactions is refused: detach. ``delivery``: on the relay its tag."""

    def decided(self, delivery: Any, committed: bool) -> None:
        """The transaction of an unsettled post is decided (T25)."""

    def left(self, delivery: Any) -> None:
        """It will be decided elsewhere, and later."""

    def refuse(self, refusal: Refusal) -> None:
        """Detach."""

    def parked(self, octets: int) -> None:
        """So many more octets of the link wait for their address; fewer, where below 0."""

    def caught_up(self) -> None:
        """No post of the link waits for its address any more."""


class Posts:
    """Takes the posts of an instance's clients, or refuses them (rules T20 to T25, D9)."""

    def __init__(self, instance: Instance, directory: Directory, enqueue: Enqueue, registry: Registry) -> None:
        self.instance = instance
        self.directory = directory
        self.enqueue = enqueue
        self.registry = registry

    def take(self, link: PostLink, delivery: Any, message: Octets, settled: bool, txn_id: bytes | None) -> None:
        """A message has come. ``settled``: by its sender; ``txn_id``: None outside transactions."""
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
        try:
            facts = examine(message)
            if facts is NO_FACTS and not address.particular and not self.instance.disk_low:
                terms = PLAIN
            else:
                terms = self.enqueue.terms(facts, address)
                checkable = txn is not None and txn.in_store is not None
                if facts.producer_group is not None or address.transactional or (facts.checks and checkable):
                    look_at_group(txn, facts, address, self.registry.check_terms)
            if txn is None:
                if not settled:
                    link.waits(delivery, len(message))
                octets = len(message) if settled else 2 * len(message)
                self.instance.commit.add(PlainPost(self, link, delivery, settled, address, message, terms), octets)
                return
            if txn.in_store is not None:
                txn.in_store.post(link, None if settled else delivery, address, message, terms)
                return
            txn.post(address, message, terms)
        except DecodeError as error:
            refusal = Refusal(Condition.DECODE_ERROR, f"malformed message: {error}")
            self.refuse(link, delivery, settled, txn, refusal)
            return
        except Refusal as refused:
            self.refuse(link, delivery, settled, txn, refused)
            return
        if settled:
            return
        if txn.error is not None:  # it can only roll back: later posts are refused as well (T23)
            link.rejected_in(delivery, txn, txn.error)
            return
        link.accepted_in(delivery, txn)
        if link.second:
            txn.awaits_decision(link, delivery, message)

    def refuse_unknown(self, link: PostLink, delivery: Any, settled: bool, refusal: Refusal) -> None:
        """T24: the message is never stored."""
        if settled:
            link.refuse_settled(delivery, refusal)
        else:
            link.rejected(delivery, refusal)

    def refuse(self, link: PostLink, delivery: Any, settled: bool, txn: Transaction | None, refusal: Refusal) -> None:
        """T22, T23. Of a post that was sent settled, outside transactions, only the end of the link tells the
        sender.
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
        if settled or not link.continues:  # of a post that was sent settled, only the discharge tells
            txn.refuse(refusal)
        if not settled:
            link.rejected_in(delivery, txn, refusal)

    def begin(self, link: PostLink, txn_id: bytes) -> Transaction | None:
        """A delivery in a transaction has begun and is not complete: until it is, a discharge is refused (T15)."""
        txn = self.registry.find(txn_id, link.connection)
        if txn is not None:
            txn.begin()
            txn.partials += 1
        return txn


class PlainPost:
    """Unit: one message posted outside transactions."""

    __slots__ = ("_address", "_delivery", "_entry", "_id", "_link", "_message", "_posts", "_settled", "_terms")

    def __init__(
        self,
        of: Posts,
        link: PostLink,
        delivery: Any,
        settled: bool,
        address: Address,
        message: Octets,
        terms: DeliveryTerms,
    ) -> None:
        """``settled``: by its sender."""
        self._posts = of
        self._link = link
        self._delivery = delivery
        self._settled = settled
        self._address = address
        self._message = message
        self._terms = terms
        self._entry: Entry | None = None
        self._id = 0

    @property
    def owner(self) -> object:
        return self._link.connection

    def write(self, batch: Batch) -> None:
        posts = self._posts
        enqueue = posts.enqueue
        if self._id:  # written before, in a batch that the store refused for another unit
            enqueue.unposted(self._entry)
        half_id = self._id = self._id or posts.instance.ids.next()
        batch.half(half_id, bytes(16), self._address.id, self._message)
        self._entry = enqueue.write_entry(
            batch, self._address, half_id, self._message, self._terms, self._link.connection
        )

    def durable(self) -> None:
        self._posts.enqueue.posted(self._address, self._entry, self._id, self._terms)
        if not self._settled:
            self._link.stored(self._delivery, len(self._message))

    def refused(self, error: StoreError) -> None:
        if isinstance(error, GroupsChanged):
            self._address.fans = True
            self._posts.instance.commit.add(self, len(self._message))
            return
        self._posts.enqueue.unposted(self._entry)
        refusal = Refusal(Condition.INTERNAL_ERROR, "the store could not take the message")
        if isinstance(error, AddressGone):
            refusal = resource_deleted(self._address)
            self._posts.directory.removed(self._address)
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
    """The posts of one link to the anonymous relay that wait for an address, in order; discharges wait for them.

    Posts that were sent settled stay when the link ends: they are forwarded as if they had been sent on a link of their
    own (anonymous terminus 1.0, section 2.2).
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
        """A message on the relay: post it now if its address is known and no post waits before it."""
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
        """Post all that can be posted. A loop, as a look-up may answer at once."""
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
                if not self._link.connection.may(Verb.SEND, name):
                    raise unauthorized(Verb.SEND, name)
                look_at_target(name)
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
        """Drop posts that were sent unsettled: their sender could not be told the outcome."""
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
    """Memory that a message takes. The engine keeps the octets of an unsettled one, too; a large one is in a file."""
    if not isinstance(message, bytes):
        return 0
    return len(message) if settled else 2 * len(message)


def _to(message: Octets) -> str:
    name = to_of(message)
    if name is None:
        raise Refusal(Condition.PRECONDITION_FAILED, "the anonymous relay needs the property to in each message")
    return name
