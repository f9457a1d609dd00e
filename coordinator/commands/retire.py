"""``coordinator message retire``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    asked,
    fail,
    print_json,
)
from coordinator.commands.group import Name


def retire(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The number of a message in the store, as message show has it.")
    ],
    group: Name,
    accepted: Annotated[
        bool, typer.Option("--accepted", help="As if a consumer had accepted it: its work was done by hand.")
    ] = False,
    dead_letter: Annotated[
        bool, typer.Option("--dead-letter", help="To the group's dead letters, with the reason.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say whether that can be done, and do nothing.")] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why: needed, and kept in the audit, and by a dead letter.")
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Take one message out of one group, while its consumers run; also one that is to be delivered later.

    The first decision wins: one that a consumer has, a transaction has retired, or that has come to its end stays as it
    is, and the error says so (exit status 1).
    """
    if accepted == dead_letter:
        fail("give one of --accepted and --dead-letter", 2)
    from coordinator import acts
    from coordinator.address.addresses import shown

    outcome = "accepted" if accepted else "dead-letter"
    wanted = {"half_id": message, "group": group, "outcome": outcome, "dry_run": dry_run}
    done = asked(acts.retire, config, database_url, data_dir, reason, work="counting", **wanted)  # type: ignore[arg-type]
    if as_json:
        print_json(done)
        return
    became = "accepted" if accepted else "to the dead letters"
    can = "is" if done["done"] else "can be"
    typer.echo(f"message {done['half_id']} of {shown(group)}, which was {done['was']}, {can} retired: {became}")
