"""``coordinator watch``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    defects_by_name,
    fail,
    named_folder,
    require,
)
from coordinator.commands.credentials import Credentials, store_url
from coordinator.commands.stopping import stopped_by_name
from coordinator.printable import printable

if TYPE_CHECKING:
    from spark.finding import Finding
    from spark.watching import Batch
    from store.watched import Lag, WatchState

#: How often a database that is away is asked.
_AWAY_SECONDS = 1.0


def watch_outcomes(
    checkpoint: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            parser=named_folder,
            help="Where Spark notes how far it has read; made where it is missing.",
        ),
    ],
    every: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, max=60, help="How often to look for what is new.")
    ] = 10,
    rows: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=10_000_000, help="The most rows of one look; one SQL transaction is never split."
        ),
    ] = 100_000,
    anew: Annotated[
        bool, typer.Option("--anew", help="Forget what was counted and found, and begin in an empty folder.")
    ] = False,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = "local[*]",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Spark's memory here, such as 2g.")] = "1g",
    credentials: Credentials = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Count the outcomes of transactions as they come, each once, and report at once what is wrong.

    It goes on until it is stopped, and then from where it was. What is counted and found is in the store, too: see
    coordinator findings, and the metrics. Exit status: 2 it could not run, or go on; 130 interrupted (Ctrl-C), 143 by
    SIGTERM.
    """
    require("reconcile")
    with defects_by_name(), stopped_by_name():
        url = store_url(config, database_url, data_dir, credentials)
        if not re.fullmatch(r"[1-9]\d*[mg]", memory):
            fail(f"--memory: {memory!r}; expected a number and m or g, such as 2g", 2)
        # Spark takes seconds to import: refusals that need none of it come first.
        from spark.checkpoint import CheckpointUnusable, held
        from store.errors import StoreError

        book = _Book(url, checkpoint.absolute())
        try:
            with held(book.folder):
                if anew:
                    book.forget()
                book.check()
                _run(book, url, master, memory, every, rows, credentials)
        except (CheckpointUnusable, StoreError) as error:
            fail(str(error), 2)


def _run(book: _Book, url: str, master: str, memory: str, every: int, rows: int, credentials: Path | None) -> None:
    """Watch, until an error ends it."""
    from spark.cluster import ClusterUnusable, guarded
    from spark.java import JavaMissing, running_java
    from spark.master import MasterUnusable, check_master
    from spark.session import SparkFailed, running_session
    from spark.snapshot import StoreUnreadable
    from spark.watching import watch

    try:
        check_master(master, url, credentials)
        book.report("starting Spark")
        with (
            running_java(master, memory=memory, brief=True) as java,
            running_session(java, credentials) as spark,
            guarded(spark),
        ):
            watch(
                spark,
                url=url,
                credentials=credentials,
                checkpoint=book.folder,
                every=every,
                rows=rows,
                ledger=book,
            )
    except (JavaMissing, MasterUnusable, ClusterUnusable, StoreUnreadable) as error:
        fail(str(error), 2)
    except (SparkFailed, OSError) as error:
        fail(f"Spark: {error}", 2)


class _Book:
    """Keeps the ledger of a watch (:class:`spark.watching.Ledger`) in the store; it prints the findings."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self._url = url
        self._began = time.monotonic()
        self._told: tuple[object, ...] = ()

    def check(self) -> None:
        """See that the store is there, and is the one of the checkpoint; ends the command if it is not."""
        from spark.changes import OtherStore, check_offset
        from spark.checkpoint import open_checkpoint
        from store import migrations, runs, watched
        from store.database import connected

        try:
            with connected(self._url, application_name="coordinator watch of outcomes") as connection:
                migrations.check(connection)
                runs.check_rights(connection, "watch")
                at = watched.place(connection)
                found = open_checkpoint(self.folder)
                if found.offset is not None:
                    check_offset(found.offset, **at)
                watched.check(connection, found.id, found.ended)
        except OtherStore as error:
            fail(f"checkpoint {self.folder} is not of this store: {error}", 2)

    def forget(self) -> None:
        """Begin anew; ends the command if the folder has a checkpoint."""
        from spark.checkpoint import open_checkpoint
        from store import migrations, runs, watched
        from store.database import connected

        if open_checkpoint(self.folder).id is not None:
            fail(f"--anew: checkpoint {self.folder} has been begun; give an empty folder", 2)
        with connected(self._url, application_name="coordinator watch of outcomes") as connection:
            migrations.check(connection)
            runs.check_rights(connection, "watch")
            watched.forget(connection)

    def wait(self) -> bool:
        """Wait for a database that is away; return whether it was."""
        from store.database import Patience, connected
        from store.errors import StoreUnavailable

        away = False
        patience = Patience(connect_seconds=2, statement_seconds=5.0, lock_seconds=5.0)
        while True:
            try:
                with connected(self._url, application_name="coordinator watch of outcomes", patience=patience):
                    if away:
                        self.report("the database is back")
                    return away
            except StoreUnavailable as error:
                if not away:
                    self.report(f"waiting: {error}")
                away = True
                time.sleep(_AWAY_SECONDS)

    def count(self, watch_id: UUID, batch: Batch) -> None:
        """Count a batch, once."""
        from coordinator.version import VERSION
        from store import watched
        from store.database import connected

        of = watched.Batch(
            number=batch.number,
            since=batch.since,
            until=batch.until,
            counts=batch.counts,
            findings=[vars(each) for each in batch.findings],
        )
        with connected(self._url, application_name="coordinator watch of outcomes") as connection:
            new = watched.count(connection, watch_id, of, VERSION)
        self._report(new)

    def add_findings(self, watch_id: UUID, findings: Sequence[Finding]) -> None:
        """Add findings that belong to no batch; print the state of the watch if it has changed."""
        from coordinator.version import VERSION
        from store import watched
        from store.database import connected

        with connected(self._url, application_name="coordinator watch of outcomes") as connection:
            now, new = watched.record(connection, watch_id, [vars(each) for each in findings], VERSION)
        self._report(new)
        seen = (now.counts, now.findings, now.lag.rows, now.missed_before)
        if seen != self._told:
            self._told = seen
            self.report(_line(now))

    def report(self, line: str) -> None:
        """Print a line to the standard error, with the time since the start."""
        sys.stderr.write(f"{time.monotonic() - self._began:.1f} s: {printable(line)}\n")
        sys.stderr.flush()

    def _report(self, found: Sequence[Mapping[str, Any]]) -> None:
        for each in found:
            about = [f"{name.replace('_', '-')} {each[name]}" for name in _ABOUT if each[name] is not None]
            typer.echo(printable(f"{each['severity']}: {each['kind']}: {', '.join(about)}: {each['detail']}"))


_ABOUT = ("txn_id", "half_id", "address", "consumer_group")


def _line(now: WatchState) -> str:
    counts = ", ".join(f"{number:,} {name}" for name, number in sorted(now.counts.items()))
    missed = (
        f"; days before {now.missed_before} were dropped before all of them was counted" if now.missed_before else ""
    )
    return (
        f"{sum(now.counts.values()):,} rows counted{f' ({counts})' if counts else ''}; {_behind(now.lag)};"
        f" {sum(now.findings.values()):,} findings{missed}"
    )


def _behind(lag: Lag) -> str:
    return f"{'over ' if lag.more else ''}{lag.rows:,} rows and {lag.seconds:.1f} s behind"
