"""Peers tracks the other instances: whether any are alive, and their NOTIFYs about addresses, groups, claims and
links.
"""

from __future__ import annotations

import hashlib
from itertools import count
from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Condition, Refusal
from store import channels
from store.commit.parameters import EVERY_GROUP
from store.questions import notices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.address.directory import Directory
    from coordinator.address.nodes import User
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.errors import StoreError


log = structlog.get_logger(__name__)


class Peers:
    """Handles what the heartbeat and NOTIFYs say of the other instances."""

    def __init__(
        self,
        instance: Instance,
        queues: Queues,
        directory: Directory,
        handlers: Mapping[str, Callable[[str], None]],
        *,
        beat: Callable[[], None],
        fenced: Callable[[], None],
    ) -> None:
        """``handlers``: the handlers of NOTIFY payloads, by channel. ``beat``: makes the heartbeat query the living
        instances at once. ``fenced``: called when other instances have declared this one dead: it must stop.
        """
        self._instance = instance
        self._queues = queues
        self._directory = directory
        self._handlers = handlers
        self._beat = beat
        self._fenced = fenced

    def arrive(self) -> None:
        """Notify the other instances that this one has begun."""
        notices.arrive(self._instance.queries)

    def beaten(self, alive: bool, peers: int) -> None:
        """Handle the answer to a heartbeat: whether this instance counts as alive, and how many others are."""
        if not alive:
            self.given_up()
            return
        instance = self._instance
        alone, instance.peers = not instance.peers, peers
        if alone and peers:
            instance.commit.add(WakeOtherInstances())
        if peers:
            self._queues.touch()

    def given_up(self) -> None:
        log.error("this instance was given up by another", instance=self._instance.instance_id)
        self._fenced()

    def connected(self) -> None:
        """Load addresses and groups anew: a NOTIFY may have been lost while the connection was down."""
        self._directory.all_changed()
        self._queues.all_in_store()
        self._queues.share_all()

    def notified(self, channel: str, payload: str) -> None:
        if channel == channels.ADDRESS:
            self._directory.changed(payload)
        elif channel in self._handlers:
            self._handlers[channel](payload)
        elif payload == channels.ARRIVED:
            self._beat()
        else:
            self._queues.notified(payload)


class WakeOtherInstances:
    """Unit: notifies other instances of stored messages, which the batches of an instance that was alone did not."""

    owner: object = None

    def write(self, batch: Batch) -> None:
        batch.notify(EVERY_GROUP, 0)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        log.error("other instances were not notified of messages in the store", error=str(error))


# When a client attaches a link again at another instance, the later link stays (P13).
#
# A NOTIFY announces each attach, unless this instance is alone. PostgreSQL delivers all NOTIFYs to all instances in the
# order of their commits, so that all instances receive the same one last: another instance's NOTIFY that follows a
# link's own steals the link.

_STOLEN = Refusal(Condition.STOLEN, "the link was attached again, by way of another process of the service")


class _Held:
    __slots__ = ("announced", "link", "number")

    def __init__(self, link: User, number: int, *, announced: bool) -> None:
        self.link = link
        self.number = number
        #: whether its own NOTIFY was received; an instance that is alone needs none
        self.announced = announced


class Stealing:
    """Announces the links of this instance, and ends those that others steal. ``identity``: the identity of a link
    (part 2, 2.6.1).
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._held: dict[str, _Held] = {}
        self._numbers = count(1)
        #: digests of links not announced yet; while an announcement is under way, new ones wait here
        self._unannounced: dict[str, None] = {}
        self._announcing = False

    def attached(self, identity: tuple[object, ...], link: User) -> None:
        alone = not self._instance.peers
        digest, number = _digest(identity), next(self._numbers)
        self._held[digest] = _Held(link, number, announced=alone)
        if alone:
            return
        self._unannounced[digest] = None
        if not self._announcing:
            self._announcing = True
            self._instance.loop.call_later(0, self._announce)

    def _announce(self) -> None:
        """Announce the waiting links; however long the store is unavailable, no more wait than there are links."""
        unannounced, self._unannounced = self._unannounced, {}
        self._announcing = bool(unannounced)
        if unannounced:
            texts = [f"{self._instance.instance_id} {self._held[digest].number} {digest}" for digest in unannounced]
            notices.announce_links(self._instance.queries, texts, self._announce)

    def lost(self, identity: tuple[object, ...], link: User) -> None:
        digest = _digest(identity)
        held = self._held.get(digest)
        if held is not None and held.link is link:
            del self._held[digest]
            self._unannounced.pop(digest, None)

    def notified(self, payload: str) -> None:
        instance, number, digest = payload.split(" ")
        held = self._held.get(digest)
        if held is None:
            return
        if int(instance) == self._instance.instance_id:
            held.announced = held.announced or int(number) == held.number
        elif held.announced:
            held.link.refuse(_STOLEN)


def _digest(identity: tuple[object, ...]) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()
