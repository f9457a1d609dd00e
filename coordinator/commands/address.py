"""``coordinator address add | set | list | show | purge | remove``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    asked,
    fail,
    print_json,
    print_pairs,
    print_rows,
    print_table,
    store,
)
from coordinator.commands.group import INHERIT, MOST_ATTEMPTS, MOST_RETENTION_HOURS, expiry_policy, retry_policy, words

RetentionHours = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=MOST_RETENTION_HOURS,
        help="How long messages are kept once consumed. Default: as the settings say.",
    ),
]

OnExpiry = Annotated[
    str | None,
    typer.Option(metavar="POLICY", help="For a message whose ttl runs out: drop (the default) or dead-letter."),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=MOST_ATTEMPTS,
        help="Failed deliveries, then a message moves to the dead letters; 16 by default.",
    ),
]
RetryPolicy = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="How long a failed delivery waits before the next: immediate (the default), ladder (RocketMQ's levels, "
        "from the third), 'ladder 1s 10s 5m', or 'exponential 1s 2 10m' (first wait, factor, longest).",
    ),
]

CheckImmunity = Annotated[
    str | None,
    typer.Option(
        metavar="SECONDS",
        help="Of transactions whose first message goes here: time from the declare before which one is not "
        "checked, 0 to 3600; inherit: as the settings say. What a client asks for goes before it.",
    ),
]
CheckInterval = Annotated[
    str | None,
    typer.Option(metavar="SECONDS", help="Time from one check to the next, 0.001 to 86400; inherit."),
]
CheckMost = Annotated[
    str | None, typer.Option(metavar="N", help="Checks before it is rolled back, 1 to 1000; inherit.")
]

app = typer.Typer(help="Make addresses and look at them.", no_args_is_help=True)

#: options for checks: their column, and its least and greatest value
_CHECKS = (
    ("--check-immunity", "check_immunity_ms", 0, 3_600_000),
    ("--check-interval", "check_interval_ms", 1, 86_400_000),
    ("--check-most", "check_most", 1, 1000),
)

_COUNTS = ("ready", "inflight", "scheduled", "failed")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="1 to 1024 characters of printable text, at most 2,688 octets.")],
    topic: Annotated[
        bool, typer.Option("--topic", help="Each subscription gets every message; without it, consumers share them.")
    ] = False,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="normal, or mixed: all posts; transaction: posts in transactions, which it makes checkable; delay: "
            "posts with a delivery time or delay; fifo: all, with order and one consumer at a time by group-id.",
        ),
    ] = "normal",
    on_expiry: OnExpiry = None,
    max_attempts: MaxAttempts = None,
    retry: RetryPolicy = None,
    retention_hours: RetentionHours = None,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Make an address."""
    from coordinator.address.addresses import SERVICE_PREFIX, AddressInvalid, check_name, keeps_dead_letters, shown
    from store import addresses
    from store.errors import AddressExists

    try:
        check_name(name)
    except AddressInvalid as error:
        fail(str(error), 2)
    if name.startswith(SERVICE_PREFIX):
        fail(f"the address {shown(name)}: names that begin with {SERVICE_PREFIX} are the service's own", 2)
    letters = keeps_dead_letters(name)
    if letters and topic:
        fail(f"--topic: {shown(name)} keeps dead letters; expected a queue, as a topic keeps none for later", 2)
    _check_kind(kind)
    on_expiry = expiry_policy(on_expiry or "drop")
    retry = retry_policy(retry or "immediate")
    with store(config, database_url, data_dir, reason) as connection:
        try:
            addresses.add(
                connection,
                name=name,
                routing="topic" if topic else "queue",
                kind=kind,
                on_expiry=on_expiry,
                max_attempts=max_attempts or 16,
                retry=retry,
                retention_hours=retention_hours,
                origin="dead-letter" if letters else "administration",
            )
        except AddressExists:
            fail(f"there is an address {shown(name)} already")
    typer.echo(f"made the {'topic' if topic else 'queue'} {shown(name)}")


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="The address.")],
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="What it takes from now on: normal, mixed, transaction or delay; messages there stay."
        ),
    ] = None,
    on_expiry: OnExpiry = None,
    max_attempts: MaxAttempts = None,
    retry: RetryPolicy = None,
    retention_hours: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=MOST_RETENTION_HOURS,
            help="How long messages are kept once consumed; 0: as the settings say.",
        ),
    ] = None,
    check_immunity: CheckImmunity = None,
    check_interval: CheckInterval = None,
    check_most: CheckMost = None,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Change kind and policies of an address, while the service runs: they count for posts and outcomes from then on.

    Kind fifo is for life, as the entries of its messages have message groups.
    """
    from coordinator.address.addresses import shown
    from store import addresses

    given = {
        "kind": kind,
        "on_expiry": None if on_expiry is None else expiry_policy(on_expiry),
        "max_attempts": max_attempts,
        "retry": None if retry is None else retry_policy(retry),
        "retention_hours": retention_hours,
    }
    changes: dict[str, object] = {column: value for column, value in given.items() if value is not None}
    changes |= _check_terms(check_immunity, check_interval, check_most)
    if not changes:
        fail("give at least one of --kind, --on-expiry, --max-attempts, --retry, --retention-hours and --check-...", 2)
    if kind is not None:
        _check_kind(kind)
    with store(config, database_url, data_dir, reason) as connection:
        before = addresses.kind_of(connection, name)
        if before is not None and kind is not None and (before == "fifo") is not (kind == "fifo"):
            fail(f"--kind: {shown(name)} is of kind {before}; to or from fifo no address changes: make another one")
        if before is None or not addresses.change(connection, name, {**changes, **_kept(retention_hours)}):
            fail(f"there is no address {shown(name)}")
    typer.echo(f"{shown(name)}: {words(changes)}")


def _check_terms(*given: str | None) -> dict[str, int | None]:
    """Return the terms that are given, by their columns."""
    return {
        column: _check_term(option, value, least, most)
        for (option, column, least, most), value in zip(_CHECKS, given, strict=True)
        if value is not None
    }


def _check_term(option: str, text: str, least: int, most: int) -> int | None:
    """Return a term as it is stored: milliseconds, or a number of checks; None: as the settings say."""
    if text == INHERIT:
        return None
    counts = option == "--check-most"
    try:
        value = int(text) if counts else round(float(text) * 1000)
    except (ValueError, OverflowError):
        value = -1
    if not least <= value <= most:
        expected = f"a number from {least} to {most}" if counts else f"seconds from {least / 1000:g} to {most // 1000}"
        fail(f"{option}: expected {expected}, or {INHERIT}, not {text[:40]!r}", 2)
    return value


def _kept(retention_hours: int | None) -> dict[str, int | None]:
    return {"retention_hours": None} if retention_hours == 0 else {}


def _check_kind(kind: str) -> None:
    from typing import get_args

    from coordinator.settings import Kind

    if kind not in get_args(Kind):
        fail(f"--kind: expected {', '.join(get_args(Kind)[:-1])} or {get_args(Kind)[-1]}, not {kind[:40]!r}", 2)


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List the addresses with their messages counted."""
    from coordinator import answers

    lines = asked(answers.all_addresses, config, database_url, data_dir, work="counting")
    print_rows(lines, ("name", "routing", "kind", "origin", "groups", "pending", *_COUNTS), as_json=as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The address.")],
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show one address, its policies and its consumer groups."""
    from coordinator import answers

    detail = asked(answers.one_address, config, database_url, data_dir, work="counting", name=name)
    if as_json:
        print_json(detail)
        return
    groups = detail.pop("groups")
    print_pairs(detail)
    if groups:
        typer.echo()
        print_table(
            [{**group, "group": group["name"] or "(default)"} for group in groups], ("group", "volatile", *_COUNTS)
        )


@app.command()
def purge(
    name: Annotated[str, typer.Argument(help="The address.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first, as it does on a terminal.")] = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Throw away the messages that wait at an address, in all its groups; those that consumers hold stay."""
    from coordinator import acts
    from coordinator.address.addresses import shown

    if sys.stdin.isatty() and not yes:
        typer.confirm(f"Throw away all messages that wait at {shown(name)}?", abort=True)
    purged, finished = 0, False
    while not finished:
        done = asked(acts.purge, config, database_url, data_dir, reason, work="long", name=name)
        purged, finished = purged + done["purged"], done["finished"]
    left = f"left {done['held']} that are held by consumers or on their way to the dead letters"
    typer.echo(f"purged {purged}, {left}")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The address.")],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Remove it even if it has messages, which are lost, or groups that last. Undecided transactions that "
            "posted to it are rolled back.",
        ),
    ] = False,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Remove an address; links to it end with amqp:resource-deleted."""
    from coordinator.address.addresses import shown
    from store import removal
    from store.errors import Locked

    with store(config, database_url, data_dir, reason, work="long") as connection:
        try:
            done = removal.remove(connection, name, force=force)
        except Locked:
            fail(f"{shown(name)}: a transaction that posts there has been committing for 10 s; try again later")
    if done is None:
        fail(f"there is no address {shown(name)}")
    if not done.removed:
        because = []
        if done.waiting:
            because.append("has messages that are not consumed (coordinator address show counts them)")
        if done.undecided:
            because.append("has messages of undecided transactions (coordinator transaction list has them)")
        if done.groups:
            because.append(f"has consumer groups that last: {', '.join(map(shown, done.groups))}")
        fail(f"the address {shown(name)} {' and '.join(because)}; --force removes it with them")
    lost = [f"with {done.dropped} messages"] if done.dropped else []
    lost += [f"{done.rolled_back} transactions are rolled back"] if done.rolled_back else []
    typer.echo(", ".join([f"removed {shown(name)}", *lost]))
