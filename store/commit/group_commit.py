"""Commit in groups: all units that wait at the end of a turn are sent to PostgreSQL as one statement.

A *unit* is committed or refused alone: one transaction's decision, one plain post, the settlements of one link. Units
write themselves into a :class:`Batch` of parallel columns. One batch is under way at a time; meanwhile units are added
to the next. The statement is one SQL transaction, so one flush to disk serves many units. Each unit's ``durable()`` is
called after the flush, or its ``refused(error)`` when the store will never accept it.

The statement is composed of the parts for which the batch has rows. It is prepared once per combination; when there are
many, all are deallocated.

Where more units wait than a batch may hold, connections take turns, so that no connection waits for the whole backlog
of another.

Large messages (:data:`store.spool.LARGE`) are not in the statement, which would be in memory as a whole, here and in
PostgreSQL. A batch that has some is an SQL transaction of several statements: each large message is written piece by
piece into a temporary table, and from there, in PostgreSQL, to its half; then comes the batch statement.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
from psycopg import pq

from store import arrays
from store.commit.batch import MAKE_PIECES, Batch, Step, Unit
from store.commit.parameters import parts_of, tags
from store.commit.parts import LOCKED, POSTED, SETUP, statement
from store.commit.rescue import MOST_ATTEMPTS, Rescue, owners_of
from store.errors import (
    Contended,
    Fenced,
    Locked,
    NoPartition,
    PostedBefore,
    StoreError,
    StoreFault,
    StoreInTrouble,
    StoreUnavailable,
)
from store.figures import BATCH_ROWS, COMMIT_SECONDS, Histogram
from store.libpq import NO_BACKEND, Connection, LostBackend
from store.loop import Loop
from store.tables import SCHEMA
from store.turns import Turns

if TYPE_CHECKING:
    from store.libpq import Answer


# How a batch is sent: as one statement, prepared once for each combination of parts; or, where it has large messages,
# as an SQL transaction of several.

#: combinations of parts that are kept prepared
MOST_STATEMENTS = 200


class Statements:
    """Prepares and runs the batch statements on one connection; keeps the remaining steps of the batch under way."""

    def __init__(self, connection: Connection, instance_id: int) -> None:
        self._connection = connection
        self._instance_id = instance_id
        self._known: dict[tuple[str, ...], tuple[bytes, str]] = {}
        #: statements composed so far: it makes their names unique
        self._composed = 0
        #: the remaining steps of a batch of several statements
        self._steps: Iterator[Step] = iter(())

    def __len__(self) -> int:
        return len(self._known)

    def execute(self, batch: Batch, parts: tuple[str, ...], parameters: list[bytes], answered: Answer) -> None:
        """Run the batch as its statement of ``parts`` with ``parameters``.

        ``answered`` is called when the batch is committed, or with the error if it is not.
        """
        known = self._known.get(parts)
        if known is None:
            if len(self._known) >= MOST_STATEMENTS:

                def deallocated(_: object) -> None:
                    self._connection.forget_statements()
                    self._known.clear()
                    self.execute(batch, parts, parameters, answered)

                self._connection.execute(b"deallocate", "deallocate all", (), deallocated)
                return
            self._composed += 1
            known = self._known[parts] = (f"batch_{self._composed}".encode(), statement(parts, self._instance_id))
        if batch.large:
            self._steps = _steps_of(batch, Step(*known, parameters))
            self._step(answered)
        else:
            self._connection.execute(known[0], known[1], parameters, answered)

    def _step(self, answered: Answer) -> None:
        step = next(self._steps, None)
        if step is None:
            answered([])
            return

        def stepped(answer: object) -> None:
            if isinstance(answer, StoreError):
                self._connection.execute(b"rollback", "rollback", (), lambda _: answered(answer))
            else:
                self._step(answered)

        self._connection.execute(step.name, step.sql, step.parameters, stepped)


def _steps_of(batch: Batch, statement: Step) -> Iterator[Step]:
    yield Step(b"make_pieces", MAKE_PIECES)
    yield Step(b"begin", "begin")
    yield from batch.large_steps()
    yield statement
    yield Step(b"commit", "commit")


#: memory of a waiting unit, without its messages
_UNIT_OCTETS = 512

log = structlog.get_logger(__name__)

PROBE_RETRY_SECONDS = 1.0

_MAKE_DAYS = f"select {SCHEMA}.make_day(day::date) from unnest(string_to_array($1::text, ',')) day"
#: A commit that is visible may still wait for the disk or for its standby: this statement commits after it.
_FLUSH = Step(b"flush", "select pg_logical_emit_message(true, 'coordinator', '')")


@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    """The most that one batch may hold: rows of messages and retirements, and bytes of messages."""

    messages: int = 2000
    octets: int = 4 << 20
    #: bytes of messages that may wait for a batch; above it, nothing is read from peers
    waiting_octets: int = 64 << 20


class GroupCommit:
    """Commits units in batches, one batch at a time, and answers each unit.

    ``fenced``: called when the store accepts nothing more from this instance, because others have given it up;
    undecided transactions stay undecided, and no unit is answered.
    """

    def __init__(self, loop: Loop, url: str, instance_id: int, limits: Limits, fenced: Callable[[], None]) -> None:
        self._loop = loop
        self._fenced = fenced
        self._instance_id = instance_id
        self._limits = limits
        self._connection = Connection(loop, url, f"batch {instance_id}", SETUP, self)
        self._statements = Statements(self._connection, instance_id)
        self._under_way: Batch | None = None
        self._backend = NO_BACKEND
        self._looked_up = 0.0  # the ``begun`` of the batch in doubt that was logged last
        self._lost_backend = LostBackend(loop, self._connection)
        self._answers: deque[tuple[list[Unit], StoreError | None]] = deque()
        self._answering = False
        self._sending = False
        self._rescue = Rescue(loop, self)
        #: True if the last batch had only units of connections that have no part to be sent again
        self._aside = False
        #: units with the octets of their messages, of connections in turns
        self._waiting: Turns[tuple[Unit, int]] = Turns()
        #: the octets of their messages together
        self._waiting_octets = 0
        self._next = Batch()
        self._sent = 0
        self.rows = 0
        #: committed batches by rows, and by the time from the first statement to the answer
        self.sizes = Histogram(BATCH_ROWS)
        self.times = Histogram(COMMIT_SECONDS)

    def start(self) -> None:
        self._connection.start()

    def close(self) -> None:
        self._connection.close()

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def idle(self) -> bool:
        """Whether no unit waits and no batch is under way."""
        waits = self._next.units or self._waiting.count or self._rescue.busy or self._answers
        return self._under_way is None and not waits

    @property
    def waits(self) -> tuple[float, str]:
        """Return the seconds that the batch under way has waited, or 0, and the SQLSTATE of its last refusal."""
        batch = self._under_way
        return (0.0, "") if batch is None else (time.monotonic() - batch.begun, batch.refused_with)

    @property
    def congested(self) -> bool:
        """Whether more waits than two batches hold: then grant no more credit."""
        return self._waiting.count > self._limits.messages or self.overfull

    @property
    def overfull(self) -> bool:
        """Whether too many octets wait: then do not read what peers send, even with credit."""
        return self._waiting_octets + _UNIT_OCTETS * self._waiting.count > self._limits.waiting_octets

    @property
    def crowded(self) -> bool:
        """Whether connections take turns, as more waits than a batch: a unit added now may miss the next batch."""
        return bool(self._waiting.lines)

    def has_waiting(self, owner: object) -> bool:
        return self._waiting.has_waiting(owner)

    def add(self, unit: Unit, octets: int = 0) -> None:
        """Add a unit to be committed. ``octets``: size of the messages that it holds until it is written."""
        batch = self._next
        limits = self._limits
        waiting = self._waiting
        if (waiting.lines or batch.octets >= limits.octets or batch.rows >= limits.messages) and (
            # a connection without waiting units does not wait for the others: the batch may become twice as large
            not waiting.lines
            or unit.owner in waiting.lines
            or batch.octets >= 2 * limits.octets
            or batch.rows >= 2 * limits.messages
        ):
            waiting.add(unit.owner, (unit, octets))
            self._waiting_octets += octets
        else:
            written = self._write(batch, unit)
            if written is not batch:  # else the write has added a unit, and the next batch is another one
                self._next = written

    def _write(self, batch: Batch, unit: Unit) -> Batch:
        """Write the unit into the batch. Returns the batch, a new one if the unit cannot be written."""
        batch.units.append(unit)
        try:
            unit.write(batch)
        except Exception:  # noqa: BLE001 - any error is the unit's alone
            return self._without(batch, unit)
        return batch

    def _without(self, batch: Batch, broken: Unit) -> Batch:
        """Refuse a unit whose ``write`` raised, perhaps after adding rows, and write the others into a new batch."""
        log.exception("unit refused: it cannot be written", unit=type(broken).__name__)
        self._answers.append(([broken], StoreFault("an internal error kept it from being written")))
        return self._written(unit for unit in batch.units if unit is not broken)

    def _written(self, units: Iterable[Unit]) -> Batch:
        batch = Batch()
        for unit in units:
            batch = self._write(batch, unit)
        return batch

    def kick(self) -> None:
        """End a turn: if no batch is under way, send the next; then answer the units that are committed or refused."""
        if not self._sending:
            self._sending = True
            try:
                while self._under_way is None and self._any_to_send and self._connection.idle:
                    self._send_next()
            finally:
                self._sending = False
            if self._answers:
                self._answer()

    @property
    def _any_to_send(self) -> bool:
        return bool(self._next.units or self._waiting.ready or self._rescue.salvage.parts)

    def _send_next(self) -> None:
        beside = self._beside()
        if beside is not None:
            batch = beside
        elif self._rescue.salvage.parts:
            units, attempts = self._rescue.salvage.take()
            batch = self._written(units)
            batch.attempts = attempts
        else:
            self._fill()
            batch, self._next = self._next, Batch()
            self._fill()
        self._send(batch)

    def _beside(self) -> Batch | None:
        """Return the batch to send before the next part that is sent again, if it is the turn of such a batch.

        While parts are sent again, every other batch has only units of connections without such parts: to find the unit
        that the store refuses may take two statements for each unit of its batch.
        """
        self._aside = bool(self._rescue.salvage.parts) and not self._aside
        if not self._aside:
            return None
        self._fill()
        tried, others = self._rescue.salvage.apart(self._next.units)
        if not others:
            return None
        self._next = self._written(tried)
        return self._written(others)

    def _fill(self) -> None:
        """Fill the next batch from what waits, in fair shares."""
        waiting, limits, batch = self._waiting, self._limits, self._next
        while waiting.ready and batch.octets < limits.octets and batch.rows < limits.messages:
            rows, octets = batch.rows, batch.octets
            unit, octets_waited = waiting.take()
            self._waiting_octets -= octets_waited
            written = self._write(batch, unit)
            if written is not batch:
                self._next = written
            batch = self._next
            waiting.charge(unit.owner, (batch.rows - rows) / limits.messages + (batch.octets - octets) / limits.octets)

    def _send(self, batch: Batch) -> None:
        self._under_way = batch
        self._backend = self._connection.backend
        batch.number = self._sent = self._sent + 1
        try:
            parts, parameters = parts_of(batch)
        except Exception:
            log.exception("a batch cannot be encoded", units=len(batch.units))
            self._under_way = None
            self._rescue.refused(batch, StoreFault("an internal error kept it from being written"))
            return
        if not parts:  # its units wrote nothing
            self._under_way = None
            self.answer(batch.units, None)
            return
        batch.begun, batch.refused_with = batch.begun or time.monotonic(), ""
        self._statements.execute(batch, parts, parameters, self._answered)

    def _answered(self, answer: object) -> None:
        batch = self._under_way
        assert batch is not None
        self._under_way = None
        if isinstance(answer, Fenced):
            self.close()
            self._fenced()
        elif isinstance(answer, Locked) and batch.checkable is not None and len(owners_of(batch)) > 1:
            self._query_locks(batch, answer)
        elif isinstance(answer, Contended | StoreInTrouble):
            self._rescue.try_again(batch, answer)
        elif isinstance(answer, PostedBefore):
            self._query_posted(batch, answer)
        elif isinstance(answer, NoPartition) and not batch.days_made:
            self._make_days(batch)
        elif isinstance(answer, StoreError):
            self._rescue.refused(batch, answer)
        else:
            self._finish(batch)

    def _query_locks(self, batch: Batch, error: Locked) -> None:
        """Query which transactions of the batch others have locked; only the units that need them wait."""
        assert batch.checkable is not None
        self._under_way = batch  # if the connection is lost, the batch is sent again

        def locks_found(answer: list[pq.abc.PGresult] | StoreError) -> None:
            self._under_way = None
            locked: set[bytes] = set()
            if not isinstance(answer, StoreError):
                locked = {answer[-1].get_value(row, 0) or b"" for row in range(answer[-1].ntuples)}
            self._rescue.set_aside(batch, locked, error)

        self._connection.execute(b"locked", LOCKED, [arrays.uuid(sorted(batch.checkable.named))], locks_found)

    def _query_posted(self, batch: Batch, error: PostedBefore) -> None:
        """Query which delivery-tags of the batch the store has: their units are answered, and the others sent again."""
        self._under_way = batch  # if the connection is lost, the batch is sent again

        def found(answer: list[pq.abc.PGresult] | StoreError) -> None:
            if isinstance(answer, StoreError):
                self._under_way = None
                self._rescue.try_again(batch, answer)
                return
            places = {int.from_bytes(answer[-1].get_value(row, 0) or b"", "big") for row in range(answer[-1].ntuples)}
            known = {id(batch.posted[place - 1].unit) for place in places}
            self._connection.execute(_FLUSH.name, _FLUSH.sql, _FLUSH.parameters, partial(flushed, known))

        def flushed(known: set[int], answer: list[pq.abc.PGresult] | StoreError) -> None:
            self._under_way = None
            if isinstance(answer, StoreError):
                self._rescue.try_again(batch, answer)
                return
            self._rescue.salvage.put(batch.attempts, *_apart(batch, known))
            self.answer([unit for unit in batch.units if id(unit) in known], error)

        self._connection.execute(b"posted", POSTED, tags(batch), found)

    def hold(self, owner: object) -> None:
        """Let the other units of the connection wait until its part is sent again."""
        later = self._rescue.salvage.remove(owner)
        units = self._next.units
        if any(unit.owner is owner for unit in units):
            later += [unit for unit in units if unit.owner is owner]
            self._next = self._written(unit for unit in units if unit.owner is not owner)
        self._waiting.hold(owner, [(unit, 0) for unit in later])

    def release(self, owner: object) -> None:
        """End the wait of the connection's units."""
        self._waiting.release(owner)

    def _make_days(self, batch: Batch) -> None:
        """Create the missing partitions, and send the batch once more; if they are still missing, it is refused."""
        batch.days_made = True
        self._under_way = batch
        days = ",".join(day.isoformat() for day in batch.days())
        log.error("no partition for the day of a row: making it", days=days)
        self._connection.execute(b"make_days", _MAKE_DAYS, [days.encode()], lambda _: self._send(batch))

    def _finish(self, batch: Batch) -> None:
        self.rows += batch.rows
        self.sizes.add(batch.rows)
        self.times.add(time.monotonic() - batch.begun)
        self.answer(batch.units, None)

    def answer(self, units: list[Unit], error: StoreError | None) -> None:
        """Answer the units, batch after batch in the order of the commits."""
        self._answers.append((units, error))
        self.kick()  # the next batch is sent before the answers; a batch without rows is answered here at once

    def _answer(self) -> None:
        if self._answering:
            return
        self._answering = True
        answers = self._answers
        while answers:
            units, error = answers.popleft()
            for unit in units:
                try:
                    if error is None:
                        unit.durable()
                    else:
                        unit.refused(error)
                except Exception:  # noqa: BLE001 - any error is the unit's alone
                    self._loop.contain(unit)
        self._answering = False

    # -- the connection's owner

    def connected(self) -> None:
        if self._under_way is None:
            self.kick()
        else:
            self._lost_backend.terminate(self._backend, self._look_up)

    def lost(self) -> None:
        if (batch := self._under_way) is not None:
            batch.ended_by_server, batch.refused_with = self._connection.server_ended, self._connection.refused_with

    def notified(self, channel: str, payload: str) -> None:
        pass

    # -- a batch whose reply was lost

    def _look_up(self) -> None:
        batch = self._under_way
        assert batch is not None
        probe = batch.probe(self._instance_id)
        if probe is None:
            self._send(batch)
            return

        def answered(answer: list[pq.abc.PGresult] | StoreError) -> None:
            if isinstance(answer, StoreError):
                self._retry_look_up(answer)
                return
            committed = answer[-1].get_value(0, 0) == b"\x01"
            if committed or self._looked_up != batch.begun:
                log.warning("batch in doubt looked up", committed=committed, units=len(batch.units))
            self._looked_up = batch.begun
            if committed:
                self._connection.execute(_FLUSH.name, _FLUSH.sql, _FLUSH.parameters, flushed)
            else:
                self._lost(batch)

        def flushed(answer: list[pq.abc.PGresult] | StoreError) -> None:
            if isinstance(answer, StoreError):
                self._retry_look_up(answer)
            else:
                self._under_way = None
                self._finish(batch)

        self._connection.execute(*probe, answered)

    def _lost(self, batch: Batch) -> None:
        """Send a batch again that was not committed, or refuse it: it may be why the connection is lost each time."""
        if not batch.ended_by_server:
            batch.attempts += 1
        if batch.attempts < MOST_ATTEMPTS:
            self._send(batch)
            return
        self._under_way = None
        self._rescue.refused(
            batch, StoreUnavailable("the connection to the database was lost with it, again and again")
        )

    def _retry_look_up(self, error: StoreError) -> None:
        log.error("cannot look up the batch in doubt", error=str(error))
        self._loop.call_later(PROBE_RETRY_SECONDS, self.connected)


def _apart(batch: Batch, known: set[int]) -> Iterator[list[Unit]]:
    """Yield the units but the ``known`` ones; then, apart, those whose delivery-tag another of these has."""
    first = {each[:4]: id(each.unit) for each in reversed(batch.posted) if id(each.unit) not in known}
    later = {id(each.unit) for each in batch.posted} - known - set(first.values())
    for units in (
        [unit for unit in batch.units if id(unit) not in known and id(unit) not in later],
        [unit for unit in batch.units if id(unit) in later],
    ):
        if units:
            yield units
