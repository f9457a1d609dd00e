"""The supervisor's own database is an embedded server, which is restarted when it ends, and whose disk is watched."""

from __future__ import annotations

import time

import structlog

from coordinator.process.children import Pause
from store import migrations, roles
from store.database import connected
from store.embedded import running
from store.embedded.programs import EmbeddedError, StartCancelled
from store.embedded.server import EmbeddedServer

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The end of a server that ran this long does not count as a failed start.
_STEADY_SECONDS = 30.0
#: seconds between checks of the disk: the longest, and the shortest while it fills up
_DISK_SECONDS = 1.0
_SHORTEST_DISK_SECONDS = 0.02
#: octets per second: posts do not fill a disk faster
_FASTEST_FILLING = 1 << 30


class OwnDatabase:
    """Runs the embedded server. ``disk_low``: the disk has less room than ``disk_free_bytes``; the workers then refuse
    posts, before the server has no room left for its log, and ends.
    """

    def __init__(self, server: EmbeddedServer, disk_free_bytes: int) -> None:
        self._server = server
        self.data_dir = server.data_dir
        self._disk_free_bytes = disk_free_bytes
        self.disk_low = False
        self._disk_at = 0.0
        #: the monotonic time of the restart; None: it runs
        self._start_at: float | None = None
        self._started_at = 0.0
        self._pause = Pause()

    def start(self) -> str:
        """Start the server; return its URL. Raises the errors of :meth:`EmbeddedServer.start`."""
        self._started_at = time.monotonic()
        url = self._server.start()
        _log.info("database started", data_dir=str(self._server.data_dir), pid=self._server.pid)
        return url

    def start_to_migrate(self, *, copies: bool) -> str:
        """:meth:`start`; with ``copies``, the store of an earlier version is copied, and its server started again."""
        url = self.start()
        found = migrations.behind(url) if copies else None
        if found is not None:
            _log.info("store is copied before it is migrated", schema=found, to=migrations.REVISIONS[-1])
            path = self._server.copy(found, spare_bytes=self._disk_free_bytes)
            _log.info("store copied", schema=found, copy=str(path))
            url = self.start()
        return url

    def prepare(self, url: str) -> str:
        """Migrate the store at ``url`` to this version; return the URL of the service's role, which owns nothing."""
        found = migrations.upgrade(url)
        if found is None:
            _log.info("store made", schema=migrations.REVISIONS[-1])
        elif found != migrations.REVISIONS[-1]:
            _log.info("store migrated", schema=migrations.REVISIONS[-1], before=found)
        with connected(url, application_name="coordinator migrate") as connection:
            roles.put_apart(connection, running.SERVES)
        return running.serving(url)

    @property
    def runs(self) -> bool:
        return self._start_at is None

    @property
    def next_at(self) -> float:
        """The monotonic time of the next :meth:`tend`, if no event precedes it."""
        return self._disk_at if self._start_at is None else min(self._start_at, self._disk_at)

    def tend(self, now: float) -> None:
        if self._start_at is None:
            status = self._server.poll()
            if status is not None:
                if now - self._started_at >= _STEADY_SECONDS:
                    self._pause.served()
                pause = self._pause.failed()
                _log.error("database ended", status=status, again_in_seconds=pause)
                self._start_at = now + pause
        elif now >= self._start_at:
            try:
                self.start()
            except StartCancelled:
                raise
            except EmbeddedError as error:
                pause = self._pause.failed()
                _log.error("database not started", reason=str(error), again_in_seconds=pause)
                self._start_at = time.monotonic() + pause
            else:
                self._start_at = None

    def check_disk(self, now: float) -> bool:
        """Check the disk, if it is time; whether :attr:`disk_low` has changed."""
        if now < self._disk_at:
            return False
        free = self._server.free_bytes()
        above = free - self._disk_free_bytes
        low = above < 0
        # before a late check, posts could use up the room above the mark, and that below it too
        wait = _DISK_SECONDS if low else max(above / _FASTEST_FILLING, _SHORTEST_DISK_SECONDS)
        self._disk_at = now + min(wait, _DISK_SECONDS)
        if low == self.disk_low:
            return False
        self.disk_low = low
        if low:
            _log.error("disk nearly full: posts are refused", free_bytes=free, data_dir=str(self._server.data_dir))
        else:
            _log.info("disk has room again: posts are taken", free_bytes=free)
        return True

    def stop(self) -> None:
        self._server.stop()
