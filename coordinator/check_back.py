"""Check-back sends undecided transactions, which their clients have left or kept for too long, to checkers, whose
outcomes decide them (rules H7 to H11).

Each instance queries the store for the producer groups that have a checker with credit here. One instance takes a due
transaction: it reads the first half, sends a copy to one of its checkers, and then counts the check in the store. Only
checks that were really sent count, even if the instance dies or loses its connection in between. Clients that commit
have priority over any number of due transactions: the queries pause then.
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
from store.loop import TimeShare
from store.questions import checks as questions
from store.questions import entries
from store.questions.checks import Wanted
from store.reasons import ADDRESS_REMOVED, CHECKED
from store.spool import LARGE
from store.turns import turn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.address.directory import Directory
    from coordinator.address.nodes import Address
    from coordinator.errors import Refusal
    from coordinator.instance import Instance
    from store.decisions import Decision, Decisions
    from store.questions.checks import Exhausted, Late


# A check is a copy of a message (rule H8), with delivery annotations of its own: of the first half, or of the first
# retired message where the transaction has no half.

HALF_COUNT, RETIRED_COUNT, DECLARED_AT = "x-opt-half-count", "x-opt-retired-count", "x-opt-declared-at"
#: annotation that marks the copy of a large message, which has no body
BODY_LEFT_OUT = "x-opt-body-left-out"
#: the last section before the body that a copy includes; the next is tried where decoding fails
_BEFORE_BODY = (APPLICATION_PROPERTIES, PROPERTIES, MESSAGE_ANNOTATIONS, HEADER)


def annotations_of(
    txn_id: bytes, checks: int, halves: int, retired: int, address: str, declared_ms: int
) -> list[bytes]:
    """Return the encoded pairs of delivery annotations. ``checks`` includes this one; ``declared_ms`` is Unix time."""
    return [
        encode_symbol(TXN_ID) + encode_binary(txn_id),
        encode_symbol(CHECK_COUNT) + encode_uint(checks),
        encode_symbol(HALF_COUNT) + encode_uint(halves),
        encode_symbol(RETIRED_COUNT) + encode_uint(retired),
        encode_symbol(ORIGINAL_ADDRESS) + encode_string(address),
        encode_symbol(DECLARED_AT) + encode_timestamp(declared_ms),
    ]


def copy_of(message: bytes, annotations: list[bytes], *, whole: bool) -> bytes:
    """Return the message with these delivery annotations in place of its own.

    ``whole``: False where ``message`` is the beginning of a large one; the copy then ends before the body, and an
    annotation marks it. A message that cannot be decoded becomes the body of the copy.
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


# Marks say which period an instance scans for transactions that are to be checked (rule H12).
#
# Each scan begins where the last one has left no due transaction. Index entries of decided transactions stay while a
# snapshot is held (a dump, a reconciliation): a scan from the oldest would pass all of them. Older transactions that
# are still undecided (they were due before this instance began, or another instance wrote them very late) are found by
# scanning backwards: every other scan covers one piece of the past.

_MICROS = 1_000_000
#: the shortest piece; and into how many parts the past already scanned is divided, of which a piece is one: about a
#: hundred pieces in all. Such a piece may be hours of a day that was busy long ago: after a slow scan the next pieces
#: are smaller, until a scan is quick
_SHORTEST = 60 * _MICROS
_FEWEST_PARTS, _MOST_PARTS = 8, 32
_SLOW_SECONDS, _QUICK_SECONDS = 0.010, 0.003
#: after a longer break the marks begin anew, so that no forward scan covers more
_LONGEST = 600 * _MICROS
#: no transaction is older
_BEGINNING = EPOCH_MS * 1000 - POSTGRES_EPOCH * _MICROS


class Marks:
    """Choose the periods to scan for one producer group. Times are microseconds since 2000."""

    __slots__ = ("_asked", "_back", "_backwards", "_low", "_parts", "complete")

    def __init__(self, now: int) -> None:
        self._asked = now
        self._parts = _FEWEST_PARTS
        self._begin(now)

    def _begin(self, now: int) -> None:
        #: a forward scan begins here
        self._low = now - _SHORTEST
        #: no due transaction is left between here and ``_low``; :data:`BEFORE`: none is left in all the past
        self._back = self._low
        #: whether the scan under way goes backwards
        self._backwards = False
        #: whether the last forward scan has left no due transaction, and all of the past was scanned
        self.complete = False

    def again(self) -> None:
        """Scan all of the past once more."""
        if self._back == BEFORE:
            self._back = self._low

    def wanted(self, most: int, now: int) -> Wanted:
        """Return the period to query now, for at most ``most`` transactions."""
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

    def scanned(self, low: int, *, full: bool, seconds: float) -> None:
        """Record a scan's answer. ``low``: due transactions may be left from there on; ``full``: as many were found as
        were queried; ``seconds``: how long the scan took.
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


C = TypeVar("C")


class Turns(Generic[C]):
    """Choose the checkers whose groups are queried next: some at a time, so that thousands delay nothing else.

    Checkers that have got more room are first. All others have one turn in each round.
    """

    __slots__ = ("_first", "_line", "left")

    def __init__(self) -> None:
        #: all checkers; the one whose turn was last is at the end
        self._line: OrderedDict[C, None] = OrderedDict()
        #: checkers to be taken first
        self._first: dict[C, None] = {}
        #: how many checkers of the line still have a turn in this round
        self.left = 0

    def add(self, checker: C) -> None:
        self._line[checker] = None

    def remove(self, checker: C) -> None:
        del self._line[checker]
        self.left = min(self.left, len(self._line))
        self._first.pop(checker, None)

    def first(self, checkers: Iterable[C]) -> None:
        """Put the checkers before all others."""
        self._first |= dict.fromkeys(checkers)

    def begin(self) -> None:
        """Begin a new round, which includes checkers left over from the last one."""
        self.left = len(self._line)

    @property
    def hurried(self) -> bool:
        """Whether any checkers are to be taken first."""
        return bool(self._first)

    def take(self, most: int) -> list[C]:
        """Take the next checkers, at most ``most``; half of them from the round, as long as it has any left."""
        taken = dict.fromkeys(islice(self._first, most // 2 if self.left else most))
        for checker in taken:
            del self._first[checker]
        while self.left and len(taken) < most:
            self.left -= 1
            taken[turn_of(self._line)] = None
        return list(taken)


log = structlog.get_logger(__name__)

#: a transaction that is to be checked
Due = questions.Due

#: seconds between scans, for transactions that clients leave at other instances; and the least between any two
_SCAN_SECONDS = 0.5
_SHORTEST_SECONDS = 0.02
#: seconds between scans of a group's whole past, for rows that another instance wrote very late
_WHOLE_SECONDS = 600.0
#: how many groups without a checker keep their marks
_MOST_MARKS = 1000
#: how many checkers one scan serves, and how many transactions of one group it takes
_CHECKERS_AT_ONCE = _AT_ONCE = 50
#: the time for taking transactions and reading their halves while clients commit: many due at once must not slow
#: clients down
_LOOKS = TimeShare(parts=64, most=1.0)


class Checker(Protocol):
    """The link on which a checker receives checks."""

    group: str
    #: how many checks for it are being read from the store
    coming: int
    #: the largest message that its peer takes, always more than a check's annotations; 0: any
    most_octets: int

    @property
    def number(self) -> int:
        """The number of its connection at this instance."""

    @property
    def room(self) -> int:
        """The number of further checks that the link accepts now."""

    def send(self, due: Due, octets: bytes) -> None:
        """Send a check; there is room."""

    def none_due(self) -> None:
        """Use up the credit of a drain: no more checks are due now."""


class Checks:
    """Finds due transactions and sends them to the checkers of this instance."""

    def __init__(self, instance: Instance, decisions: Decisions) -> None:
        self._instance = instance
        self._decisions = decisions
        #: by group; the checker that had a check last is at the end
        self._checkers: dict[str, OrderedDict[Checker, None]] = {}
        #: by group and number of the connection
        self._own: dict[tuple[str, int], dict[Checker, None]] = {}
        self._turns: Turns[Checker] = Turns()
        #: the marks of each group; and when to scan all of the past once more
        self._marks: dict[str, Marks] = {}
        self._all_again = 0.0
        self._scanning = False
        #: whether a scan was due while halves were being read
        self._again = False
        #: monotonic times of the next scan, of the next round of all checkers, and before which no scan begins
        self._next = self._all_at = float("inf")
        self._earliest = 0.0
        #: when the last scan began, the rows clients had committed then, and how many reads of its halves are under way
        self._began = 0.0
        self._rows = 0
        self._reading = 0
        #: sent checks that the store has not counted yet; and whether a count is under way
        self._uncounted: list[questions.Sent] = []
        self._counting = False
        #: for metrics: checks sent, answered with a decision, and not answered
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
        """Query the checker's group first, as the checker has got more room."""
        self._turns.first([checker])
        if not self._scanning:
            self._scan_in(0.0)

    # -- looking

    def _scan_in(self, seconds: float) -> None:
        now = time.monotonic()
        at = max(now + seconds, self._earliest)
        if at < self._next:
            self._next = at
            self._instance.loop.call_later(at - now, self._scan_if_due)

    def _scan_if_due(self) -> None:
        """Scan, unless this timer is outdated; halves that the last scan has found are read first."""
        now = time.monotonic()
        if self._scanning or now < self._next:
            return
        self._next = float("inf")
        if self._reading:
            self._again = True
        elif now < self._earliest:
            self._scan_in(0.0)
        else:
            self._scan()

    def _scan(self) -> None:
        self._again = False
        self._began, self._rows = time.monotonic(), self._instance.commit.rows
        if self._began >= self._all_at:
            self._all_at = float("inf")
            self._turns.begin()
        asked = [checker for checker in self._turns.take(_CHECKERS_AT_ONCE) if checker.room > 0]
        if not asked:
            self._scan_next(0.0)
            return
        self._scanning = True
        rooms: dict[str, int] = {}
        for checker in asked:
            rooms[checker.group] = min(rooms.get(checker.group, 0) + checker.room, _AT_ONCE)
        if self._began >= self._all_again:
            self._all_again = self._began + _WHOLE_SECONDS
            for marks in self._marks.values():
                marks.again()
        instance, now = self._instance, now_micros()
        wanted = {group: self._marks_of(group, now).wanted(most, now) for group, most in rooms.items()}
        questions.take(instance.queries, wanted, instance.instance_id, partial(self._loaded, rooms, asked))

    def _scan_next(self, pause: float) -> None:
        """Schedule the next scan: now for hurried checkers, after a pause for the round's rest, else later."""
        if self._turns.hurried:
            self._scan_in(0.0)
        elif self._turns.left:
            self._scan_in(pause)
        elif self._all_at < float("inf"):
            self._scan_in(max(0.0, self._all_at - time.monotonic()))

    def _marks_of(self, group: str, now: int) -> Marks:
        if group not in self._marks:
            if len(self._marks) - len(self._checkers) >= _MOST_MARKS:
                self._marks = {each: marks for each, marks in self._marks.items() if each in self._checkers}
            self._marks[group] = Marks(now)
        return self._marks[group]

    def _loaded(self, rooms: dict[str, int], asked: Iterable[Checker], answer: questions.Taken | StoreError) -> None:
        self._scanning = False
        if isinstance(answer, StoreError):
            self._all_at = time.monotonic() + _SCAN_SECONDS
            self._scan_in(_SCAN_SECONDS)
            return
        # schedule the next scan before anything is sent: a defect of a link must not end the scans
        dues: dict[str, list[Due]] = {group: [] for group in rooms}
        for due in answer.due:
            dues[due.group].append(due)
        full = {group for group, most in rooms.items() if len(dues[group]) == most}
        complete = True
        took = time.monotonic() - self._began
        for group, low in answer.lows.items():
            marks = self._marks[group]
            marks.scanned(low, full=group in full, seconds=took)
            if group in full:
                self._turns.first(islice(self._checkers.get(group, ()), _CHECKERS_AT_ONCE))
            else:
                complete = complete and marks.complete
        # between scans of the past, or for many checkers, other queries have their turn
        pause = min(took, _SCAN_SECONDS)
        wait = _SCAN_SECONDS if complete else pause
        if answer.next_ms is not None:
            wait = min(wait, max(answer.next_ms / 1000, _SHORTEST_SECONDS))
        self._all_at = min(self._all_at, time.monotonic() + wait)
        self._scan_next(pause)
        for group, of_group in dues.items():
            self._load(group, of_group)
        for checker in asked:
            if checker in self._checkers.get(checker.group, ()):
                self._report_drained(checker)

    def _report_drained(self, checker: Checker) -> None:
        """Report to the checker that no checks are left, if its group is scanned completely or it has no room."""
        marks = self._marks.get(checker.group)
        if marks is None or marks.complete or checker.room <= 0:
            checker.none_due()

    def _all_read(self) -> None:
        """Schedule the next scan once all halves are read, with a pause if clients have committed meanwhile."""
        if self._instance.commit.rows > self._rows:
            self._earliest = _LOOKS.after(self._began)
        if self._again:
            self._scan_in(0.0)

    # -- sending

    def _choose(self, due: Due) -> Checker | None:
        """Return a checker with room: on the connection that declared it, else the longest waiting (H8)."""
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
        """Read the first halves, each for a checker with room, which reserves that room until the half is read."""
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
                if octets is None:  # the half is large, or one of the group cannot be read
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
        """Send a check whose half is read; a defect of this checker's link does not stop the other checks."""
        checker.coming -= 1
        try:
            self._send(due, octets)
            self._report_drained(checker)
        except Exception:  # noqa: BLE001 - whatever it is, it is the checker's
            self._instance.loop.contain(checker)

    def _send(self, due: Due, octets: bytes | None) -> None:
        """Send a check. ``octets``: None if the store has lost the half, or cannot read it: the check is sent without
        (H11).
        """
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
        for less in (octets, b""):  # without the body, then without any part of the message
            if not 0 < checker.most_octets < len(copy):
                break
            copy = copy_of(less, told, whole=False)
        checker.send(due, copy)
        self.sent += 1
        if self._instance.traces is not None:
            self._instance.traces.checked(due, octets)
        self._uncounted.append(questions.Sent(due.txn_id, due.checks))
        log.debug("check sent", txn=due.txn_id.hex(), group=due.group, checks=due.checks)

    def _give_back(self, due: Due) -> None:
        """Release a taken transaction: no checker has room any more, so that the check does not count (H9)."""
        questions.give_back(self._instance.queries, due)

    def _count(self) -> None:
        """Count the sent checks in the store (H9)."""
        if self._counting or not self._uncounted:
            return
        self._counting = True
        told, self._uncounted = self._uncounted, []

        def still(left: list[questions.Sent] | StoreError) -> None:
            self._counting = False
            left = told if isinstance(left, StoreError) else left
            self._uncounted += left
            if left:
                self._instance.loop.call_later(_SCAN_SECONDS, self._count)
            else:
                self._count()

        questions.count(self._instance.queries, told, still)

    # -- outcomes

    def decide(self, due: Due, decision: str, decided: Callable[[bool], None]) -> None:
        """Decide a transaction as its checker says: ``commit`` or ``rollback``. ``decided`` is called with whether this
        is durably the decision: the transaction may have another one, or the store may be unavailable.
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
            if self._instance.traces is not None:
                self._instance.traces.answered(due.txn_id, decision if stands else "too-late")
            decided(stands)

        self._decisions.decide(due.txn_id, decision, CHECKED, answered)


_EXHAUSTED_SECONDS = 1.0
_EXHAUSTED_AT_ONCE = 20


class Exhaustion:
    """Rolls back transactions that no checker has answered after the last check, and copies their messages to an
    address of their own (rule H10).

    Every instance searches for them, with or without checkers. One SQL transaction decides and copies, so that a crash
    leaves either all or nothing of it.
    """

    def __init__(self, instance: Instance, directory: Directory) -> None:
        self._instance = instance
        self._directory = directory
        #: exhausted transactions that were found, without the one under way
        self._found: list[Exhausted] = []
        #: seconds to wait after the last of them
        self._wait = _EXHAUSTED_SECONDS
        #: where the search begins: rows of earlier decided ones stay in the index while a snapshot is held (H12)
        self._low = BEFORE
        self._whole_at = time.monotonic() + _WHOLE_SECONDS

    def search(self) -> None:
        instance = self._instance
        if instance.disk_low:  # copies take room
            instance.loop.call_later(_EXHAUSTED_SECONDS, self.search)
        else:
            now = time.monotonic()
            if now >= self._whole_at:
                self._low, self._whole_at = BEFORE, now + _WHOLE_SECONDS
            questions.find_exhausted(instance.queries, _EXHAUSTED_AT_ONCE, self._low, self._searched)

    def _searched(self, answer: Late | StoreError) -> None:
        if not isinstance(answer, StoreError):
            self._low = answer.low
        if isinstance(answer, StoreError) or not answer.found:
            self._instance.loop.call_later(_EXHAUSTED_SECONDS, self.search)
            return
        self._found = answer.found
        self._wait = 0.0 if len(answer.found) == _EXHAUSTED_AT_ONCE else _EXHAUSTED_SECONDS
        self._directory.resolve(UNANSWERED, self._resolved, origin="dead-letter")

    def _resolved(self, address: Address | Refusal) -> None:
        if isinstance(address, Exception):
            log.error("no address for what no checker has answered", error=str(address))
            self._found = []
            self._instance.loop.call_later(_EXHAUSTED_SECONDS, self.search)
        else:
            self._next(address)

    def _next(self, address: Address) -> None:
        """Roll back the next found transaction; one at a time, so that a failure stops no other (H11)."""
        if not self._found:
            self._instance.loop.call_later(self._wait, self.search)
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
    """Return the annotations of a copy: its original address, and the transaction that posted it."""
    return encode_map(
        [
            encode_symbol(ORIGINAL_ADDRESS) + encode_string(address),
            encode_symbol(PRODUCER_GROUP) + encode_string(exhausted.group),
            encode_symbol(TXN_ID) + encode_binary(exhausted.txn_id),
            encode_symbol(CHECK_COUNT) + encode_uint(exhausted.checks),
        ]
    )
