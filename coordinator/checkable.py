"""What makes a transaction checkable: its producer group (rule H2), and how it is checked (H7). Checks of what clients
say about both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from coordinator.errors import Condition, Refusal
from coordinator.printable import printable

if TYPE_CHECKING:
    from coordinator.settings import CheckSettings

#: characters of a producer group's name
LONGEST_GROUP = 255
#: the longest immunity that a client may ask for: one hour
LONGEST_IMMUNITY_MS = 3_600_000
_LONGEST_SHOWN = 64


class CheckTerms(NamedTuple):
    """How a transaction is checked: from when on, how often, how many times."""

    immunity_ms: int
    interval_ms: int
    most: int


class OwnCheckTerms(NamedTuple):
    """Those that an address has of its own; None: as the settings say."""

    immunity_ms: int | None = None
    interval_ms: int | None = None
    most: int | None = None

    def over(self, settings: CheckTerms) -> CheckTerms:
        """The terms of a transaction whose first message goes to the address, where the settings say these."""
        return CheckTerms(*(theirs if own is None else own for own, theirs in zip(self, settings, strict=True)))


def terms(settings: CheckSettings, immunity_ms: int | None = None) -> CheckTerms:
    """``immunity_ms``: what the client asks for; None: as the settings say."""
    if immunity_ms is None:
        immunity_ms = int(settings.immunity_seconds * 1000)
    return CheckTerms(immunity_ms, max(1, int(settings.interval_seconds * 1000)), settings.most)


def producer_group(value: object, where: str) -> str:
    """The name of a producer group, as a client gave it in ``where``.

    :raises Refusal: it is not a text of 1 to 255 printable characters.
    """
    expected = f"expected a string or symbol of 1 to {LONGEST_GROUP} printable characters"
    if not isinstance(value, str):
        raise Refusal(Condition.INVALID_FIELD, f"{where} is of type {type(value).__name__}; {expected}")
    if not value or len(value) > LONGEST_GROUP or not value.isprintable():
        text = f"{where} is '{printable(value, _LONGEST_SHOWN)}' ({len(value)} characters); {expected}"
        raise Refusal(Condition.INVALID_FIELD, text)
    return str(value)


def immunity_ms(value: object, where: str) -> int:
    """The immunity in milliseconds that a client asks for in ``where``.

    :raises Refusal: it is not a number from 0 to one hour.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LONGEST_IMMUNITY_MS:
        shown = printable(str(value), _LONGEST_SHOWN)
        text = f"{where} is '{shown}'; expected a number of milliseconds from 0 to {LONGEST_IMMUNITY_MS}"
        raise Refusal(Condition.INVALID_FIELD, text)
    return value
