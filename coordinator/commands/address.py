"""``coordinator address add | set | list | show | purge | remove``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from coordinator.changes import MOST_ATTEMPTS, MOST_RETENTION_HOURS
from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    Reason,
    asked,
    print_counted,
    print_json,
    print_pairs,
)

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
    from coordinator import changes
    from coordinator.address.addresses import shown

    made = asked(
        changes.add_address,
        config,
        database_url,
        data_dir,
        reason,
        name=name,
        topic=topic,
        kind=kind,
        on_expiry=on_expiry or "drop",
        max_attempts=max_attempts or 16,
        retry=retry or "immediate",
        retention_hours=retention_hours,
    )
    typer.echo(f"made the {made['routing']} {shown(name)}")


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
    from coordinator import changes
    from coordinator.address.addresses import shown

    done = asked(
        changes.set_address,
        config,
        database_url,
        data_dir,
        reason,
        name=name,
        kind=kind,
        on_expiry=on_expiry,
        max_attempts=max_attempts,
        retry=retry,
        retention_hours=retention_hours,
        check_immunity=check_immunity,
        check_interval=check_interval,
        check_most=check_most,
    )
    typer.echo(f"{shown(name)}: {changes.words(done)}")


@app.command("list")
def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List the addresses with their messages counted."""
    from coordinator import answers
    from store.counts import STATES

    lines = asked(answers.all_addresses, config, database_url, data_dir)
    if as_json:
        print_json(lines)
    else:
        print_counted(lines, ("name", "routing", "kind", "origin", "groups", "pending", *STATES))


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
    from store.counts import STATES

    detail = asked(answers.one_address, config, database_url, data_dir, name=name)
    if as_json:
        print_json(detail)
        return
    groups = [{**group, "group": group["group"] or "(default)"} for group in detail.pop("groups")]
    more_groups = detail.pop("more_groups")
    detail |= {state: detail.pop(state) for state in STATES}  # behind what the address is
    if (more := answers.about(detail.pop("more"))) is not None:
        detail["more"] = more
    print_pairs(detail)
    if groups:
        typer.echo()
        print_counted(groups, ("group", "volatile", *STATES))
    if more_groups:
        typer.echo(f"\nand {more_groups} more groups: coordinator group list has all")


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
    purged = 0
    rest: dict[str, Any] | None = {}
    while rest is not None:
        done = asked(acts.purge, config, database_url, data_dir, reason, work="long", name=name, **rest)
        purged, rest = purged + done["purged"], done["next"]
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
    from coordinator import changes
    from coordinator.address.addresses import shown

    done = asked(changes.remove_address, config, database_url, data_dir, reason, work="long", name=name, force=force)
    lost = [f"with {done['dropped']} messages"] if done["dropped"] else []
    lost += [f"{done['rolled_back']} transactions are rolled back"] if done["rolled_back"] else []
    typer.echo(", ".join([f"removed {shown(name)}", *lost]))
