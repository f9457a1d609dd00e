"""``coordinator reconcile``."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

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
from coordinator.commands.credentials import Credentials, store_url, url_in
from coordinator.commands.stopping import stopped_by_name

if TYPE_CHECKING:
    from spark.books.description import Description
    from spark.java import Running
    from spark.period import Period
    from spark.report import Run
    from spark.snapshot import At

_URL_BEGINS = ("postgresql://", "postgres://")
#: The book that needs no file; one of this name is ./inbox.
_INBOX = "inbox"

_Default = TypeVar("_Default")

_Out = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", parser=named_folder, help="Where the findings, summary.json and report.html are written."
    ),
]
_Books = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="A book of an application (TOML) to compare with; may be repeated. inbox: the store's own, of"
        " coordinator.first_time.",
    ),
]

_Also = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STORE",
        help="Another store, told of in the same report; may be repeated. A file with its URL alone, as --credentials"
        " has, or here the URL, postgresql://...",
    ),
]


def given_moment(option: str, given: str | None, now: datetime, default: _Default) -> datetime | _Default:
    """Return the :func:`coordinator.answers.moment` of an option; ends the command, with 2, if it is none."""
    from coordinator.answers import Malformed, moment

    try:
        return default if given is None else moment(given, now)
    except Malformed as error:
        fail(f"{option}: {error}", 2)


def reconcile(
    out: _Out,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Transactions declared from then on; ISO 8601, or 24h (ago). Default: all."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Transactions declared before then. Default: all.")
    ] = None,
    book: _Books = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=named_folder,
            help="Read days that the store has dropped from its archive, in this folder.",
        ),
    ] = None,
    fail_on: Annotated[
        Literal["note", "warning", "error"], typer.Option(help="Exit with 1 on findings of this severity or worse.")
    ] = "warning",
    store: Annotated[
        bool,
        typer.Option(
            "--store",
            help="Store the findings and the report, too, for coordinator findings, coordinator repair --run and the "
            "console: all else only reads.",
        ),
    ] = False,
    also: _Also = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = "local[*]",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Spark's memory here, such as 2g.")] = "2g",
    credentials: Credentials = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Compare the coordinator's decisions with its deliveries and with the applications' own books, and report.

    Exit status: 0 clean, 1 findings at or above --fail-on, 2 it could not run, 130 interrupted (Ctrl-C), 143 by
    SIGTERM.
    """
    require("reconcile")
    with defects_by_name(), stopped_by_name():
        stores = _stores(store_url(config, database_url, data_dir, credentials), credentials, also or [])
        _check_alone("--store" if store else "--archive" if archive is not None else "", stores)
        if not re.fullmatch(r"[1-9]\d*[mg]", memory):
            fail(f"--memory: {memory!r}; expected a number and m or g, such as 2g", 2)
        period = _period(since, until)
        files = book or []
        own = _INBOX in files
        with _alone(out):
            with _java(master, memory, stores) as java:
                books = _prepared([Path(file) for file in files if file != _INBOX], stores, inbox=own, store=store)
                run = _compared(java, stores, period, books, out, fail_on, inbox=own, archive=archive)
            _report(run, out)
            if store:
                typer.echo(_stored(stores[0].url, run, period, out))
        if run.findings.at_or_above(fail_on):
            raise typer.Exit(1)


def _stores(url: str, credentials: Path | None, also: Sequence[str]) -> list[At]:
    """Return where the stores are; ends the command if one of ``--also`` cannot be used."""
    from coordinator.process.arguments import hide
    from spark.snapshot import At
    from store.database import check_url, place
    from store.errors import DatabaseUrlInvalid

    stores = [At(url=url, credentials=credentials, place=place(url) if also else "")]
    for given in also:
        file = None if given.startswith(_URL_BEGINS) else Path(given).absolute()
        if file is None:
            hide(given)
        try:
            other = check_url(given) if file is None else url_in(file, "--also")
        except DatabaseUrlInvalid as error:
            fail(f"--also: {error}", 2)
        stores.append(At(url=other, credentials=file, place=place(other)))
    return stores


def _check_alone(option: str, stores: Sequence[At]) -> None:
    """End the command where the ``option`` is of one store, and there are several; empty: there is none."""
    if option and len(stores) > 1:
        fail(f"{option}: it is of one store, and --also names another", 2)


def _report(run: Run, out: Path) -> None:
    for each in run.stores:
        if each.shortened:
            typer.echo(f"{each.store}: {each.shortened}" if run.others else each.shortened)
    found = run.findings
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.by_kind.items()))
    typer.echo(f"{found.total:,} findings{': ' if counts else ''}{counts}; report: {out / 'report.html'}")


def _period(since: str | None, until: str | None) -> Period:
    """Return the period of ``--since`` and ``--until``; ends the command if it is empty."""
    from spark.period import BEGINNING, END, Period

    now = datetime.now(UTC)
    first, last = given_moment("--since", since, now, BEGINNING), given_moment("--until", until, now, END)
    if last <= BEGINNING or first >= END:
        fail(f"--since, --until: no store has anything before {BEGINNING:%Y-%m-%d} or after {END:%Y-%m-%d}", 2)
    if last > END:
        fail(f"--until: no store has anything after {END:%Y-%m-%d}; leave it out for all there is", 2)
    try:
        return Period(since=first, until=last)
    except ValueError as error:
        fail(f"--since, --until: {error}", 2)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keep other runs from writing into ``out`` in the block; ends the command if that cannot be, or ``out`` cannot be
    used.
    """
    from spark.output import OutputUnusable, output

    try:
        with output(out):
            yield
    except OutputUnusable as error:
        fail(str(error), 2)


@contextmanager
def _java(master: str, memory: str, stores: Sequence[At]) -> Iterator[Running]:
    """Yield a Java that starts while this process imports modules and checks its arguments: each takes a second or
    two. Ends the command if there is no Java, or no such master.
    """
    from spark.java import JavaMissing, running_java
    from spark.master import MasterUnusable, check_master
    from spark.snapshot import is_brief

    try:
        if not master.startswith("local") and any(each.credentials is None for each in stores[1:]):
            fail("--also: on a cluster expected a file with the URL, at this path on each machine", 2)
        for each in stores:
            check_master(master, each.url, each.credentials)
        brief = all(is_brief(each.url) for each in stores)
        with running_java(master, memory=memory, brief=brief) as java:
            yield java
    except (JavaMissing, MasterUnusable) as error:
        fail(str(error), 2)
    except OSError as error:
        fail(f"Spark: {error}", 2)


def _prepared(files: list[Path], stores: Sequence[At], *, inbox: bool, store: bool) -> Sequence[Description]:
    """Return the books; ends the command if one of them, or a store, cannot be used."""
    from spark.books.description import BookError, describe

    try:
        books = [describe(path) for path in files]
        names = [description.name for description in books] + [_INBOX] * inbox
        if len(set(names)) < len(names):
            fail("--book: two books have the same name", 2)
        _check_stores(stores, store=store)
    except BookError as error:
        fail(str(error), 2)
    return books


def _compared(
    java: Running,
    stores: Sequence[At],
    period: Period,
    books: Sequence[Description],
    out: Path,
    fail_on: str,
    *,
    inbox: bool,
    archive: Path | None,
) -> Run:
    """Return the findings; ends the command if Spark cannot run."""
    from coordinator.version import VERSION
    from spark.books.description import BookError
    from spark.cluster import ClusterUnusable, guarded
    from spark.master import MasterUnusable
    from spark.progress import ProgressBar
    from spark.reconcile import STAGES, report
    from spark.reconcile import reconcile as run_reconciliation
    from spark.session import SparkFailed, running_session
    from spark.snapshot import StoreUnreadable
    from store.archive.copies import ArchiveUnusable

    try:
        with ProgressBar(len(stores) * (STAGES + 2 * (len(books) + inbox))) as bar:
            with running_session(java, stores[0].credentials) as spark, bar.watching(spark), guarded(spark):
                run = run_reconciliation(
                    spark,
                    stores=stores,
                    period=period,
                    books=books,
                    inbox=inbox,
                    archive=None if archive is None else archive.absolute(),
                    out=out,
                    steps=bar,
                    version=VERSION,
                )
            # while Java ends
            report(run, out, fail_on, bar)
            return run
    except (BookError, StoreUnreadable, ArchiveUnusable, MasterUnusable, ClusterUnusable) as error:
        fail(str(error), 2)
    except SparkFailed as error:
        fail(f"Spark: {error}", 2)


def _check_stores(stores: Sequence[At], *, store: bool) -> None:
    """End the command if a store is away, of another schema, or given twice; or if findings cannot be stored and are to
    be.
    """
    from store import migrations, repairs, runs
    from store.database import connected
    from store.errors import StoreError

    places: dict[str, str] = {}
    for each in stores:
        try:
            with connected(each.url, application_name="coordinator reconcile") as connection:
                migrations.check(connection)
                if store:
                    runs.check_rights(connection)
                found = repairs.store_id(connection)
            if found in places:
                fail(f"--also: {each.place} is the store {found}, as is {places[found]}: give it once", 2)
            places[found] = each.place
        except runs.CannotStore as error:
            fail(f"--store: {error}", 2)
        except StoreError as error:
            fail(f"{each.place}: {error}" if each.place else str(error), 2)


def _stored(url: str, run: Run, period: Period, out: Path) -> str:
    """Store what the report in ``out`` has; return a line that says so. Ends the command if that cannot be done."""
    from spark.period import BEGINNING, END
    from spark.read_back import ReportUnusable, read_report
    from spark.report import render
    from store import runs
    from store.database import connected
    from store.errors import StoreError

    of = runs.Run(
        since=None if period.since <= BEGINNING else period.since,
        until=None if period.until >= END else period.until,
        books=tuple(book.name for book in run.books),
        seen_at=run.seen_at,
        version=run.version,
    )
    try:
        with connected(url, application_name="coordinator reconcile") as connection:
            packed = gzip.compress(render(run, alone=True).encode())
            number = runs.store(connection, of, read_report(out).findings(), report=packed)
    except runs.Superseded as error:
        return f"not stored: {error}"
    except (StoreError, ReportUnusable) as error:
        fail(f"--store: the report is whole, and its findings are not stored: {error}", 2)
    return f"stored as run {number}: coordinator findings show {number}"
