"""``coordinator address add | set | list | show | remove``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    fail,
    print_json,
    print_pairs,
    print_table,
    store,
)

RetentionHours = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=876_000,
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
        max=32767,
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

app = typer.Typer(help="Make addresses and look at them.", no_args_is_help=True)

_COUNTS = ("ready", "inflight", "scheduled", "failed")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="1 to 1024 characters of printable text.")],
    topic: Annotated[
        bool, typer.Option("--topic", help="Each subscription gets every message; without it, consumers share them.")
    ] = False,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="normal; transaction: for posts in transactions, "
            "which it makes checkable; or fifo: order and one consumer at a time by group-id.",
        ),
    ] = "normal",
    on_expiry: OnExpiry = None,
    max_attempts: MaxAttempts = None,
    retry: RetryPolicy = None,
    retention_hours: RetentionHours = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Make an address."""
    from coordinator.address.addresses import AddressInvalid, check_name, shown
    from store import addresses
    from store.errors import AddressExists

    try:
        check_name(name)
    except AddressInvalid as error:
        fail(str(error), 2)
    if kind not in ("normal", "transaction", "fifo"):
        fail(f"--kind: expected normal, transaction or fifo, not {kind[:40]!r}", 2)
    retry = _check_policies(kind, on_expiry, retry)
    with store(config, database_url, data_dir) as connection:
        try:
            addresses.add(
                connection,
                name=name,
                routing="topic" if topic else "queue",
                kind=kind,
                on_expiry=on_expiry or "drop",
                max_attempts=max_attempts or 16,
                retry=retry,
                retention_hours=retention_hours,
            )
        except AddressExists:
            fail(f"there is an address {shown(name)} already")
    typer.echo(f"made the {'topic' if topic else 'queue'} {shown(name)}")


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="The address.")],
    on_expiry: OnExpiry = None,
    max_attempts: MaxAttempts = None,
    retry: RetryPolicy = None,
    retention_hours: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=876_000, help="How long messages are kept once consumed; 0: as the settings say."
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Change policies of an address, while the service runs: they count for outcomes from then on."""
    from coordinator.address.addresses import shown
    from store import addresses

    given = {"on_expiry": on_expiry, "max_attempts": max_attempts, "retry": retry, "retention_hours": retention_hours}
    changes = {column: value for column, value in given.items() if value is not None}
    if not changes:
        fail("give at least one of --on-expiry, --max-attempts, --retry and --retention-hours", 2)
    with store(config, database_url, data_dir) as connection:
        kind = addresses.kind_of(connection, name)
        policy = _check_policies(kind, on_expiry, retry)
        if retry is not None:
            changes["retry"] = policy
        if kind is None or not addresses.change(connection, name, {**changes, **_kept(retention_hours)}):
            fail(f"there is no address {shown(name)}")
    typer.echo(f"{shown(name)}: " + ", ".join(f"{column} {value}" for column, value in changes.items()))


def _kept(retention_hours: int | None) -> dict[str, int | None]:
    return {"retention_hours": None} if retention_hours == 0 else {}


def _check_policies(kind: str | None, on_expiry: str | None, retry: str | None) -> str:
    """The retry policy as it is stored."""
    from coordinator.retries import NOT_IN_ORDER, RetryInvalid, parse

    if on_expiry not in ("drop", "dead-letter", None):
        fail(f"--on-expiry: expected drop or dead-letter, not {on_expiry[:40]!r}", 2)
    try:
        policy = parse(retry or "immediate")
    except RetryInvalid as error:
        fail(f"--retry: {error}", 2)
    if policy.first and kind == "fifo":
        fail(f"--retry: {NOT_IN_ORDER}", 2)
    return policy.text


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List the addresses with their messages counted."""
    from store import addresses

    with store(config, database_url, data_dir) as connection:
        lines = [asdict(line) for line in addresses.all_addresses(connection)]
    for line in lines:
        line.update(line.pop("counts"))
    if as_json:
        print_json(lines)
    else:
        print_table(lines, ("name", "routing", "kind", "origin", "groups", "pending", *_COUNTS))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The address.")],
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Show one address, its policies and its consumer groups."""
    from coordinator.address.addresses import shown
    from store import addresses

    with store(config, database_url, data_dir) as connection:
        found = addresses.one_address(connection, name)
    if found is None:
        fail(f"there is no address {shown(name)}")
    detail = asdict(found)
    detail.update(detail.pop("counts"))
    for group in detail["groups"]:
        del group["address"]
        group.update(group.pop("counts"))
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
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Remove an address; links to it end with amqp:resource-deleted."""
    from coordinator.address.addresses import shown
    from store import removal

    with store(config, database_url, data_dir) as connection:
        done = removal.remove(connection, name, force=force)
    if done is None:
        fail(f"there is no address {shown(name)}")
    if not done.removed:
        because = []
        if done.waiting:
            because.append("has messages that are not consumed (coordinator address show counts them)")
        if done.undecided:
            because.append("has messages of undecided transactions (coordinator transactions lists them)")
        if done.groups:
            because.append(f"has consumer groups that last: {', '.join(map(shown, done.groups))}")
        fail(f"the address {shown(name)} {' and '.join(because)}; --force removes it with them")
    lost = [f"with {done.dropped} messages"] if done.dropped else []
    lost += [f"{done.rolled_back} transactions are rolled back"] if done.rolled_back else []
    typer.echo(", ".join([f"removed {shown(name)}", *lost]))
