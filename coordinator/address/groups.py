"""Which consumer group a source names (rule D1, and the JMS mapping of subscriptions).

* ``orders``: on a queue the default group, which all its consumers share; on a topic a group for this link alone.
* ``orders::billing``: the group ``billing`` of a queue or a topic, made on first use and kept.
* ``orders::*``: broadcast, all that is committed from now on, of a queue or a topic, in a group for this link alone,
which is done with a message whatever outcome the link gives.
* A topic (or a broadcast) with ``expiry-policy`` ``never``: a group named after container and link, kept until the link
is closed (not merely detached).
* With the capability ``shared`` the links of one subscription share its group, lasting or not; with ``global`` also
links of other containers. A group that does not last is removed with the last of its links.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.address.addresses import EXPECTED, GROUP_SEPARATOR, MOST_OCTETS, cut, is_too_long, shown
from coordinator.errors import Condition, Refusal

#: in place of a group's name: broadcast
EVERYTHING = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``lasting``: it stays without consumers. ``ends_with_close``: closing a link to it removes it. ``owned``: it is
    named after a container of its user, and no one else joins it (S3).
    """

    name: str
    lasting: bool
    ends_with_close: bool = False
    owned: bool = False


def part(source: str) -> tuple[str, str | None]:
    """Split a source into its address and the group it names, if any. Refusal if the group's name is invalid."""
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
    """The name of a lasting subscription's group.

    Links that share a subscription are named after it, with ``|`` and a suffix of their own.
    """
    name = link.partition("|")[0] if shared else link
    return cut(f"{name}@" if globally else f"{name}@{container}")


def passing(subscription: str, owner: str) -> str:
    """The name of the group of a subscription that does not last. ``owner``: whose it is, of those alike."""
    return f"{cut(subscription, MOST_OCTETS - 1 - len(owner))}/{owner}"


def anyones(link: str) -> str | None:
    """The group of a subscription shared by all containers, if the name of ``link`` asks for one; else None.

    A JMS client without an id appends ``|global`` to the name when it ends a subscription. (The link's desired
    capabilities say the same, but Proton 0.40 does not give them to us.)
    """
    name, separator, scope = link.rpartition("|")
    return cut(f"{name}@") if separator and scope == "global" else None
