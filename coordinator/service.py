"""One instance: its queues, transactions and addresses, over one store. Driven by the reactor, one turn after the
other.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heapify, heappop
from itertools import takewhile
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import structlog

from coordinator import outcomes
from coordinator.address.dead_letters import DeadLetters
from coordinator.address.directory import Directory, resource_deleted
from coordinator.codec.message import NO_FACTS
from coordinator.codec.selectors import TurnShare
from coordinator.errors import Condition, Refusal
from coordinator.group.entries import POSTGRES_EPOCH, Entry, now_micros
from coordinator.group.fifo import FifoQueue, message_group
from coordinator.group.queues import LOAD_RETRY_SECONDS, Queue
from coordinator.group.schedule import Schedule
from coordinator.memory import Account, default_bytes
from coordinator.registration import MOST_AT_ONCE, Registration
from coordinator.settlements import Expiry, SetAside, Settlement
from coordinator.sole import SoleConnections
from coordinator.transactions import Transaction
from coordinator.transitions import TxnEvent, TxnState
from store import priorities, queries
from store.arrays import BEFORE, INFINITY
from store.asking import SOLE_CHANNEL, Queries
from store.commit.group_commit import GroupCommit, Limits
from store.commit.parts import EVERY_GROUP
from store.commit.terms import ALONE, PLAIN, Terms, key_of
from store.decisions import Decisions
from store.errors import Conflict, StoreError
from store.heartbeat import Heartbeat
from store.ids import HalfIds, TxnIds, UuidV7, micros_of
from store.spool import Room

if TYPE_CHECKING:
    from coordinator.address.addresses import AddressPolicy
    from coordinator.address.directory import Address, Found
    from coordinator.address.groups import Group
    from coordinator.codec.message import Facts
    from coordinator.control import Control
    from coordinator.group.windows import Loader, Window
    from coordinator.outcomes import Outcome
    from coordinator.settings import LimitSettings, Settings
    from store.asking import Row
    from store.commit.batch import Batch
    from store.loop import Loop
    from store.spool import Octets

log = structlog.get_logger(__name__)

#: how often queues are looked at that may be of no use any more
IDLE_QUEUES_SECONDS = 10.0
SWEEP_SECONDS = 0.25
#: after its declare, a transaction without work is forgotten: its decision goes by the day of its declare, and with
#: that day
UNUSED_SECONDS = 24 * 3600.0
EXPIRY_SECONDS = 2.0
#: the reason of the op for groups that want nothing of the connection that posted (P16)
NO_LOCAL = "no-local"
#: how far below the last entry taken a load looks again: for commits of other instances that were slower than ours
LOW_WATER_SLACK = 60_000 << 22
#: decided transactions whose time ran out, remembered for the error their late work gets
MOST_TIMED_OUT = 10_000


#: the latest time PostgreSQL has, some 290,000 years from now
_LATEST = (1 << 63) - (1 << 56)


class Service:
    """``fenced``: called when others took this instance for dead; it must stop."""

    low_water_slack = LOW_WATER_SLACK
    #: of posts, and of discharges of transactions with posts
    disk_refusal = Refusal(
        Condition.RESOURCE_LIMIT_EXCEEDED,
        "the disk of the database is nearly full (limits.disk_free_bytes): make room; retirements go on",
    )

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        policy: AddressPolicy,
        url: str,
        *,
        instance_id: int,
        slot: int,
        store_id: str,
        secret: bytes,
        highest_id: int,
        fenced: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.limits = settings.limits
        self.transaction_limits = settings.transaction
        self.instance_id = instance_id
        self.lease_octets = instance_id.to_bytes(4, "big")
        self.store_id = store_id
        self._fenced = fenced
        self.ids = HalfIds(slot, highest_id)
        self.uuids = UuidV7()
        self.txn_ids = TxnIds(instance_id, secret)
        #: the disk has little room left: nothing is posted until there is more
        self.disk_low = False
        self.peers = 0
        #: as long as an address that is known, a link, or a transaction has them
        self.queues: WeakValueDictionary[int, Queue] = WeakValueDictionary()
        #: those whose groups are held whole: they are not dropped before they are held no more
        self.holding: set[Queue] = set()
        #: groups (address, name) that links are about to join
        self._joining: Counter[tuple[int, str]] = Counter()
        self._idle_before: set[Queue] = set()
        self.dirty_queues: list[Queue] = []
        self.txns: dict[bytes, Transaction] = {}
        #: those of them that have work, and so a time limit (T14)
        self.working: dict[bytes, Transaction] = {}
        #: how many of them each connection has
        self._undecided: dict[object, int] = {}
        self._unused_seconds = _unused_seconds(settings)
        self._timed_out: dict[bytes, Refusal] = {}
        self.memory = Account(settings.limits, settings.limits.memory_bytes or default_bytes(settings.workers))
        self._settling: list[tuple[Entry, Outcome]] = []
        #: of connections whose links wait until peers have read, or settled, what they have
        self._held_back: set[Callable[[], None]] = set()
        self.spool_room = Room(settings.limits.spool_bytes, self._make_spool_room)
        self._congestion_ends: dict[Callable[[], None], None] = {}
        #: in memory, of deliveries that are not complete
        self.unfinished_octets = 0
        self.commit = GroupCommit(loop, url, instance_id, _batch_limits(settings.limits, self.memory), self._given_up)
        self.queries = Queries(loop, url, instance_id, self._notified, self._queries_back)
        self.decisions = Decisions(loop, url, instance_id)
        watched = (self.commit.connection, self.queries.connection, self.decisions.connection)
        self.heartbeat = Heartbeat(loop, url, instance_id, watched=watched, beaten=self._beaten)
        self.directory = Directory(self, policy)
        self.dead_letters = DeadLetters(self)
        self.sole_connections = SoleConnections(self)
        self.schedule = Schedule(self)
        self.selecting = TurnShare()

    def start(self) -> None:
        self.loop.call_later(IDLE_QUEUES_SECONDS, self._drop_idle_queues)
        self.commit.start()
        self.queries.start()
        self.decisions.start()
        self.heartbeat.start()
        self.queries.ask(queries.ARRIVE, [], lambda _: None)
        self._sweep()
        self._expire_stored()
        self.dead_letters.wake()
        self.schedule.start()

    def close(self) -> None:
        self.commit.close()
        self.queries.close()
        self.decisions.close()
        self.heartbeat.close()

    # -- a turn

    def end_turn(self) -> bool:
        """What this turn has gathered goes on its way: deliveries to consumers, units to the store.

        Whether there was any.
        """
        active = bool(self.dirty_queues or self._settling)
        self.ids.advance()
        self.selecting.renew()
        while self.dirty_queues:
            dirty = self.dirty_queues
            self.dirty_queues = []
            for queue in dirty:
                try:
                    queue.pump()
                    queue.count()
                except Exception:  # noqa: BLE001 - whatever it is, it is this queue's
                    for consumer in [queue, *queue.consumers, *queue.browsers]:
                        self.loop.contain(consumer)
        if self._settling:
            self.commit.add(Settlement(self, self._settling))
            self._settling = []
        self.commit.kick()
        if self._held_back and self.memory.unread <= self.memory.most:
            held_back, self._held_back = self._held_back, set()
            self._call_each(held_back)
        if self._congestion_ends and not self.commit.congested:
            ended, self._congestion_ends = self._congestion_ends, {}
            self._call_each(ended)
        return active

    def _call_each(self, callbacks: Iterable[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - whatever it is, it is the callback's
                self.loop.contain(callback)

    def hold_back(self, has_room: Callable[[], None]) -> None:
        """Links of a connection wait until there is memory for what peers have not settled."""
        self._held_back.add(has_room)

    def hold_back_no_more(self, has_room: Callable[[], None]) -> None:
        self._held_back.discard(has_room)

    def when_uncongested(self, callback: Callable[[], None]) -> None:
        self._congestion_ends[callback] = None

    # -- addresses and queues

    def _drop_idle_queues(self) -> None:
        """Queues that nobody has used for a while are held no longer; those of addresses that are not known any more
        are gone then.
        """
        idle = {queue for queue in self.holding if queue.idle}
        for queue in idle & self._idle_before:
            queue.share()
        self._idle_before = idle
        for queue in list(self.queues.values()):
            queue.count()
        self.loop.call_later(IDLE_QUEUES_SECONDS, self._drop_idle_queues)

    def queue(
        self,
        group_id: int,
        address_id: int,
        name: str,
        *,
        max_attempts: int,
        on_expiry: str,
        dead_letters: bool,
        fifo: bool,
    ) -> Queue:
        queue = self.queues.get(group_id)
        if queue is None:
            queue = self.queues[group_id] = (FifoQueue if fifo else Queue)(
                self,
                group_id,
                address_id,
                name,
                max_attempts=max_attempts,
                on_expiry=on_expiry,
                dead_letters=dead_letters,
            )
        return queue

    def resolve(self, name: str, found: Found, *, topic: bool = False) -> None:
        self.directory.resolve(name, found, topic=topic)

    def resolve_dead_letters(self, name: str, found: Found) -> None:
        self.directory.resolve(name, found, origin="dead-letter")

    def make_dynamic(self, found: Found, *, topic: bool = False) -> None:
        """A temporary queue or topic, owned by this instance."""
        self.directory.resolve(f"$dynamic/{self.uuids.next().hex()}", found, origin="dynamic", topic=topic)

    def join(self, address: Address, group: Group, joined: Callable[[Queue | Refusal], None]) -> None:
        """Find or make a consumer group beside the default one."""

        key = (address.id, group.name)
        self._joining[key] += 1
        joining = Joining()
        address.users.add(joining)

        def made(rows: list[Row] | StoreError) -> None:
            self._joining[key] -= 1
            if not self._joining[key]:
                del self._joining[key]
            address.users.discard(joining)
            if joining.refusal is not None or isinstance(rows, Conflict):
                joined(joining.refusal or resource_deleted(address))
                return
            if isinstance(rows, StoreError):
                joined(Refusal(Condition.INTERNAL_ERROR, "the store could not make the consumer group"))
                return
            queue = self.queue(
                rows[0][0],
                address.id,
                group.name,
                max_attempts=address.max_attempts,
                on_expiry=address.on_expiry,
                dead_letters=False,
                fifo=address.fifo,
            )
            if queue not in address.subscriptions:
                address.subscriptions.append(queue)
                address.groups = max(address.groups, len(address.subscriptions))
            address.fans = True
            joined(queue)

        owner = bytes(4) if group.lasting else self.lease_octets
        self.queries.ask(queries.MAKE_GROUP, [address.id.to_bytes(4, "big"), group.name.encode(), owner], made)

    def subscription(self, name: str, found: Callable[[str | StoreError | None], None]) -> None:
        """The topic that a lasting subscription is for; None where there is no such subscription."""

        def answered(rows: list[Row] | StoreError) -> None:
            found(rows if isinstance(rows, StoreError) else rows[0][0] if rows else None)

        self.queries.ask(queries.FIND_SUBSCRIPTION, [name.encode()], answered)

    def remove_group(self, address: Address, queue: Queue) -> None:
        """The group goes, with what it was to get; but not before transactions that retire its deliveries are
        decided.
        """
        if queue.consumers or queue.searches or (address.id, queue.name) in self._joining:
            return  # others share it still, or are about to
        if any(entry.txn is not None for entry in queue.held.values()):
            self.loop.call_later(0.5, lambda: self.remove_group(address, queue))
            return
        if queue in address.subscriptions:
            address.subscriptions.remove(queue)
        self.queues.pop(queue.group_id, None)

        def gone(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, list):
                self.drop_entries([queue.group_id])

        self.queries.ask(queries.REMOVE_GROUP, [queue.group_id.to_bytes(4, "big")], gone)

    def drop_entries(self, groups: list[int]) -> None:
        """What groups that are removed leave behind goes, piece by piece; what is left for any reason is swept by the
        maintenance of the store.
        """
        if not groups:
            return

        def dropped(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, list):
                self.drop_entries(groups if rows[0][0] else groups[1:])

        parameters = [self.uuids.next(), groups[0].to_bytes(4, "big"), self.lease_octets]
        self.queries.ask(queries.DROP_ENTRIES, parameters, dropped)

    # -- posts

    def terms(self, facts: Facts, address: Address) -> Terms:
        """Of a message posted now: when it expires (rule P12), when it may be delivered (D7), its priority (P17) or,
        on a fifo address, its group (P18).
        """
        if self.disk_low:
            raise self.disk_refusal
        fifo = address.fifo
        if facts is NO_FACTS and not fifo:
            return PLAIN
        ends, begins = INFINITY, BEFORE
        if facts.ttl_ms:
            ends = now_micros() + facts.ttl_ms * 1000
        if facts.absolute_expiry_ms:
            ends = min(ends, _micros(facts.absolute_expiry_ms))
        if facts.delivery_time_ms is not None:
            begins = _micros(facts.delivery_time_ms)
        if facts.delivery_delay_ms:
            begins = max(begins, now_micros() + facts.delivery_delay_ms * 1000)
        if begins <= now_micros():
            begins = BEFORE
        priority = priorities.DEFAULT if facts.priority is None or fifo else facts.priority
        group = 0 if not fifo else ALONE if facts.group_id is None else message_group(facts.group_id)
        terms = Terms(INFINITY if ends > _LATEST else ends, min(begins, _LATEST), priority, group)
        return PLAIN if terms == PLAIN else terms

    def write_entry(
        self, batch: Batch, address: Address, half_id: int, message: Octets | None, terms: Terms, poster: object = None
    ) -> Entry | None:
        """The rows that make a half deliverable; the entry where it is born leased to us.

        ``message``: None where it is in the store alone.

        ``poster``: the connection it came on, for subscriptions that want nothing of their own (no-local).
        """
        queue = address.queue
        if queue is None or address.fans:
            without = [queue.group_id for queue in address.subscriptions if queue.not_from is poster is not None]
            batch.fan(address.id, half_id, terms, address.groups, without)
            if without:  # a trace, or the message would seem to be lost on its way to them
                covers = [(half_id, group_id) for group_id in without]
                batch.op(self.uuids.next(), b"accept", reason=NO_LOCAL, covers=covers)
            if self.peers and terms.available == BEFORE:
                self._wake(batch, -address.id, half_id, terms)
            return None
        now = terms is PLAIN or terms.available == BEFORE
        if now and queue.consumers and isinstance(message, bytes) and queue.reserve(len(message), terms.priority):
            batch.entry(address.id, queue.group_id, half_id, self.instance_id, terms)
            expires = 0 if terms.expires == INFINITY else terms.expires
            return Entry(queue, half_id, half_id, message, 0, expires, b"", False, terms.priority)
        batch.entry(address.id, queue.group_id, half_id, 0, terms)
        if self.peers and now:
            self._wake(batch, queue.group_id, half_id, terms)
        return None

    def _wake(self, batch: Batch, group_id: int, half_id: int, terms: Terms) -> None:
        if terms.message_group:
            batch.wake_keys.add((group_id, key_of(terms, half_id)))
        else:
            batch.wake.add(group_id)

    def posted(self, address: Address, entry: Entry | None, half_id: int, terms: Terms) -> None:
        """The rows of :meth:`write_entry` are durable."""
        if entry is not None:
            entry.queue.arrived(entry)
            return
        if terms.available != BEFORE:
            self.schedule.due(terms.available)
            return
        if address.queue is not None:
            address.queue.posted(half_id, terms)
        for queue in address.subscriptions:
            queue.posted(half_id, terms)

    def unposted(self, entry: Entry | None) -> None:
        """The rows of :meth:`write_entry` were not taken, or are written again."""
        if entry is not None:
            entry.queue.unreserve(entry)

    # -- deliveries

    def load(self, window: Window, most: int, octets: int) -> None:
        """Take entries from the store into the window; ``window.loaded`` hears of it.

        Alone, this instance holds the whole group and reads on from where it was; among others it leases each entry.
        """
        queue = window.queue
        if queue.holding or self.peers:
            self._load(window, most, octets)
            return

        def asked(rows: list[Row] | StoreError) -> None:
            queue.holding = isinstance(rows, list) and bool(rows)
            if queue.holding:
                self.holding.add(queue)
            self._load(window, most, octets)

        self.queries.ask(queries.HOLD, [queue.group_id.to_bytes(4, "big"), self.lease_octets], asked)

    def _load(self, window: Window, most: int, octets: int) -> None:
        queue, low, version = window.queue, window.low, window.version
        parameters = [
            queue.group_id.to_bytes(4, "big"),
            low.to_bytes(8, "big"),
            most.to_bytes(4, "big"),
            octets.to_bytes(8, "big"),
            self.lease_octets,
        ]

        def loaded(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                # a row that the server cannot read: asking at once would change nothing
                self.loop.call_later(LOAD_RETRY_SECONDS, lambda: self.reclaim(queue, window))
                return
            entries = [self.entry_of(queue, row) for row in rows]
            # nothing beyond what came; among others there may be some below the low-water mark, so that an empty answer
            # above it says little
            complete = rows[0][-1] == len(rows) < most if rows else queue.holding or not low
            window.loaded(entries, complete, version)
            queue.touch()

        self.queries.ask(queries.READ if window.by_range else queries.LEASE[window.rank], parameters, loaded)

    def unread(self, queue: Queue) -> None:
        """Nothing of a group held whole is in our hands any more: should we die, nothing of it was perhaps sent."""
        self.queries.ask(queries.UNREAD, [queue.group_id.to_bytes(4, "big"), self.lease_octets], lambda _: None)

    def entry_of(self, queue: Queue, row: Row) -> Entry:
        entry_id, half_id, attempts, expires, annotations, message, whole, acquired, priority = row[:9]
        entry = queue.entry_kind(
            queue,
            entry_id,
            half_id,
            message,
            attempts,
            0 if expires is None else expires - POSTGRES_EPOCH * 1_000_000,
            annotations or b"",
            acquired,
            priority,
        )
        entry.whole = whole
        return entry

    def reclaim(self, queue: Queue, window: Loader | None) -> None:
        """A load may have leased entries that nobody here knows of: find them, and give them back to the store.
        ``window``: whose load it was.

        Entries born leased in a batch under way are not known either, until the batch is answered: what is listed now
        is looked at again once every batch before is answered.
        """

        def listed(rows: list[Row] | StoreError) -> None:
            unknown = [] if isinstance(rows, StoreError) else [row[0] for row in rows]
            self.commit.add(Reclaim(queue, window, [found for found in unknown if found not in queue.held]))

        self.queries.ask(queries.HELD, [queue.group_id.to_bytes(4, "big"), self.lease_octets], listed)

    def default_outcome(self, entry: Entry) -> Outcome:
        link = entry.link
        if link is None or link.default_outcome is None:
            return outcomes.FAILED
        return link.default_outcome

    def settle_later(self, entry: Entry, outcome: Outcome) -> None:
        """An outcome outside any transaction; applied with the others of this turn."""
        if outcome is outcomes.RELEASED:  # nothing changes in the store
            if entry.link is not None:
                entry.link.retired(entry, outcome)
            outcomes.settle(entry, outcome)
        else:
            if outcome is not outcomes.ACCEPTED:
                entry.queue.comes_back(entry)
            self._settling.append((entry, outcome))

    def expire(self, entry: Entry) -> None:
        self.commit.add(Expiry(self, entry))

    def set_aside(self, entry: Entry, reason: str) -> None:
        """It cannot be delivered to anyone: to the dead letters, whatever its attempts."""
        log.error("a message is set aside", queue=entry.queue.name, entry=entry.id, half=entry.half_id, why=reason)
        self.commit.add(SetAside(entry, reason))

    def _expire_stored(self) -> None:
        def expired(rows: list[Row] | StoreError) -> None:
            marked, dropped = (0, 0) if isinstance(rows, StoreError) or not rows else rows[0]
            # first: an exception in what follows must not end it
            self.loop.call_later(0 if marked + dropped >= 500 else EXPIRY_SECONDS, self._expire_stored)
            if marked:
                self.dead_letters.wake()

        self.queries.ask(queries.EXPIRE, [self.uuids.next(), self.lease_octets], expired)

    # -- transactions

    def declare(self, owner: object, control: Control, timeout: float) -> Transaction:
        """Refusal where the connection has too many undecided transactions already (S4)."""
        undecided = self._undecided.get(owner, 0)
        most = self.limits.transactions_per_connection
        if undecided >= most:
            raise Refusal(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"a connection has at most {most} undecided transactions (limits.transactions_per_connection): "
                "discharge some first",
            )
        self._undecided[owner] = undecided + 1
        txn = Transaction(self, self.txn_ids.next(), owner, control, timeout)
        self.txns[txn.id] = txn
        return txn

    def refuse_largest(self) -> None:
        """Undecided transactions hold too much. Their connections must be read, or none of them would ever be decided:
        so the largest are refused, and let go of what they hold.
        """
        enough = 3 * self.memory.most // 4
        refusal = Refusal(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            "undecided transactions hold too much memory, and this is among the largest (limits.memory_bytes)",
        )
        self._refuse_undecided(lambda txn: txn.counted, lambda: self.memory.transactions > enough, refusal)

    def _make_spool_room(self, octets: int) -> None:
        """Large messages have all the disk that they may: the undecided transactions with the most of it let go."""
        refusal = Refusal(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            "large messages hold too much of the disk, and this transaction has among the most (limits.spool_bytes)",
        )
        self._refuse_undecided(lambda txn: txn.spooled, lambda: self.spool_room.short_of(octets), refusal)

    def _refuse_undecided(
        self, held: Callable[[Transaction], int], too_much: Callable[[], bool], refusal: Refusal
    ) -> None:
        """Those first that have ``held`` the most, as long as it is ``too_much``."""
        largest = [
            (-held(txn), number, txn)
            for number, txn in enumerate(self.working.values())
            if txn.open and txn.posts and held(txn)
        ]
        heapify(largest)  # few of many are taken
        while largest and too_much():
            _, _, txn = heappop(largest)
            log.warning(
                "transaction refused: it holds too much",
                peer=str(txn.owner),
                octets=txn.octets,
                description=refusal.description,
            )
            txn.refuse(refusal)

    def find(self, txn_id: bytes, owner: object) -> Transaction | None:
        """The undecided transaction, where the connection that asks declared it (T12)."""
        txn = self.txns.get(txn_id)
        if txn is not None and txn.owner is owner and (txn.state is TxnState.ACTIVE or txn.open):
            return txn
        return None

    def unknown(self, txn_id: bytes) -> Refusal:
        """What work in a transaction that is not there gets: its time ran out (T14), or nobody knows it."""
        return self._timed_out.get(txn_id) or Refusal(
            Condition.TXN_UNKNOWN_ID, f"no transaction {txn_id.hex()} is open on this connection; declare one first"
        )

    def forget(self, txn: Transaction) -> None:
        """It is decided."""
        if self.txns.pop(txn.id, None) is None:
            return
        self.working.pop(txn.id, None)
        undecided = self._undecided.pop(txn.owner) - 1
        if undecided:
            self._undecided[txn.owner] = undecided

    def _sweep(self) -> None:
        """Roll back what is too old (T14); register what lives longer than a moment."""
        self.loop.call_later(SWEEP_SECONDS, self._sweep)
        now = time.monotonic()
        register_after = self.transaction_limits.register_after_seconds
        unknown: list[Transaction] = []
        for txn in list(self.working.values()):
            age = now - txn.began
            if not txn.open:
                continue
            if age >= txn.timeout:
                self._time_out(txn, timed_out(txn.timeout))
            elif age >= register_after and not txn.registered and not txn.empty and len(unknown) < MOST_AT_ONCE:
                unknown.append(txn)
        if unknown:
            self.commit.add(Registration(unknown))
        for txn in self._unused():
            self._time_out(txn, unused(self._unused_seconds))

    def _unused(self) -> list[Transaction]:
        """Transactions without work whose declare is too long ago. Ids grow with time, and the oldest come first."""
        latest = (time.time() - self._unused_seconds) * 1e6
        old = takewhile(lambda txn: micros_of(txn.id) <= latest, self.txns.values())
        return [txn for txn in old if not txn.began]

    def _time_out(self, txn: Transaction, refusal: Refusal) -> None:
        self._remember_timeout(txn, refusal)
        try:
            txn.abandon(TxnEvent.TIMEOUT, "timeout", refusal)
        except Exception:  # noqa: BLE001 - whatever it is, it is this transaction's
            self.loop.contain(txn)

    def _remember_timeout(self, txn: Transaction, refusal: Refusal) -> None:
        self._timed_out[txn.id] = refusal
        if len(self._timed_out) > MOST_TIMED_OUT:
            self._timed_out.pop(next(iter(self._timed_out)))

    # -- the store and the other instances

    def _beaten(self, alive: bool, peers: int) -> None:
        """This instance has said that it lives, and seen whether others do."""
        if not alive:
            self._given_up()
            return
        alone, self.peers = not self.peers, peers
        if alone and peers:
            self.commit.add(Company())
        if peers:
            for queue in list(self.queues.values()):
                queue.share()
                queue.touch()

    def _given_up(self) -> None:
        log.error("this instance was given up by another", instance=self.instance_id)
        self._fenced()

    def _queries_back(self) -> None:
        """Notices may have been missed while the connection was away."""
        self.directory.all_changed()
        for queue in list(self.queues.values()):
            queue.in_store(0)

    def _notified(self, channel: str, payload: str) -> None:
        if channel == "coordinator_address":
            self.directory.changed(payload)
            return
        if channel == SOLE_CHANNEL:
            self.sole_connections.called(payload)
            return
        if payload == queries.ARRIVED:
            self.heartbeat.now()
            return
        for token in payload.split(","):
            if not token:  # the leases of an instance that died, or too many groups for a notice
                for queue in list(self.queues.values()):
                    queue.in_store(0)
                continue
            name, _, key = token.partition("/")
            if name.startswith("-"):
                found = [queue for queue in list(self.queues.values()) if queue.address_id == -int(name)]
            else:
                found = [queue for queue in (self.queues.get(int(name)),) if queue is not None]
            for queue in found:
                if isinstance(queue, FifoQueue) and key:
                    queue.news(int(key, 16))
                else:
                    queue.in_store()


def _micros(unix_ms: int) -> int:
    """As PostgreSQL counts: microseconds since 2000."""
    return unix_ms * 1000 - POSTGRES_EPOCH * 1_000_000


def _batch_limits(limits: LimitSettings, memory: Account) -> Limits:
    return Limits(
        messages=limits.batch_messages,
        octets=min(limits.batch_bytes, memory.share),
        waiting_octets=min(limits.waiting_bytes, memory.most),
    )


def _unused_seconds(settings: Settings) -> float:
    """Half of what decisions are kept at most, so that one is kept that is made just before."""
    return min(UNUSED_SECONDS, settings.retention.decisions_hours * 3600 / 2)


def timed_out(limit: float) -> Refusal:
    return Refusal(
        Condition.TXN_TIMEOUT, f"the transaction was rolled back: its first work was more than {limit:g} s ago"
    )


def unused(limit: float) -> Refusal:
    return Refusal(
        Condition.TXN_TIMEOUT,
        f"the transaction was rolled back: there was no work in it for {limit:g} s after its declare; declare another",
    )


class Joining:
    """Uses the address of a group that is about to be joined."""

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        self.refusal: Refusal | None = None

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Company:
    """Unit: this instance was alone and woke nobody; what it left in the store until now others may want."""

    def write(self, batch: Batch) -> None:
        batch.wake.add(EVERY_GROUP)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        log.error("others were not told of what waits in the store", error=str(error))


class Reclaim:
    """Unit without rows of its own at first: once it is answered, so is every batch before it."""

    __slots__ = ("_queue", "_unknown", "_window")

    def __init__(self, queue: Queue, window: Loader | None, unknown: list[int]) -> None:
        self._queue = queue
        self._window = window
        self._unknown = unknown

    def write(self, batch: Batch) -> None:
        pass

    def durable(self) -> None:
        queue = self._queue
        lost = [found for found in self._unknown if found not in queue.held]
        if lost:
            log.warning("entries of a lost load given back", queue=queue.name, entries=len(lost))
            queue.yield_ids(lost)
        else:
            queue.in_store(0)
        if self._window is not None:
            self._window.load_ended()

    def refused(self, error: StoreError) -> None:
        self.durable()
