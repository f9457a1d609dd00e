"""Work on the archive that kills itself: ``python -m tests.archiving URL FOLDER``.

For each step of the work that changes something, a day is made, and archived and dropped by a process that kills itself
before the step; then by one that comes to its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, text

from store.archive import writing
from store.database import connected
from store.retention import drop_old
from tests.fix_archive import OLD, POLICY, Old

#: More than there are steps.
MOST = 500
#: What a statement that changes something begins with.
_CHANGES = ("insert", "update", "delete", "create temp", "truncate", "lock", "drop", "alter")
_FILES = ("open", "os.mkdir", "os.rename", "os.rmdir", "os.remove")


def _killed(url: str, root: Path, point: int) -> int:
    """Work, and be killed before the step of this number. How many steps there were."""
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1
        if count == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def of_file(name: str, arguments: tuple[Any, ...]) -> None:
        reads = name == "open" and "x" not in str(arguments[1]) and "w" not in str(arguments[1])
        if name in _FILES and not reads and str(root) in str(arguments[0]):
            step()

    def of_statement(*arguments: Any) -> None:
        if arguments[2].strip().startswith(_CHANGES):
            step()

    sys.addaudithook(of_file)
    event.listen(Engine, "before_cursor_execute", of_statement)
    event.listen(Engine, "commit", step)
    with connected(url, application_name="killed") as connection:
        _work(connection, root)
    return count


def _work(connection: Connection, root: Path) -> None:
    with writing.alone(connection):
        for table, day in writing.due(connection, POLICY):
            writing.write_day(connection, root, table, day)
        drop_old(connection, POLICY)


def _until_gone(connection: Connection) -> None:
    """The server has noticed that the process is gone: it has given up its locks."""
    while connection.scalar(text("select count(*) from pg_stat_activity where application_name = 'killed'")):
        connection.rollback()
        time.sleep(0.01)
    connection.rollback()


def _forked(work: Any) -> bool:
    """Whether a process with this work has come to its end."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status == 0


def _points(url: str, root: Path) -> Iterator[dict[str, Any]]:
    """What was made of each day, and whether its first process was killed."""
    for point in range(1, MOST):
        # from the oldest on: a day is not made any more once a later one is dropped
        day = OLD - timedelta(days=MOST - point)
        with connected(url) as connection:
            store = Old.__new__(Old)
            store.connection, store._count = connection, point * 100
            store.address, store.group = 1, 1
            made = store.make(day)
            _until_gone(connection)
        ended = _forked(lambda point=point: _killed(url, root, point))
        with connected(url) as connection:
            _until_gone(connection)
            _work(connection, root)
        yield {"day": day.isoformat(), "made": made, "killed": not ended}
        if ended:
            return


if __name__ == "__main__":
    for found in _points(sys.argv[1], Path(sys.argv[2])):
        sys.stdout.write(f"{json.dumps(found)}\n")
