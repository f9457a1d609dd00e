"""A checkable transaction has a producer group (rule H2) and check terms (H7), which this module decodes from client
properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from coordinator.errors import Condition, Refusal
from coordinator.printable import printable
from store.codec.message import CHECKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.settings import CheckSettings

#: characters of a producer group's name
LONGEST_GROUP = 255
#: The check terms that a client may set, as link properties (after ``coordinator:``) and as application properties, in
#: the order of the fields of :class:`CheckTerms`: the least and the greatest value, and its unit.
CHECK_PROPERTIES = dict(
    zip(
        CHECKS,
        (
            (0, 3_600_000, "a number of milliseconds"),
            (1_000, 86_400_000, "a number of milliseconds"),
            (1, 1_000, "a number"),
        ),
        strict=True,
    )
)
_LONGEST_SHOWN = 64


T = TypeVar("T")


class CheckTerms(NamedTuple):
    """The terms of check-back: when the first check is due, the interval, and the most checks."""

    immunity_ms: int
    interval_ms: int
    most: int


class OwnCheckTerms(NamedTuple):
    """The check terms that an address or a client sets; None: not set."""

    immunity_ms: int | None = None
    interval_ms: int | None = None
    most: int | None = None

    def over(self, settings: CheckTerms) -> CheckTerms:
        """Return these terms, completed by ``settings``."""
        if self == NO_OWN_TERMS:
            return settings
        return CheckTerms(*map(_first, self, settings))

    def before(self, others: OwnCheckTerms) -> OwnCheckTerms:
        """Return these terms, completed by ``others``."""
        return OwnCheckTerms(*map(_first, self, others))


def _first(own: int | None, other: T) -> int | T:
    return other if own is None else own


#: no term is set: address and settings decide
NO_OWN_TERMS = OwnCheckTerms()


def terms(settings: CheckSettings) -> CheckTerms:
    """Return the terms of the settings, for transactions whose client and address set none."""
    immunity_ms, interval_ms = int(settings.immunity_seconds * 1000), int(settings.interval_seconds * 1000)
    return CheckTerms(immunity_ms, max(1, interval_ms), settings.most)


def producer_group(value: object, where: str) -> str:
    """Check and return the name of a producer group, which a client gave in ``where``.

    :raises Refusal: it is not a text of 1 to 255 printable characters.
    """
    expected = f"expected a string or symbol of 1 to {LONGEST_GROUP} printable characters"
    if not isinstance(value, str):
        raise Refusal(Condition.INVALID_FIELD, f"{where} is of type {type(value).__name__}; {expected}")
    if not value or len(value) > LONGEST_GROUP or not value.isprintable():
        text = f"{where} is '{printable(value, _LONGEST_SHOWN)}' ({len(value)} characters); {expected}"
        raise Refusal(Condition.INVALID_FIELD, text)
    return str(value)


def read_check_terms(given: Mapping[str, object], where: str) -> OwnCheckTerms:
    """Return the check terms that a client sets in properties named by :data:`CHECK_PROPERTIES`; ``where``: the text
    before these names in an error.

    :raises Refusal: a value is not a number within its limits.
    """
    found: list[int | None] = []
    for name, (least, most, kind) in CHECK_PROPERTIES.items():
        value = given.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
            shown = printable(str(value), _LONGEST_SHOWN)
            text = f"{where}{name} is '{shown}'; expected {kind} from {least} to {most}"
            raise Refusal(Condition.INVALID_FIELD, text)
        found.append(value)
    return OwnCheckTerms(*found)
