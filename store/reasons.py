"""The reasons of decisions that the service itself writes. Operators cannot use them."""

from __future__ import annotations

from typing import Final

#: Its client asked for it.
DISCHARGED: Final = "discharged"
#: In the SQL transaction of an application (X3).
APPLICATION: Final = "application"
#: By a checker.
CHECKED: Final = "checked"
#: After the last check.
EXHAUSTED: Final = "check-exhausted"
#: By a query of its outcome (T11).
ASKED: Final = "asked"
TIMEOUT: Final = "timeout"
LINK_LOST: Final = "link-lost"
PARTIAL_DELIVERY: Final = "partial-delivery"
#: A condition of the standard follows.
ROLLBACK_ONLY: Final = "rollback-only"
STORE_REFUSED: Final = "store-refused"
INSTANCE_LOST: Final = "instance-lost"
ADDRESS_REMOVED: Final = "address-removed"

#: Reasons of decisions made neither by an instance nor by an operator: by the watch of instances, a removal, or SQL.
OF_NO_INSTANCE: Final = (INSTANCE_LOST, ADDRESS_REMOVED, APPLICATION)
#: All reasons, which operators may not give.
WORDS: Final = (
    *(DISCHARGED, APPLICATION, CHECKED, EXHAUSTED, ASKED, TIMEOUT, LINK_LOST, PARTIAL_DELIVERY, ROLLBACK_ONLY),
    *(STORE_REFUSED, INSTANCE_LOST, ADDRESS_REMOVED),
)
