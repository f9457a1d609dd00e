"""The command line is the composition root; each command imports its modules when it runs."""

from __future__ import annotations

import atexit
import gc
from pathlib import Path
from typing import Annotated

from coordinator.extras import end

try:
    import typer

    from coordinator.commands.address import app as address
    from coordinator.commands.administration import ask_at, fail
    from coordinator.commands.archive import app as archive
    from coordinator.commands.audit import audit
    from coordinator.commands.check import check
    from coordinator.commands.connection import app as connection
    from coordinator.commands.dead_letters import app as dead_letters
    from coordinator.commands.findings import app as findings
    from coordinator.commands.group import app as group
    from coordinator.commands.history import messages, show_transaction
    from coordinator.commands.maintain import maintain
    from coordinator.commands.migrate import migrate
    from coordinator.commands.permissions import app as permission
    from coordinator.commands.reconcile import reconcile
    from coordinator.commands.repair import repair
    from coordinator.commands.retire import retire
    from coordinator.commands.role import app as role
    from coordinator.commands.schedule import app as schedule
    from coordinator.commands.seek import seek
    from coordinator.commands.serve import serve
    from coordinator.commands.sql import sql
    from coordinator.commands.transactions import list_ as list_transactions
    from coordinator.commands.transactions import resolve, resume
    from coordinator.commands.user import app as user
    from coordinator.commands.watch_outcomes import watch_outcomes
    from coordinator.standard_output import checked
except ModuleNotFoundError as error:
    end(error)

app = typer.Typer(
    name="coordinator",
    help="A transaction coordinator for AMQP 1.0 clients.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    # Its tracebacks show local variables, and those hold secrets.
    pretty_exceptions_enable=False,
)

transaction = typer.Typer(
    help="Look at transactions, and decide those that their clients have left.", no_args_is_help=True
)
transaction.command("list")(list_transactions)
transaction.command("show")(show_transaction)
transaction.command()(resolve)
transaction.command()(resume)


def _version(wanted: bool) -> None:
    if wanted:
        from coordinator.version import VERSION
        from store.compiled import what_runs

        typer.echo(f"coordinator {VERSION}, {what_runs()}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version and what runs, compiled or in Python, and exit.",
        ),
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Have the API of a service answer in place of the store: https://host:port, or http://localhost:port.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --url: the file with the token of an operator. Default: COORDINATOR_TOKEN of the environment.",
        ),
    ] = None,
) -> None:
    if url is not None:
        ask_at(url, token_file)
    elif token_file is not None:
        fail("--token-file: give --url, too", 2)


app.command()(serve)
app.command()(migrate)
app.command()(sql)
app.add_typer(address, name="address")
group.command()(seek)
messages.command()(retire)
app.add_typer(group, name="group")
app.add_typer(transaction, name="transaction")
app.add_typer(connection, name="connection")
app.add_typer(messages, name="message")
app.add_typer(schedule, name="schedule")
app.add_typer(permission, name="permission")
app.add_typer(role, name="role")
app.command()(maintain)
app.command()(audit)
app.add_typer(user, name="user")
app.add_typer(dead_letters, name="dead-letters")
app.command()(check)
app.command()(reconcile)
app.command("watch")(watch_outcomes)
app.add_typer(findings, name="findings")
app.command()(repair)
app.add_typer(archive, name="archive")


def main() -> None:
    # or Python looks through all that there is for garbage before it ends: half a second of a reconciliation
    atexit.register(gc.freeze)
    with checked():
        try:
            app(prog_name="coordinator")
        except ModuleNotFoundError as error:
            end(error)


if __name__ == "__main__":
    main()
