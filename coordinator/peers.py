"""The other instances: whether they live, and what they say of addresses, groups, claims and links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from store import queries
from store.commit.parts import EVERY_GROUP

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
        """``heard``: takes the notices of other channels. ``look``: called when an instance has come, to see now who
        lives. ``fenced``: called when others took this instance for dead; it must stop.
        """
        self._instance = instance
        self._queues = queues
        self._directory = directory
        self._heard = heard
        self._look = look
        self._fenced = fenced

    def arrive(self) -> None:
        """Tell the others that this instance is there."""
        self._instance.queries.ask(queries.ARRIVE, [], lambda _: None)

    def beaten(self, alive: bool, peers: int) -> None:
        """This instance has said that it lives, and seen whether others do."""
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
        """Notices may have been missed while the connection was away."""
        self._directory.all_changed()
        self._queues.all_in_store()

    def notified(self, channel: str, payload: str) -> None:
        if channel == "coordinator_address":
            self._directory.changed(payload)
        elif channel in self._heard:
            self._heard[channel](payload)
        elif payload == queries.ARRIVED:
            self._look()
        else:
            self._queues.notified(payload)


class Company:
    """Unit: this instance was alone and woke nobody; what it left in the store until now others may want."""

    owner: object = None

    def write(self, batch: Batch) -> None:
        batch.wake.add(EVERY_GROUP)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        log.error("others were not told of what waits in the store", error=str(error))
