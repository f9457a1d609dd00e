"""The other instances: whether they live, and their notices about addresses, groups, claims and links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from store import channels
from store.commit.notices import EVERY_GROUP
from store.questions import notices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.address.directory import Directory
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.errors import StoreError

log = structlog.get_logger(__name__)


class Peers:
    def __init__(
        self,
        instance: Instance,
        queues: Queues,
        directory: Directory,
        heard: Mapping[str, Callable[[str], None]],
        *,
        look: Callable[[], None],
        fenced: Callable[[], None],
    ) -> None:
        """``heard``: by channel, what takes its notices. ``look``: makes the heartbeat look at once which instances
        live. ``fenced``: called when other instances took this one for dead; it must stop.
        """
        self._instance = instance
        self._queues = queues
        self._directory = directory
        self._heard = heard
        self._look = look
        self._fenced = fenced

    def arrive(self) -> None:
        """Tell the other instances that this one has begun."""
        notices.arrive(self._instance.queries)

    def beaten(self, alive: bool, peers: int) -> None:
        """The answer to a heartbeat: whether this instance still counts as alive, and how many others live."""
        if not alive:
            self.given_up()
            return
        instance = self._instance
        alone, instance.peers = not instance.peers, peers
        if alone and peers:
            instance.commit.add(Company())
        if peers:
            self._queues.share()

    def given_up(self) -> None:
        log.error("this instance was given up by another", instance=self._instance.instance_id)
        self._fenced()

    def connected(self) -> None:
        """Load anew what notices tell: some may have been missed while the connection was down."""
        self._directory.all_changed()
        self._queues.all_in_store()

    def notified(self, channel: str, payload: str) -> None:
        if channel == channels.ADDRESS:
            self._directory.changed(payload)
        elif channel in self._heard:
            self._heard[channel](payload)
        elif payload == channels.ARRIVED:
            self._look()
        else:
            self._queues.notified(payload)


class Company:
    """Unit: wakes the consumers at other instances, which the batches of an instance that is alone do not."""

    owner: object = None

    def write(self, batch: Batch) -> None:
        batch.tell(EVERY_GROUP, 0)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        log.error("other instances were not notified of messages in the store", error=str(error))
