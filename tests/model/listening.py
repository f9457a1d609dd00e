"""A listener of a broadcast in the histories of two services (D1)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from proton import Receiver

from tests.acceptance.engine_client import Client, Lost


@dataclass
class Listening:
    """``since``: how many transactions there were when its attach was answered; ``bodies``: what it
    has heard.
    """

    client: Client
    receiver: Receiver
    since: int
    bodies: list[str] = field(default_factory=list)

    def take(self) -> None:
        arrived = self.client.arrived(self.receiver)
        while arrived:
            taken = arrived.popleft()
            self.bodies.append(taken.body)
            with contextlib.suppress(Lost):
                self.client.accept(taken)
