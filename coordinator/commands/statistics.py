"""``coordinator groups`` and ``stats``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

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

_POLICIES = ("on_expiry", "max_attempts", "retry", "own_policies")


def groups(
    address: Annotated[str | None, typer.Argument(help="Those of this address; all without it.")] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List the consumer groups with their messages counted, and their policies: their own, or the address's."""
    from coordinator.address.addresses import shown
    from store import addresses

    with store(config, database_url, data_dir, work="counting") as connection:
        if address is not None and addresses.kind_of(connection, address) is None:
            fail(f"there is no address {shown(address)}")
        lines = [asdict(group) for group in addresses.all_groups(connection, address)]
    for line in lines:
        line["group"] = line.pop("name")
        line.update(line.pop("counts"))
    if as_json:
        print_json(lines)
    else:
        print_table(
            [{**line, "group": line["group"] or "(default)", "moved": _moved(line["seek"])} for line in lines],
            (*("address", "group", "volatile"), *addresses.STATES, *_POLICIES, "moved"),
        )


def _moved(seek: dict[str, Any] | None) -> str | None:
    """Where the group was moved to last, and how many messages that concerned."""
    from store.ids import moment_of

    if seek is None:
        return None
    place = moment_of(seek["to_id"]).isoformat(sep=" ", timespec="seconds")
    state = "" if seek["ended_at"] else " (not finished)"
    return f"{'back' if seek['back'] else 'forth'} to {place}: {seek['moved']}{state}"


def stats(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """Print the store in figures: instances, addresses, messages by state, undecided transactions, what is kept."""
    from store import stats as figures

    with store(config, database_url, data_dir, work="counting") as connection:
        found = asdict(figures.look(connection))
    found.update(found.pop("counts"))
    if as_json:
        print_json(found)
    else:
        print_pairs(found)
