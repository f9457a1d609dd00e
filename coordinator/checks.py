"""Check-back: undecided transactions whose clients have left them, or kept them for too long, are shown to checkers,
which say what became of them (rules H7 to H11).

Each instance looks for the producer groups that have a checker with credit here. A transaction that is due is taken by
one instance: it reads the first half, sends a copy to one of its checkers, and then counts the check in the store: only
what was really sent counts, also where the instance dies or loses its connection in between. However many are due at
once, clients that commit go first: looks pause then.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import structlog

from coordinator.check_marks import Marks
from coordinator.check_turns import Turns
from coordinator.codec import checks as copies
from coordinator.group.entries import now_micros
from store.errors import AddressGone, StoreError
from store.questions import checks as questions
from store.questions import entries
from store.reasons import ADDRESS_REMOVED, CHECKED
from store.spool import LARGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.instance import Instance
    from store.decisions import Decision, Decisions

log = structlog.get_logger(__name__)

#: a transaction that is to be checked
Due = questions.Due

#: between looks for transactions that clients leave at other instances; and the shortest time between looks
_LOOK_SECONDS = 0.5
_SHORTEST_SECONDS = 0.02
#: between looks at the whole of a group, for what another instance was very late to write
_WHOLE_SECONDS = 600.0
#: groups without a checker of which is known where to look
_MOST_MARKS = 1000
#: checkers that are looked for at once, and transactions of one group that are taken then
_CHECKERS_AT_ONCE = _AT_ONCE = 50
#: while clients commit, to take some and read their halves has one part in so many of the time: a crowd that is due at
#: once must not slow them down. And the longest pause, where the store was slow
_PARTS = 64
_LONGEST_PAUSE_SECONDS = 1.0


class Checker(Protocol):
    """A link of a checker."""

    group: str
    #: checks that are on their way to it, read from the store now
    coming: int
    #: of a message that its peer takes, and what is told of a transaction has fewer; 0: any
    most_octets: int

    @property
    def number(self) -> int:
        """Of its connection, at this instance."""

    @property
    def room(self) -> int:
        """How many more checks it takes now."""

    def send(self, due: Due, octets: bytes) -> None:
        """Send a check; there is room."""

    def looked(self) -> None:
        """There is nothing more for it now: a drain uses up its credit."""


class Checks:
    """The checkers of this instance."""

    def __init__(self, instance: Instance, decisions: Decisions) -> None:
        self._instance = instance
        self._decisions = decisions
        #: by group; the one that had a check last comes last
        self._checkers: dict[str, OrderedDict[Checker, None]] = {}
        #: by group and connection
        self._own: dict[tuple[str, int], dict[Checker, None]] = {}
        self._turns: Turns[Checker] = Turns()
        #: where to look, by group; and when to look at all of the past once more
        self._marks: dict[str, Marks] = {}
        self._all_again = 0.0
        self._asking = False
        #: it was time to look while halves were being read
        self._again = False
        #: by the monotonic clock, when to look next, when to look for all checkers next, and not before this
        self._next = self._all_at = float("inf")
        self._earliest = 0.0
        #: when the last look began, what clients had committed then, and halves of it that are being read
        self._began = 0.0
        self._rows = 0
        self._reading = 0
        #: checks that were sent and are not counted in the store yet; and whether it is being told some
        self._uncounted: list[questions.Sent] = []
        self._counting = False
        #: checks that were sent, those of them that were answered with a decision, and those that were not
        self.sent = 0
        self.answered = 0
        self.unanswered = 0

    def attached(self, checker: Checker) -> None:
        self._checkers.setdefault(checker.group, OrderedDict())[checker] = None
        self._own.setdefault((checker.group, checker.number), {})[checker] = None
        self._turns.add(checker)

    def lost(self, checker: Checker) -> None:
        self._turns.remove(checker)
        checkers, own = self._checkers[checker.group], self._own[checker.group, checker.number]
        del checkers[checker], own[checker]
        if not checkers:
            del self._checkers[checker.group]
        if not own:
            del self._own[checker.group, checker.number]

    def has(self, connection: int, group: str) -> bool:
        """Whether the connection of this number has a checker for the group attached here (H20)."""
        return (group, connection) in self._own

    def ready(self, checker: Checker) -> None:
        """It has more room."""
        self._turns.first([checker])
        if not self._asking:
            self._look_in(0.0)

    # -- looking

    def _look_in(self, seconds: float) -> None:
        now = time.monotonic()
        at = max(now + seconds, self._earliest)
        if at < self._next:
            self._next = at
            self._instance.loop.call_later(at - now, self._look_if_due)

    def _look_if_due(self) -> None:
        """Only the last call that was scheduled counts; what the last look has found is read first."""
        now = time.monotonic()
        if self._asking or now < self._next:
            return
        self._next = float("inf")
        if self._reading:
            self._again = True
        elif now < self._earliest:
            self._look_in(0.0)
        else:
            self._look()

    def _look(self) -> None:
        self._again = False
        self._began, self._rows = time.monotonic(), self._instance.commit.rows
        if self._began >= self._all_at:
            self._all_at = float("inf")
            self._turns.begin()
        asked = [checker for checker in self._turns.take(_CHECKERS_AT_ONCE) if checker.room > 0]
        if not asked:
            self._look_on(0.0)
            return
        self._asking = True
        rooms: dict[str, int] = {}
        for checker in asked:
            rooms[checker.group] = min(rooms.get(checker.group, 0) + checker.room, _AT_ONCE)
        if self._began >= self._all_again:
            self._all_again = self._began + _WHOLE_SECONDS
            for marks in self._marks.values():
                marks.again()
        instance, now = self._instance, now_micros()
        wanted = {group: self._marks_of(group, now).wanted(most, now) for group, most in rooms.items()}
        questions.take(instance.queries, wanted, instance.instance_id, partial(self._taken, rooms, asked))

    def _look_on(self, pause: float) -> None:
        """For those that go first, now; for the others of the round after a pause; for all again once it is time."""
        if self._turns.hurried:
            self._look_in(0.0)
        elif self._turns.left:
            self._look_in(pause)
        elif self._all_at < float("inf"):
            self._look_in(max(0.0, self._all_at - time.monotonic()))

    def _marks_of(self, group: str, now: int) -> Marks:
        if group not in self._marks:
            if len(self._marks) - len(self._checkers) >= _MOST_MARKS:
                self._marks = {each: marks for each, marks in self._marks.items() if each in self._checkers}
            self._marks[group] = Marks(now)
        return self._marks[group]

    def _taken(self, rooms: dict[str, int], asked: Iterable[Checker], answer: questions.Taken | StoreError) -> None:
        self._asking = False
        if isinstance(answer, StoreError):
            self._all_at = time.monotonic() + _LOOK_SECONDS
            self._look_in(_LOOK_SECONDS)
            return
        # before anything is sent: a defect of a link must not end the looking
        dues: dict[str, list[Due]] = {group: [] for group in rooms}
        for due in answer.due:
            dues[due.group].append(due)
        full = {group for group, most in rooms.items() if len(dues[group]) == most}
        complete = True
        took = time.monotonic() - self._began
        for group, low in answer.lows.items():
            marks = self._marks[group]
            marks.looked(low, full=group in full, seconds=took)
            if group in full:
                self._turns.first(islice(self._checkers.get(group, ()), _CHECKERS_AT_ONCE))
            else:
                complete = complete and marks.complete
        # while it looks at the past, or for many checkers, other questions have their turn
        pause = min(took, _LOOK_SECONDS)
        wait = _LOOK_SECONDS if complete else pause
        if answer.next_ms is not None:
            wait = min(wait, max(answer.next_ms / 1000, _SHORTEST_SECONDS))
        self._all_at = min(self._all_at, time.monotonic() + wait)
        self._look_on(pause)
        for group, of_group in dues.items():
            self._load(group, of_group)
        for checker in asked:
            if checker in self._checkers.get(checker.group, ()):
                self._looked(checker)

    def _looked(self, checker: Checker) -> None:
        """There is nothing more for it, or no room; unless some may be left, or some of the past is to be looked at."""
        marks = self._marks.get(checker.group)
        if marks is None or marks.complete or checker.room <= 0:
            checker.looked()

    def _all_read(self) -> None:
        """The halves that the last look has found: let those go on who have committed meanwhile."""
        now = time.monotonic()
        if self._instance.commit.rows > self._rows:
            self._earliest = now + min((_PARTS - 1) * (now - self._began), _LONGEST_PAUSE_SECONDS)
        if self._again:
            self._look_in(0.0)

    # -- sending

    def _choose(self, due: Due) -> Checker | None:
        """Of those with room, the one on the connection that declared it; else the one that has waited longest (H8)."""
        for checker in self._own.get((due.group, due.connection), ()):
            if checker.room > 0:
                return checker
        checkers = self._checkers.get(due.group, OrderedDict())
        for _ in range(len(checkers)):
            checker = next(iter(checkers))
            if checker.room > 0:
                return checker
            checkers.move_to_end(checker)
        return None

    def _load(self, group: str, dues: list[Due]) -> None:
        """Read the first halves, each for a checker that has room; its check counts for this one alone until then."""
        chosen: list[tuple[Due, Checker]] = []
        for due in dues:
            checker = self._choose(due)
            if checker is None:
                self._give_back(due)
                continue
            checker.coming += 1
            chosen.append((due, checker))
        if not chosen:
            return
        self._reading += 1

        def read(found: dict[int, bytes | None] | StoreError) -> None:
            self._reading -= 1
            if not self._reading:
                self._all_read()
            for due, checker in chosen:
                octets = None if isinstance(found, StoreError) else found.get(due.half_id, b"")
                if octets is None:  # it is not small, or one of them cannot be read
                    entries.piece(queries, due.half_id, 0, LARGE + 1, partial(self._read_alone, due, checker))
                else:
                    self._read(due, checker, octets or None)
            self._count()

        queries = self._instance.queries
        questions.first_halves(queries, group, [due.half_id for due, _ in chosen], read)

    def _read_alone(self, due: Due, checker: Checker, octets: bytes | None) -> None:
        self._read(due, checker, octets)
        self._count()

    def _read(self, due: Due, checker: Checker, octets: bytes | None) -> None:
        """A defect of one checker's link keeps no check from the others."""
        checker.coming -= 1
        try:
            self._send(due, octets)
            self._looked(checker)
        except Exception:  # noqa: BLE001 - whatever it is, it is the checker's
            self._instance.loop.contain(checker)

    def _send(self, due: Due, octets: bytes | None) -> None:
        """``octets``: None if the store has lost the half, or cannot read it: a checker is asked all the same (H11)."""
        checker = self._choose(due)
        if checker is None:
            self._give_back(due)
            return
        if octets is None:
            log.error("the first half of a checked transaction cannot be read", txn=due.txn_id.hex(), half=due.half_id)
        octets = octets or b""
        self._checkers[due.group].move_to_end(checker)
        told = copies.told(due.txn_id, due.checks, due.halves, due.retired, due.address, due.declared_ms)
        copy = copies.copy(octets, told, whole=0 < len(octets) <= LARGE)
        for less in (octets, b""):  # without its body, then without all that its producer wrote
            if not 0 < checker.most_octets < len(copy):
                break
            copy = copies.copy(less, told, whole=False)
        checker.send(due, copy)
        self.sent += 1
        self._uncounted.append(questions.Sent(due.txn_id, due.checks))
        log.debug("check sent", txn=due.txn_id.hex(), group=due.group, checks=due.checks)

    def _give_back(self, due: Due) -> None:
        """No checker has room any more: it was not sent and does not count (H9)."""
        questions.give_back(self._instance.queries, due)

    def _count(self) -> None:
        """Tell the store what was sent (H9)."""
        if self._counting or not self._uncounted:
            return
        self._counting = True
        told, self._uncounted = self._uncounted, []

        def still(left: list[questions.Sent] | StoreError) -> None:
            self._counting = False
            left = told if isinstance(left, StoreError) else left
            self._uncounted += left
            if left:
                self._instance.loop.call_later(_LOOK_SECONDS, self._count)
            else:
                self._count()

        questions.count(self._instance.queries, told, still)

    # -- outcomes

    def decide(self, due: Due, decision: str, decided: Callable[[bool], None]) -> None:
        """A checker knows what became of the transaction: ``commit`` or ``rollback``. ``decided`` is called with
        whether this is, durably, its decision: it may be decided otherwise, or the store cannot take it now.
        """
        self.answered += 1

        def answered(found: Decision | StoreError | None) -> None:
            if isinstance(found, AddressGone):  # it can never be committed
                log.warning("a checked transaction posts to a removed address", txn=due.txn_id.hex())
                self._decisions.decide(due.txn_id, "rollback", ADDRESS_REMOVED, answered)
                return
            stands = not isinstance(found, StoreError | None) and found.decision == decision
            if not stands:
                log.info("a checker's decision does not stand", txn=due.txn_id.hex(), wanted=decision, found=str(found))
            decided(stands)

        self._decisions.decide(due.txn_id, decision, CHECKED, answered)
