"""The service composes one instance from its parts, and ends each turn of the reactor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.address.dead_letters import DeadLetters
from coordinator.address.directory import Directory
from coordinator.address.elsewhere import Elsewhere
from coordinator.address.enqueue import Enqueue
from coordinator.address.permissions import Permissions
from coordinator.address.subscriptions import Subscriptions
from coordinator.bounds import USUAL
from coordinator.check_back import Checks, Exhaustion
from coordinator.connection_list import ConnectionList
from coordinator.group.schedule import Schedule, StoredExpiry
from coordinator.group.serving import Queues
from coordinator.instance import Instance
from coordinator.login.users import Users
from coordinator.memory import GivingBack
from coordinator.peers import Peers, Stealing
from coordinator.posts import Posts
from coordinator.registry import Registry
from coordinator.retirement import Retirement, Settlements
from coordinator.sole import SoleConnections
from store import channels
from store.decisions import Decisions
from store.heartbeat import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.address.addresses import AddressPolicy
    from coordinator.bounds import Bounds
    from coordinator.errors import Refusal
    from coordinator.settings import Settings
    from store.libpq import Connection
    from store.loop import Loop
    from store.recovery import Registration


class Service:
    """One instance of the service. ``fenced``: called when other instances have declared this one dead: it must
    stop.
    """

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        policy: AddressPolicy,
        url: str,
        registration: Registration,
        *,
        fenced: Callable[[], None],
        bounds: Bounds = USUAL,
    ) -> None:
        self.store_id = registration.store_id
        self.instance = instance = Instance(
            loop,
            settings,
            bounds,
            url,
            registration,
            given_up=lambda: self._peers.given_up(),
            notified=lambda channel, payload: self._peers.notified(channel, payload),
            connected=lambda: self._connected(),
        )
        self.loop, self.limits, self.bounds = loop, settings.limits, bounds
        self.memory, self.commit = instance.memory, instance.commit
        #: the refusal of clients while this instance cannot use the database; else None
        self.starved: Refusal | None = None
        #: octets in memory of incomplete deliveries
        self.unfinished_octets = 0
        #: callbacks of connections whose links wait until peers have read or settled more
        self._held_back: set[Callable[[], None]] = set()
        self._congestion_ends: dict[Callable[[], None], None] = {}
        self.queues = Queues(instance, lambda: self._dead_letters.wake(), lambda at: self._schedule.due(at))
        self._schedule = Schedule(instance, self.queues)
        enqueue = Enqueue(instance, self._schedule)
        self.directory = Directory(instance, self.queues, policy)
        self.subscriptions = Subscriptions(instance, self.queues)
        self._dead_letters = DeadLetters(instance, self.directory, enqueue)
        self._expiry = StoredExpiry(instance, self._dead_letters.wake)
        self.settlements, self.elsewhere = Settlements(instance), Elsewhere(settings.addresses.elsewhere)
        self.decisions = Decisions(loop, url, instance.instance_id)
        self.registry = Registry(
            instance, settings, self.directory, enqueue, self.settlements, self.decisions, registration.secret
        )
        self.posts = Posts(instance, self.directory, self.elsewhere, enqueue, self.registry)
        self.retirement = Retirement(self.registry, self.settlements)
        self.sole_connections, self.connection_list = SoleConnections(instance), ConnectionList(instance)
        self.users = Users(instance, registration.secret, tokens=settings.tokens.issuer is not None)
        self.permissions = Permissions(instance)
        self.stealing = Stealing(instance)
        self.checks = Checks(instance, self.decisions)
        self._heartbeat = Heartbeat(
            loop,
            url,
            instance.instance_id,
            watched=(instance.commit.connection, instance.queries.connection, self.decisions.connection),
            waits=lambda: instance.commit.waits,
            beaten=lambda alive, peers: self._peers.beaten(alive, peers),
        )
        beat = self._heartbeat.now
        self._peers = Peers(instance, self.queues, self.directory, self._handlers(), beat=beat, fenced=fenced)

    def _handlers(self) -> dict[str, Callable[[str], None]]:
        """Return the handlers of NOTIFY payloads, by channel."""
        return {
            channels.SOLE: self.sole_connections.called,
            channels.LINK: self.stealing.notified,
            channels.SHARE: self.queues.share,
            channels.DUE: self._schedule.notified,
            channels.DECIDED: self._decided,
            channels.USER: self.users.changed,
            channels.CONNECTION: self.connection_list.notified,
            channels.PERMISSION: lambda _: self.permissions.refresh(),
        }

    def _decided(self, payload: str) -> None:
        self.registry.decided(payload)
        if not payload:
            self._dead_letters.wake()

    def _connected(self) -> None:
        """Load and query anew what NOTIFY reports: some may have been lost while the connection was down."""
        self._peers.connected()
        self.registry.query_held()
        self.users.check_all()
        self.permissions.refresh()
        self.connection_list.connected()
        self._dead_letters.wake()

    def start(self) -> None:
        GivingBack(self.instance.loop, self.instance.memory)
        self.queues.start()
        self.instance.commit.start()
        self.instance.queries.start()
        self.decisions.start()
        self._heartbeat.start()
        self.permissions.start()
        self.connection_list.start()
        self._peers.arrive()
        self.registry.sweep()
        self._expiry.search()
        Exhaustion(self.instance, self.directory).search()
        self._dead_letters.wake()
        self._schedule.start()

    def close(self) -> None:
        self.instance.commit.close()
        self.instance.queries.close()
        self.decisions.close()
        self._heartbeat.close()
        if self.instance.traces is not None:
            self.instance.traces.close()

    @property
    def connected(self) -> bool:
        """Whether all connections of the instance to the database are up."""
        return self.decisions.connection.up and all(each.up for each in self.vital_connections)

    @property
    def vital_connections(self) -> tuple[Connection, ...]:
        """The database connections without which the instance cannot serve clients."""
        return (self.instance.commit.connection, self.instance.queries.connection, self._heartbeat.connection)

    @property
    def beat_age(self) -> float:
        """Return the seconds since the start of the last heartbeat that is known to be in the store."""
        return self._heartbeat.age

    def end_turn(self) -> bool:
        """Send the deliveries of this turn to consumers, and its units to the store; return whether there were any."""
        instance, queues, settlements = self.instance, self.queues, self.settlements
        instance.ids.advance()
        if instance.selecting.end:
            instance.selecting.renew()
        pumped = bool(queues.dirty) and queues.pump()
        settled = bool(settlements.gathered or settlements.passed_over)
        if settled:
            settlements.hand_over()
        instance.commit.kick()
        if self._held_back and instance.memory.unread <= instance.memory.most:
            held_back, self._held_back = self._held_back, set()
            self._call_each(held_back)
        if self._congestion_ends and not instance.commit.congested:
            ended, self._congestion_ends = self._congestion_ends, {}
            self._call_each(ended)
        return pumped or settled

    def _call_each(self, callbacks: Iterable[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - a defect of the callback
                self.loop.contain(callback)

    def hold_back(self, has_room: Callable[[], None]) -> None:
        """Call ``has_room`` when there is memory again for deliveries that peers have not settled."""
        self._held_back.add(has_room)

    def hold_back_no_more(self, has_room: Callable[[], None]) -> None:
        self._held_back.discard(has_room)

    def when_uncongested(self, callback: Callable[[], None]) -> None:
        self._congestion_ends[callback] = None
