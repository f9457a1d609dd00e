"""A whole instance of the service without clients, in a loop of its own."""

from __future__ import annotations

from coordinator.address.addresses import AddressPolicy, Group
from coordinator.address.nodes import Address
from coordinator.errors import Refusal
from coordinator.group.queues import Queue
from coordinator.service import Service
from coordinator.settings import Settings
from store import recovery
from store.database import connected
from tests.fix_loop import EpollLoop


class Instance:
    def __init__(self, url: str) -> None:
        with connected(url) as connection:
            place = recovery.register(connection, "1")
        self.loop = EpollLoop()
        settings = Settings()
        self.service = Service(self.loop, settings, AddressPolicy(settings.addresses), url, place, fenced=lambda: None)
        self.loop.end_turn = self.service.end_turn
        self.service.start()

    def resolve(self, name: str, *, topic: bool = False) -> Address:
        found: list[Address | Refusal] = []
        self.service.directory.resolve(name, found.append, topic=topic)
        self.loop.run_until(lambda: found)
        assert isinstance(found[0], Address)
        return found[0]

    def subscribe(self, address: Address, name: str) -> Queue:
        joined: list[Queue | Refusal] = []
        self.service.subscriptions.join(address, Group(name=name, lasting=True), joined.append)
        self.loop.run_until(lambda: joined)
        assert isinstance(joined[0], Queue)
        return joined[0]

    def close(self) -> None:
        self.service.close()
        self.loop.close()
