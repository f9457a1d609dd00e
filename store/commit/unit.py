"""What succeeds or fails by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from store.commit.batch import Batch
    from store.errors import StoreError


class Unit(Protocol):
    """What succeeds or fails by itself."""

    @property
    def owner(self) -> object:
        """The connection it is for, or None: where many units wait, connections take turns."""

    def write(self, batch: Batch) -> None:
        """Add the rows. May be called again for another batch when this one was refused for a neighbour's fault."""

    def durable(self) -> None:
        """The rows are committed and flushed."""

    def refused(self, error: StoreError) -> None:
        """The store will not take the rows; none of them is there."""
