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
        """The connection that it belongs to, or None. Where many units wait, connections take turns."""

    def write(self, batch: Batch) -> None:
        """Add the rows. It is called again for another batch if the store refused this one because of another unit."""

    def durable(self) -> None:
        """The rows are committed and flushed."""

    def refused(self, error: StoreError) -> None:
        """The store has refused the rows; none of them is there."""
