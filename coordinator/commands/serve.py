"""``coordinator serve``."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.administration import Config, fail, named_folder, settings

if TYPE_CHECKING:
    from coordinator.settings import Settings


def serve(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Where clients connect, amqp://host:port, or amqps:// with TLS; ws:// and wss:// over WebSockets. May "
            "be repeated. Port 0: a free one. "
            "postgresql://127.0.0.1:port: where applications reach its own server in SQL. "
            "Default: amqp://127.0.0.1:5672.",
        ),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A PostgreSQL server, postgresql://...; a password is better in the environment, the settings file or "
            "~/.pgpass. Default: a server of its own in the data folder.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=named_folder,
            help="The data folder of its own server. Default: /var/lib/coordinator for root, else "
            "$XDG_STATE_HOME/coordinator.",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Processes that share the port. Default: 1.")] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. Default: info.")
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="auto (console on a terminal, else json), console or json. Default: auto."),
    ] = None,
    config: Config = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C.

    Settings are taken from these flags, then COORDINATOR_... in the environment, then the settings file. Exit status:
    0 told to stop; 1 it could not start now (the store is away, another process has the port or the data folder); 2 it
    cannot work like this (a setting, the schema, a password).
    """
    log = {name: value for name, value in (("level", log_level), ("format", log_format)) if value is not None}
    checked = settings(
        config,
        listen=listen or None,
        database_url=database_url,
        data_dir=data_dir,
        workers=workers,
        log=log or None,
    )
    if data_dir is not None and checked.database_url is not None:
        fail("--data-dir: a database URL is given too, and then there is no server of its own; leave one out", 2)
    raise typer.Exit(_run(checked))


def _run(checked: Settings) -> int:
    from coordinator.commands.maintenance import maintenance
    from coordinator.commands.metrics import measure
    from coordinator.commands.recover import recover
    from coordinator.commands.token_keys import read_token_keys
    from coordinator.commands.worker import work
    from coordinator.process import logs, privileges
    from coordinator.process.children import Programs
    from coordinator.process.supervisor import Supervisor

    if checked.metrics.listen is not None:
        # In memory that all processes share, this costs half of what the one that needs it would copy to load it.
        import coordinator.http.application
        import coordinator.http.server

    if checked.tokens.issuer is not None:
        # Likewise; where it is not installed, the command says so.
        import coordinator.login.bearer

    if checked.traces.endpoint is not None:
        import coordinator.traces  # noqa: F401

    logs.configure(checked.log)
    # a dump of a process, or of its PostgreSQL, would have messages and passwords in it (S8)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        privileges.become(checked.run_as)
    except privileges.CannotBecome as error:
        fail(str(error), 2)
    programs = Programs(
        worker=work, recovery=recover, maintenance=maintenance, metrics=measure, token_keys=read_token_keys
    )
    return Supervisor(checked, programs).run()
