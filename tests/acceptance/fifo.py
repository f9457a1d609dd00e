"""Messages of message groups, for the tests of addresses of kind fifo."""

from __future__ import annotations

from typing import Any

from tests.wire.frames import Accepted, State
from tests.wire.links import Delivery, Sender
from tests.wire.messages import VALUE, Header, Properties, section
from tests.wire.types import Int

WINDOW = 100
MAX_ATTEMPTS = 3
SETTINGS = {
    "addresses.patterns": f'[{{"match": "*", "kind": "fifo", "max_attempts": {MAX_ATTEMPTS}}}]',
    "bounds.window_messages": str(WINDOW),
}


def message(number: int, group: str | None, **header: Any) -> bytes:
    """With ``number`` for a body."""
    octets = section(VALUE, Int(number))
    if group is not None:
        octets = section(Properties.CODE, Properties(group_id=group, group_sequence=number).described().value) + octets
    return section(Header.CODE, Header(**header).described().value) + octets if header else octets


def post_each(sender: Sender, *messages: bytes) -> None:
    sent = [sender.post(each) for each in messages]
    for delivery in sent:
        assert sender.answer_to(delivery).state == Accepted()


def post(sender: Sender, groups: str, first: int = 0) -> None:
    """One of each group, by its letter; ``-``: of none. Numbered from ``first`` on."""
    post_each(sender, *(message(first + n, None if each == "-" else each) for n, each in enumerate(groups)))


def numbers(deliveries: list[Delivery]) -> list[Any]:
    return [delivery.body for delivery in deliveries]


def settle(state: State, *deliveries: Delivery) -> None:
    """And wait until the store has it."""
    for delivery in deliveries:
        delivery.disposition(state, settled=False)
    for delivery in deliveries:
        delivery.settlement()


def by_group(groups: str, found: list[int]) -> list[list[int]]:
    """Of what :func:`post` posted as a repetition of ``groups``: those of each, as they came."""
    of = {group: [n for n in found if groups[n % len(groups)] == group] for group in dict.fromkeys(groups)}
    return list(of.values())
