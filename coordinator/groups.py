"""Which consumer group of an address a source means (rule D1, and the JMS mapping of subscriptions).

* ``orders``: of a queue the default group, which all its consumers share; of a topic a group of the link's own.
* ``orders::billing``: the group ``billing``, of a queue or a topic, made on first use and kept.
* A topic with ``expiry-policy`` ``never``: a group named after container and link, kept until the link is closed (not
merely detached). With the capability ``shared`` links of one subscription share it; with ``global`` whatever their
container.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.addresses import GROUP_SEPARATOR, LONGEST_NAME, shown
from coordinator.errors import Condition, Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``lasting``: it stays when its consumers are gone; ``ends_with_close``: until a link to it is closed."""

    name: str
    lasting: bool
    ends_with_close: bool = False


def part(source: str) -> tuple[str, str | None]:
    """The address of a source, and the group it names, if any. Refusal where the group's name is none."""
    address, separator, group = source.partition(GROUP_SEPARATOR)
    if not separator:
        return source, None
    if not group or len(group) > LONGEST_NAME or not group.isprintable() or GROUP_SEPARATOR in group:
        raise Refusal(
            Condition.INVALID_FIELD,
            f"the source {shown(source)} names no consumer group after {GROUP_SEPARATOR}; "
            f"expected 1 to {LONGEST_NAME} printable characters",
        )
    return address, group


def subscription(container: str, link: str, *, shared: bool, globally: bool) -> str:
    """The name of a lasting subscription's group.

    Links that share one have names of their own: the subscription's, then ``|`` and something that sets them apart.
    """
    name = link.partition("|")[0] if shared else link
    return f"{name}@" if globally else f"{name}@{container}"
