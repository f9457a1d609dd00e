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
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from coordinator.address.addresses import UNANSWERED
from coordinator.address.dead_letters import CHECK_COUNT, ORIGINAL_ADDRESS, PRODUCER_GROUP, TXN_ID
from coordinator.group.entries import POSTGRES_EPOCH, now_micros
from store.codec.encoding import (
    DecodeError,
    encode_binary,
    encode_boolean,
    encode_map,
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_uint,
)
from store.codec.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Section,
    data_front,
    sections,
)
from store.commit.terms import BEFORE, INFINITY
from store.errors import AddressGone, StoreError
from store.ids import EPOCH_MS
from store.questions import checks as questions
from store.questions import entries
from store.questions.checks import Wanted
from store.reasons import ADDRESS_REMOVED, CHECKED
from store.spool import LARGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.address.directory import Directory
    from coordinator.address.nodes import Address
    from coordinator.errors import Refusal
    from coordinator.instance import Instance
    from store.decisions import Decision, Decisions
    from store.questions.checks import Exhausted, Late


# The copy that is sent to a checker (rule H8): the first half, or of a transaction that has only retired the first
# message of these, with delivery annotations of its own.

HALF_COUNT, RETIRED_COUNT, DECLARED_AT = "x-opt-half-count", "x-opt-retired-count", "x-opt-declared-at"
#: of a large message: its body is not part of the copy
BODY_LEFT_OUT = "x-opt-body-left-out"
#: the last section before the body that a copy has, where not all of them can be read
_BEFORE_BODY = (APPLICATION_PROPERTIES, PROPERTIES, MESSAGE_ANNOTATIONS, HEADER)


def annotations_of(
    txn_id: bytes, checks: int, halves: int, retired: int, address: str, declared_ms: int
) -> list[bytes]:
    """The pairs of the delivery annotations; ``checks`` counts this one, ``declared_ms`` is Unix time."""
    return [
        encode_symbol(TXN_ID) + encode_binary(txn_id),
        encode_symbol(CHECK_COUNT) + encode_uint(checks),
        encode_symbol(HALF_COUNT) + encode_uint(halves),
        encode_symbol(RETIRED_COUNT) + encode_uint(retired),
        encode_symbol(ORIGINAL_ADDRESS) + encode_string(address),
        encode_symbol(DECLARED_AT) + encode_timestamp(declared_ms),
    ]


def copy_of(message: bytes, annotations: list[bytes], *, whole: bool) -> bytes:
    """The message with these delivery annotations in place of its own.

    ``whole``: False where ``message`` is the beginning of a large one; the copy ends before its body then, and says so.
    A message that cannot be read is the body of the copy.
    """
    if whole:
        with suppress(DecodeError):
            return _with_annotations(message, sections(message), annotations)
        return _annotations_section(annotations) + data_front(len(message)) + message
    annotations = [*annotations, encode_symbol(BODY_LEFT_OUT) + encode_boolean(True)]
    for last in _BEFORE_BODY:
        with suppress(DecodeError):
            return _with_annotations(message, sections(message, last), annotations) + data_front(0)
    return _annotations_section(annotations) + data_front(0)


def _annotations_section(annotations: list[bytes]) -> bytes:
    return b"\x00\x53\x71" + encode_map(annotations)


def _with_annotations(message: bytes, found: list[Section], annotations: list[bytes]) -> bytes:
    header = b"".join(message[start:end] for code, start, _, end in found if code == HEADER)
    rest = [(start, end) for code, start, _, end in found if code > DELIVERY_ANNOTATIONS]
    return header + _annotations_section(annotations) + (message[rest[0][0] : rest[-1][1]] if rest else b"")


# Where in time an instance looks for transactions that are to be checked (rule H12).
#
# Each look begins where the last has left none that are due. Index entries of decided transactions stay while a
# snapshot is held (a dump, a reconciliation): a look that began with the oldest would walk through all of them. Older
# ones that are undecided still, as they were due before this instance looked, or as another instance wrote them very
# late, are looked for backwards, one piece of time in every other look.

_MICROS = 1_000_000
#: the shortest piece, and each as a part of the past behind it that was looked at: about a hundred pieces in all. Such
#: a part may be a few hours of a day that was busy long ago: after a look that was slow, the next are smaller,
#: until one is quick
_SHORTEST = 60 * _MICROS
_FEWEST_PARTS, _MOST_PARTS = 8, 32
_SLOW_SECONDS, _QUICK_SECONDS = 0.010, 0.003
#: one that has not looked for longer begins anew, so that it never looks at so much in one piece
_LONGEST = 600 * _MICROS
#: before that, there is no transaction
_BEGINNING = EPOCH_MS * 1000 - POSTGRES_EPOCH * _MICROS


class Marks:
    """Of one producer group. Times are microseconds since 2000."""

    __slots__ = ("_asked", "_back", "_backwards", "_low", "_parts", "complete")

    def __init__(self, now: int) -> None:
        self._asked = now
        self._parts = _FEWEST_PARTS
        self._begin(now)

    def _begin(self, now: int) -> None:
        #: forwards, a look begins here
        self._low = now - _SHORTEST
        #: from here on to where it begins forwards, none is left; :data:`BEFORE`: none is left before either
        self._back = self._low
        #: the look under way
        self._backwards = False
        #: the last look was forwards and has left none, and all of the past was looked at before
        self.complete = False

    def again(self) -> None:
        """Look at all of the past once more."""
        if self._back == BEFORE:
            self._back = self._low

    def wanted(self, most: int, now: int) -> Wanted:
        """What to ask for now, at most so many transactions."""
        if now - self._asked > _LONGEST:
            self._begin(now)
        self._asked = now
        if self._backwards:
            return Wanted(most, self._from, self._back)
        return Wanted(most, self._low, INFINITY)

    @property
    def _from(self) -> int:
        begin = self._back - max((self._low - self._back) // self._parts, _SHORTEST)
        return begin if begin > _BEGINNING else BEFORE

    def looked(self, low: int, *, full: bool, seconds: float) -> None:
        """The answer. ``low``: from there on some may be left; ``full``: as many came as were asked for; ``seconds``:
        how long the look took.
        """
        self.complete = not (self._backwards or full) and self._back == BEFORE
        if not self._backwards:
            self._low = low
            self._back = min(self._back, low)
        elif not full:
            self._back = self._from
            if seconds > _SLOW_SECONDS:
                self._parts = min(2 * self._parts, _MOST_PARTS)
            elif seconds < _QUICK_SECONDS:
                self._parts = max(self._parts // 2, _FEWEST_PARTS)
        self._backwards = not self._backwards and self._back > BEFORE


# Which checkers an instance looks for next: some at a time, so that thousands of them keep nothing else waiting.
#
# Those that have more room go first. All others have their turn in each round, one after the other.

C = TypeVar("C")


class Turns(Generic[C]):
    __slots__ = ("_first", "_line", "left")

    def __init__(self) -> None:
        #: the one whose turn was last comes last
        self._line: OrderedDict[C, None] = OrderedDict()
        #: those that go first
        self._first: dict[C, None] = {}
        #: of the line, how many the round has left
        self.left = 0

    def add(self, checker: C) -> None:
        self._line[checker] = None

    def remove(self, checker: C) -> None:
        del self._line[checker]
        self.left = min(self.left, len(self._line))
        self._first.pop(checker, None)

    def first(self, checkers: Iterable[C]) -> None:
        """They go first."""
        self._first |= dict.fromkeys(checkers)

    def begin(self) -> None:
        """A new round; what was left of the last one is in it."""
        self.left = len(self._line)

    @property
    def hurried(self) -> bool:
        """Whether any go first."""
        return bool(self._first)

    def take(self, most: int) -> list[C]:
        """The next checkers, at most so many; half of them are of the round, as long as it has any left."""
        taken = dict.fromkeys(islice(self._first, most // 2 if self.left else most))
        for checker in taken:
            del self._first[checker]
        while self.left and len(taken) < most:
            self.left -= 1
            checker = next(iter(self._line))
            self._line.move_to_end(checker)
            taken[checker] = None
        return list(taken)


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
        told = annotations_of(due.txn_id, due.checks, due.halves, due.retired, due.address, due.declared_ms)
        copy = copy_of(octets, told, whole=0 < len(octets) <= LARGE)
        for less in (octets, b""):  # without its body, then without all that its producer wrote
            if not 0 < checker.most_octets < len(copy):
                break
            copy = copy_of(less, told, whole=False)
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


# What no checker has answered, however often it was asked: rolled back, and its messages kept aside (rule H10).
#
# Every instance looks, with or without checkers. One SQL transaction decides and copies, so that a crash leaves either
# all or nothing of it.

_EXHAUSTED_SECONDS = 1.0
_EXHAUSTED_AT_ONCE = 20
#: between looks at all of the past, for what was written more than a minute late


class Exhaustion:
    def __init__(self, instance: Instance, directory: Directory) -> None:
        self._instance = instance
        self._directory = directory
        #: those that were found, without the one that is under way
        self._found: list[Exhausted] = []
        #: how long to wait after the last of them
        self._wait = _EXHAUSTED_SECONDS
        #: where to look: rows of those decided before stay there while a snapshot is held (H12)
        self._low = BEFORE
        self._whole_at = time.monotonic() + _WHOLE_SECONDS

    def look(self) -> None:
        instance = self._instance
        if instance.disk_low:  # copies take room
            instance.loop.call_later(_EXHAUSTED_SECONDS, self.look)
        else:
            now = time.monotonic()
            if now >= self._whole_at:
                self._low, self._whole_at = BEFORE, now + _WHOLE_SECONDS
            questions.find_exhausted(instance.queries, _EXHAUSTED_AT_ONCE, self._low, self._looked)

    def _looked(self, answer: Late | StoreError) -> None:
        if not isinstance(answer, StoreError):
            self._low = answer.low
        if isinstance(answer, StoreError) or not answer.found:
            self._instance.loop.call_later(_EXHAUSTED_SECONDS, self.look)
            return
        self._found = answer.found
        self._wait = 0.0 if len(answer.found) == _EXHAUSTED_AT_ONCE else _EXHAUSTED_SECONDS
        self._directory.resolve(UNANSWERED, self._resolved, origin="dead-letter")

    def _resolved(self, address: Address | Refusal) -> None:
        if isinstance(address, Exception):
            log.error("no address for what no checker has answered", error=str(address))
            self._found = []
            self._instance.loop.call_later(_EXHAUSTED_SECONDS, self.look)
        else:
            self._next(address)

    def _next(self, address: Address) -> None:
        """One after the other, so that one that fails stops no other (H11)."""
        if not self._found:
            self._instance.loop.call_later(self._wait, self.look)
            return
        exhausted = self._found.pop(0)
        instance = self._instance
        ids = [instance.ids.next() for _ in range(sum(exhausted.halves.values()))]
        annotations = {each: _story(exhausted, name) for each, name in exhausted.names.items()}

        def done(answer: bool | StoreError) -> None:
            txn = exhausted.txn_id.hex()
            if isinstance(answer, StoreError):
                log.error("what no checker has answered cannot be set aside", txn=txn, error=str(answer))
                questions.postpone(instance.queries, exhausted.txn_id)
            elif answer:
                log.warning("rolled back: no checker has answered", txn=txn, group=exhausted.group, halves=len(ids))
            else:  # perhaps the address was removed
                self._wait = _EXHAUSTED_SECONDS
                self._directory.changed(UNANSWERED)
            self._next(address)

        questions.exhaust(instance.queries, exhausted.txn_id, ids, address.id, annotations, instance.instance_id, done)


def _story(exhausted: Exhausted, address: str) -> bytes:
    """The annotations that say what a copy was posted in, and where to."""
    return encode_map(
        [
            encode_symbol(ORIGINAL_ADDRESS) + encode_string(address),
            encode_symbol(PRODUCER_GROUP) + encode_string(exhausted.group),
            encode_symbol(TXN_ID) + encode_binary(exhausted.txn_id),
            encode_symbol(CHECK_COUNT) + encode_uint(exhausted.checks),
        ]
    )
