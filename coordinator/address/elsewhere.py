"""Addresses that another service has, in a store of its own: links are sent there, and posts on the relay refused.

No transaction spans two services: each decides in its own store.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from coordinator.address.addresses import SERVICE_PREFIX, UNANSWERED, shown
from coordinator.errors import Condition, Redirect, Refusal
from coordinator.settings import Endpoint, endpoint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.settings import AddressElsewhere


class Elsewhere:
    """Knows which service has an address, by the setting ``addresses.elsewhere``."""

    def __init__(self, table: Iterable[AddressElsewhere]) -> None:
        self._table = [(each.match, endpoint(each.url)) for each in table]

    def check_link(self, name: str, asked: str) -> None:
        """Check that this service has the address ``name``. ``asked``: the address that the client's terminus names,
        with the consumer group.

        :raises Redirect: another service has it.
        """
        place = self._place_of(name)
        if place is not None:
            text = f"the service at {place} has the address {shown(name)}: connect there"
            raise Redirect(text, host=place.host, port=place.port, address=asked)

    def check_post(self, name: str) -> None:
        """Check that a message on the relay may be posted to the address ``name``.

        :raises Refusal: another service has it.
        """
        place = self._place_of(name)
        if place is not None:
            text = f"the service at {place} has the address {shown(name)}: post it there; no transaction spans both"
            raise Refusal(Condition.NOT_FOUND, text)

    def _place_of(self, name: str) -> Endpoint | None:
        """Return where the address is; None: here. Dead letters have a name of their own: those of a consumer group
        that is named like an address elsewhere are here.
        """
        if not self._table or name.startswith(SERVICE_PREFIX) or name == UNANSWERED:
            return None
        return next((place for match, place in self._table if fnmatchcase(name, match)), None)
