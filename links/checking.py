"""Checking links send checks to a checker, on the source ``$check/<producer group>``, and receive its decisions
(H8).
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from coordinator.checkable import producer_group
from coordinator.errors import Condition, Refusal
from links import engine, steps
from links.link import CHECKER
from links.outgoing import Delivering
from store.permissions import Verb

if TYPE_CHECKING:
    from coordinator.check_back import Due
    from links.connection import Connection
    from links.outgoing import Filters

#: the begin of a source address that names a producer group
PREFIX = "$check/"
#: how many checks a link may leave unsettled
_MOST_UNSETTLED = 100
#: octets that suffice for the annotations of a check
_FEWEST_OCTETS = 1 << 13

_DECISIONS = {engine.ACCEPTED: "commit", engine.REJECTED: "rollback"}
_UNKNOWN = (engine.RELEASED, engine.MODIFIED)

_tags = count(1)


def attach_checker(connection: Connection, pointer: engine.Pointer, name: str, asked: Filters) -> None:
    """Attach the link of a checker. ``name``: the source's address, which begins with :data:`PREFIX`.

    :raises Refusal: the attach wants an option that checkers cannot have.
    """
    group = producer_group(name.removeprefix(PREFIX), f"the producer group after {PREFIX}")
    connection.need(Verb.CHECK, group)
    source = engine.link_remote_source(pointer)
    if engine.terminus_distribution_mode(source) == engine.DIST_MODE_COPY:
        raise Refusal(Condition.NOT_IMPLEMENTED, "checks cannot be browsed: each goes to one checker, which answers it")
    if asked.selector is not None:
        raise Refusal(Condition.NOT_IMPLEMENTED, "a checker takes all checks of its producer group: no selector")
    if engine.link_remote_snd_settle_mode(pointer) == engine.SND_SETTLED:
        raise Refusal(
            Condition.NOT_IMPLEMENTED,
            "checks are sent unsettled, as their outcomes decide: expected the sender settle mode unsettled or mixed",
        )
    most: int = engine.link_remote_max_message_size(pointer)
    if 0 < most < _FEWEST_OCTETS:
        text = (
            f"a checker that takes messages of {most} octets at most: expected {_FEWEST_OCTETS} at least, or no limit"
        )
        raise Refusal(Condition.NOT_IMPLEMENTED, text)
    connection.endpoints.attached(Checking(connection, pointer, name, group, most))


class Checking(Delivering):
    """Sends checks, and passes on their outcomes; implements :class:`coordinator.check_back.Checker`."""

    role = CHECKER
    __slots__ = (
        "_checks", "_deciding", "_silent", "_starved", "_watched", "coming", "group", "most_octets", "unsettled",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, pointer: engine.Pointer, name: str, group: str, most_octets: int
    ) -> None:
        self.group = group
        self.most_octets = most_octets
        self.coming = 0
        self.unsettled: dict[engine.Pointer, Due] = {}
        #: unsettled checks whose decision is on its way to the store
        self._deciding: set[engine.Pointer] = set()
        #: whether the checker has used all its room without an answer since then; and whether a timer for that runs
        self._silent = True
        self._watched = False
        self._starved = False
        self._checks = connection.service.checks
        super().__init__(connection, pointer, name, b"")
        self.right = Verb.CHECK, group
        self._checks.attached(self)
        self._checks.ready(self)

    @property
    def number(self) -> int:
        return self.connection.number

    # -- checks

    @property
    def room(self) -> int:
        room = min(self.credit, _MOST_UNSETTLED - len(self.unsettled)) - self.coming
        if room <= 0 or self._starved:
            return 0
        if self._backlogged() or not (window := self._window()):  # H9: only sent checks count
            self._starved = True
            self.connection.starved[self] = None
            return 0
        return 0 if self._held_back() else min(room, window)

    def _window(self) -> int:
        """Return how many checks the session's window allows."""
        if engine.session_outgoing_bytes(self.session):
            engine.transport_pending(self.connection.transport)  # it makes its frames
        return steps.window(self.session)

    def send(self, due: Due, octets: bytes) -> None:
        delivery = steps.outgoing_delivery(self.pointer, b"check %d" % next(_tags))
        engine.link_send(self.pointer, octets, len(octets))
        engine.link_advance(self.pointer)
        self.credit -= 1
        self.unsettled[delivery] = due
        output = self.connection.output
        output.handed += len(octets)
        output.hold(delivery, len(octets))
        if len(self.unsettled) >= _MOST_UNSETTLED:
            self._release_earlier()
            self._watch()
        self.connection.mark()

    def _release_earlier(self) -> None:
        """Release all but the last of several unanswered checks of a transaction: one that is never answered, with a
        thousand checks, takes the room of one (H11).
        """
        last = {due.txn_id: delivery for delivery, due in self.unsettled.items()}
        for delivery, due in list(self.unsettled.items()):
            if last[due.txn_id] != delivery and delivery not in self._deciding:
                self._settle_undecided(delivery)

    def _settle_undecided(self, delivery: engine.Pointer) -> None:
        """Settle a check that has no deciding answer."""
        self._checks.unanswered += 1
        self._settle(delivery, engine.RELEASED)

    def _watch(self) -> None:
        """Start the timer that checks for answers, if the link is full with checks of as many transactions."""
        if self._watched or len(self.unsettled) < _MOST_UNSETTLED:
            return
        self._watched = self._silent = True
        service = self.connection.service
        service.loop.call_later(service.registry.check_terms.interval_ms / 1000, self._release_later)

    def _release_later(self) -> None:
        """Release the later half of the checks, if none was answered: the checker may be working on the others
        (H11).
        """
        self._watched = False
        if not self.open:
            return
        if self._silent and len(self.unsettled) >= _MOST_UNSETTLED:
            waiting = [delivery for delivery in self.unsettled if delivery not in self._deciding]
            for delivery in waiting[len(waiting) // 2 :]:
                self._settle_undecided(delivery)
        self._watch()

    def none_due(self) -> None:
        if self.open and self.draining and not self.coming and not self._starved:
            self.drained()

    def on_flow(self) -> None:
        if self.refuses_acquisition():
            return
        self._read_credit()
        if self.draining and self.room <= 0:
            self.none_due()
        self._has_room()
        self.connection.mark()

    def _has_room(self) -> None:
        self._checks.ready(self)

    def _go_on_sending(self) -> None:
        self._starved = False
        self._has_room()

    # -- outcomes

    def on_delivery(self, delivery: engine.Pointer) -> None:
        due = self.unsettled.get(delivery)
        if due is None:
            self.refuse_transfer()
            return
        large = self._channels.largest
        if large and not self._room_for_state(delivery, large + engine.octets_of_values(delivery)):
            return
        if delivery in self._deciding:
            return  # its first outcome counts
        state = engine.delivery_remote_state(delivery)
        if state == engine.TRANSACTIONAL:
            text = "a check is not retired in a transaction: its outcome decides another one at once"
            self.refuse(Refusal(Condition.NOT_ALLOWED, text))
        elif state in _DECISIONS:
            self._silent = False
            self._deciding.add(delivery)
            self._checks.decide(due, _DECISIONS[state], partial(self._decided, delivery, due, state))
        elif state in _UNKNOWN or engine.delivery_settled(delivery):
            self._silent = False
            self._settle_undecided(delivery)

    def _decided(self, delivery: engine.Pointer, due: Due, state: int, stands: bool) -> None:
        """Settle a decided check. ``stands``: whether the transaction has the checker's decision."""
        if self.open and self.unsettled.get(delivery) is due:
            self._settle(delivery, state if stands else engine.RELEASED)

    def _settle(self, delivery: engine.Pointer, state: int) -> None:
        del self.unsettled[delivery]
        self._deciding.discard(delivery)
        engine.delivery_update(delivery, state)
        engine.delivery_settle(delivery)
        self.connection.output.settled_one(delivery)
        self.connection.mark()
        self._has_room()

    def lost(self) -> None:
        """Release its checks: unanswered ones stay undecided; those not sent yet are sent to another checker (H9)."""
        super().lost()
        self._checks.lost(self)
        self._checks.unanswered += len(self.unsettled) - len(self._deciding)
        unsettled, self.unsettled = self.unsettled, {}
        self._deciding.clear()
        self.connection.output.settled(unsettled)
