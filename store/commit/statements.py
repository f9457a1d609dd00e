"""How a batch is sent: as one statement, prepared once for each combination of parts; or, where it has large messages,
as an SQL transaction of several.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from store.commit.batch import MAKE_PIECES, Step
from store.commit.parts import statement
from store.errors import StoreError

if TYPE_CHECKING:
    from store.commit.batch import Batch
    from store.libpq import Answer, Connection

#: combinations of parts that are kept prepared
MOST_STATEMENTS = 200


class Statements:
    """The statements that the batches' connection has prepared, and the steps of the batch under way."""

    def __init__(self, connection: Connection, instance_id: int) -> None:
        self._connection = connection
        self._instance_id = instance_id
        self._known: dict[tuple[str, ...], tuple[bytes, str]] = {}
        #: statements so far: no two have the same name
        self._composed = 0
        #: the remaining steps of a batch of several statements
        self._steps: Iterator[Step] = iter(())

    def __len__(self) -> int:
        return len(self._known)

    def execute(self, batch: Batch, parts: tuple[str, ...], parameters: list[bytes], answered: Answer) -> None:
        """``parts``, ``parameters``: of the batch. ``answered`` is called when the batch is committed, or with the
        reason why it is not.
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
