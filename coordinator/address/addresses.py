"""Addresses have names that this module checks; a policy decides which are created when a client uses their name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Literal

from coordinator.errors import Condition, Refusal
from coordinator.group.policies import IMMEDIATE
from coordinator.printable import printable
from coordinator.settings import AddressPattern, AddressSettings, Kind

LONGEST_NAME = 1024
#: The most octets of a name in UTF-8 that fit into a row of PostgreSQL's index of consumer groups, the narrowest.
MOST_OCTETS = 2688
EXPECTED = f"1 to {LONGEST_NAME} characters, at most {MOST_OCTETS:,} octets"

#: Reserved prefixes: the service's own nodes, and the dead letters of a group (D4).
SERVICE_PREFIX = "$"
DEAD_LETTER_PREFIX = "%DLQ%"
#: RocketMQ's name for the address of messages whose transactions no checker has answered (H10)
UNANSWERED = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Separates the address from the consumer group in a source address (D1).
GROUP_SEPARATOR = "::"

_LONGEST_SHOWN = 64

#: An address that was created on use is removed after this time without use, if it is empty.
UNUSED = timedelta(days=7)


class AddressInvalid(ValueError):
    """The name is not allowed for an address; the message says why, in printable text of bounded length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewAddress:
    """An address to be created."""

    name: str
    routing: Literal["queue", "topic"] = "queue"
    kind: Kind = "normal"
    on_expiry: Literal["drop", "dead-letter"] = "drop"
    max_attempts: int = 16
    retry: str = IMMEDIATE.text
    #: None: the settings decide
    retention_hours: int | None = None


def own(name: str, *, topic: bool) -> NewAddress:
    """Return an address that the service creates for itself: for dead letters, or dynamic."""
    return NewAddress(name=name, routing="topic" if topic else "queue")


@dataclass(frozen=True, kw_only=True, slots=True)
class NotMade:
    """The reason why an address is not created. ``message`` may be sent to the peer and logged.

    ``invalid``: no address can have this name (``amqp:invalid-field``). ``not-found``: the name is allowed, the address
    does not exist, and clients may not create it (``amqp:not-found``).
    """

    condition: Literal["invalid", "not-found"]
    message: str


def shown(name: str) -> str:
    """Return ``name`` for a message: printable, quoted, and cut to a line."""
    quoted = f"'{printable(name, _LONGEST_SHOWN)}'"
    return quoted if len(name) <= _LONGEST_SHOWN else f"{quoted} ({len(name)} characters)"


def is_too_long(name: str) -> bool:
    """Whether neither an address nor a group that a source names can have this name."""
    return len(name) > LONGEST_NAME or len(_utf8(name)) > MOST_OCTETS


def cut(name: str, most: int = MOST_OCTETS) -> str:
    """Return ``name``, or if it has more than ``most`` octets, its beginning followed by its digest."""
    return name if len(_utf8(name)) <= most else _cut(name, _digest(name), most)


def _cut(name: str, digest: str, most: int) -> str:
    return f"{_utf8(name)[: most - len(digest) - 1].decode(errors='ignore')}~{digest}"


def _digest(name: str) -> str:
    return blake2b(_utf8(name), digest_size=16).hexdigest()


def _utf8(name: str) -> bytes:
    return name.encode(errors="surrogatepass")


def check_name(name: str) -> str:
    """Return ``name`` if an address can have it: :data:`EXPECTED`, of printable text without ``::``.

    :raises AddressInvalid: saying what was wrong.
    """
    if not name:
        raise AddressInvalid(f"the address is empty; expected {EXPECTED}")
    if is_too_long(name):
        raise AddressInvalid(f"the address {shown(name)} is too long; expected {EXPECTED}")
    for position, character in enumerate(name, start=1):
        if not character.isprintable():
            raise AddressInvalid(
                f"the address {shown(name)} has U+{ord(character):04X} at character {position}; "
                "expected printable text without control characters"
            )
    if GROUP_SEPARATOR in name:
        raise AddressInvalid(f"the address {shown(name)} has '::', which parts an address from a consumer group")
    return name


def keeps_dead_letters(name: str) -> bool:
    """Whether the address keeps dead letters or unanswered messages: only the service posts there."""
    return name == UNANSWERED or name.startswith(DEAD_LETTER_PREFIX)


def dead_letter_name(name: str) -> str:
    """Return the address for the dead letters of the queue or group ``name``.

    A name that is too long with the prefix is cut, and ends with octets of its digest.
    """
    whole = DEAD_LETTER_PREFIX + name
    try:
        return check_name(whole)
    except AddressInvalid:
        digest = _digest(name)
        fit = "".join(each if each.isprintable() else "?" for each in whole).replace(GROUP_SEPARATOR, "??")
        return _cut(fit[: LONGEST_NAME - len(digest) - 1], digest, MOST_OCTETS)


class AddressPolicy:
    """Decides whether an address is created when a client uses an unknown name."""

    def __init__(self, settings: AddressSettings) -> None:
        self._create = settings.create
        self._patterns = settings.patterns

    def decide(self, name: str, *, topic: bool = False) -> NewAddress | NotMade:
        """Return the address to create for a client that used the unknown ``name``, or why it is not created.

        ``topic``: the client wants a topic (the terminus capability ``topic``); a matching pattern overrides it.
        """
        try:
            check_name(name)
        except AddressInvalid as error:
            return NotMade(condition="invalid", message=str(error))
        if name.startswith((SERVICE_PREFIX, DEAD_LETTER_PREFIX)):
            prefix = SERVICE_PREFIX if name.startswith(SERVICE_PREFIX) else DEAD_LETTER_PREFIX
            return NotMade(
                condition="not-found",
                message=f"there is no address {shown(name)}; names that begin with {prefix} are the service's own",
            )
        pattern = self._matching(name)
        if self._create == "never":
            return NotMade(
                condition="not-found",
                message=f"there is no address {shown(name)}; addresses are made by administration only",
            )
        if pattern is not None:
            return NewAddress(
                name=name,
                routing=pattern.routing,
                kind=pattern.kind,
                on_expiry=pattern.on_expiry,
                max_attempts=pattern.max_attempts,
                retry=pattern.retry,
                retention_hours=pattern.retention_hours,
            )
        if self._create == "matching":
            return NotMade(
                condition="not-found",
                message=f"there is no address {shown(name)}, and it matches no pattern of those that are made on use",
            )
        return NewAddress(name=name, routing="topic" if topic else "queue")

    def _matching(self, name: str) -> AddressPattern | None:
        return next((pattern for pattern in self._patterns if fnmatchcase(name, pattern.match)), None)


# A source names a consumer group (rule D1, and the JMS mapping of subscriptions):
#
# * ``orders``: on a queue the default group, which all its consumers share; on a topic a group for this link alone.
# * ``orders::billing``: the group ``billing`` of a queue or a topic, made on first use and kept.
# * ``orders::*``: broadcast, all messages committed from now on, of a queue or a topic, in a group for this link alone,
# in which any outcome completes a message.
# * A topic (or a broadcast) with ``expiry-policy`` ``never``: a group named after container and link, kept until the
# link is closed (not merely detached).
# * With the capability ``shared`` the links of one subscription share its group, lasting or not; with ``global`` also
# links of other containers. A group that does not last is removed with the last of its links.

#: in place of a group's name: broadcast
EVERYTHING = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The consumer group of a source. ``lasting``: the group stays without consumers. ``ends_with_close``: closing a
    link removes it. ``owned``: it is named after a container of its user, and no other user joins it (S3).
    """

    name: str
    lasting: bool
    ends_with_close: bool = False
    owned: bool = False


def part(source: str) -> tuple[str, str | None]:
    """Split a source into its address and the group it names, if any.

    :raises Refusal: the group's name is invalid.
    """
    address, separator, group = source.partition(GROUP_SEPARATOR)
    if not separator:
        return source, None
    if not group or is_too_long(group) or not group.isprintable() or GROUP_SEPARATOR in group:
        raise Refusal(
            Condition.INVALID_FIELD,
            f"the source {shown(source)} names no consumer group after {GROUP_SEPARATOR}; "
            f"expected {EXPECTED} of printable text",
        )
    return address, group


def subscription(container: str, link: str, *, shared: bool, globally: bool) -> str:
    """Return the name of a lasting subscription's group.

    Links that share a subscription have its name, with ``|`` and a suffix each.
    """
    name = link.partition("|")[0] if shared else link
    return cut(f"{name}@" if globally else f"{name}@{container}")


def passing(subscription: str, owner: str) -> str:
    """Return the name of a temporary subscription's group. ``owner``: tells subscriptions of one name apart."""
    return f"{cut(subscription, MOST_OCTETS - 1 - len(owner))}/{owner}"


def anyones(link: str) -> str | None:
    """Return the group of a subscription shared by all containers, if the name of ``link`` means one; else None.

    A JMS client without an id appends ``|global`` to the name when it ends a subscription. (The link's desired
    capabilities say the same, but Proton 0.40 does not expose them.)
    """
    name, separator, scope = link.rpartition("|")
    return cut(f"{name}@") if separator and scope == "global" else None
