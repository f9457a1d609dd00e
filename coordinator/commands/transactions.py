"""``coordinator transaction list | resolve | resume``; :mod:`coordinator.commands.history` has ``show``."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

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
    print_rows,
)

_COLUMNS = (
    *("txn_id", "age_seconds", "state", "owner", "posted", "retired", "instance_id", "timeout_at"),
    *("producer_group", "checks", "next_check_at", "waits_seconds"),
)

TxnId = Annotated[
    str, typer.Argument(metavar="TXN-ID", help="32 hexadecimal digits, with or without dashes; as the client has it.")
]


def read_txn_id(value: str) -> UUID:
    """Return the txn-id that the argument stands for; ends the command if it is none."""
    from coordinator import answers

    try:
        return answers.txn_id_of(value)
    except answers.Malformed as error:
        fail(str(error), 2)


def list_(
    as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None, config: Config = None
) -> None:
    """List the undecided transactions, oldest first: age, owner, and for how long one waits for a checker."""
    from coordinator import answers

    lines = asked(answers.all_undecided, config, database_url, data_dir)
    print_rows(lines, _COLUMNS, as_json=as_json)


def resolve(
    txn_id: TxnId,
    commit: Annotated[bool, typer.Option("--commit", help="Commit it.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="Roll it back.")] = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why: needed, and kept with the decision.")] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Decide an undecided transaction by hand. The first decision wins, by hand or by the client."""
    wanted = read_txn_id(txn_id)
    if commit == rollback:
        fail("give one of --commit and --rollback", 2)
    if reason is None:
        fail("--reason is needed: say why, which is kept with the decision", 2)
    from coordinator import acts

    decision = "commit" if commit else "rollback"
    decided = asked(acts.resolve, config, database_url, data_dir, reason, txn_id=str(wanted), decision=decision)
    if as_json:
        print_json(decided)
    else:
        typer.echo(f"transaction {wanted} is {'committed' if commit else 'rolled back'}")


def resume(
    txn_id: TxnId,
    reason: Reason = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Ask checkers about an undecided transaction again, from the first check on."""
    wanted = read_txn_id(txn_id)
    from coordinator import acts

    done = asked(acts.resume, config, database_url, data_dir, reason, txn_id=str(wanted))
    until = "" if done["due"] else ", once its client has left it, or its time is over"
    typer.echo(f"transaction {wanted} is checked again from the first check on{until}")
