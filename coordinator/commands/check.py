"""``coordinator check``."""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.commands.administration import (
    Config,
    DatabaseUrl,
    DataDir,
    Json,
    by_api,
    database_of,
    print_json,
    print_pairs,
    settings,
)


def check(
    as_json: Json = False,
    fewest_free: Annotated[
        int,
        typer.Option(
            metavar="PERCENT", min=0, max=100, help="The least free space on the disk of a server on this machine."
        ),
    ] = 10,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Say whether the service needs an operator. Of the settings it looks at limits.disk_free_bytes.

    Exit status: 0 all is well, 1 something is wrong (the last lines say what), 2 the store cannot be read.
    """
    from coordinator import answers
    from store import health
    from store.database import BRIEF, connected
    from store.errors import StoreError

    told = by_api(answers.checked, 2, fewest_free=fewest_free)
    if told is None:
        try:
            read = settings(config, database_url=database_url, data_dir=data_dir)
            url = database_of(read, database_url, data_dir, 2)
            with connected(url, application_name="coordinator command", patience=BRIEF) as connection:
                found = health.read(connection)
        except StoreError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        told = answers.checked(found, fewest_free=fewest_free, least_bytes=read.limits.disk_free_bytes)
    if as_json:
        print_json(told)
    wrong = told.pop("wrong")
    if not as_json:
        disk = {} if told["free_bytes"] is not None else dict.fromkeys(("free_percent", "free_bytes"), "not looked at")
        print_pairs({**told, **disk})
        for line in wrong:
            typer.echo(f"wrong: {line}")
    if wrong:
        raise typer.Exit(1)
