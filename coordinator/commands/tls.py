"""``coordinator tls self-signed``."""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.administration import fail, named_folder

app = typer.Typer(help="Certificates for TLS.", no_args_is_help=True)

#: What a name may be made of: it becomes a part of one of openssl's arguments.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")


@app.callback()
def _tls() -> None:
    pass


@app.command("self-signed")
def self_signed(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", parser=named_folder, help="Where server.pem and server.key are written.")
    ],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A name or address of the service; repeat it. Default: localhost."),
    ] = None,
    days: Annotated[int, typer.Option(metavar="N", min=1, max=825, help="How long it is valid.")] = 30,
) -> None:
    """Make a certificate that signs itself, with its key, to try TLS with; clients have to trust it by name."""
    names = hosts or ["localhost", "127.0.0.1"]
    for each in names:
        if not _is_address(each) and _NAME.fullmatch(each) is None:
            fail(f"--host: expected a name or an address, not {each!r}", 2)
    certificate, key = folder / "server.pem", folder / "server.key"
    for path in (certificate, key):
        if path.exists():
            fail(f"{path} is there already")
    alternatives = ",".join(f"{'IP' if _is_address(each) else 'DNS'}:{each}" for each in names)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", str(days), "-subj", f"/CN={names[0]}", "-addext", f"subjectAltName={alternatives}"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # the key is there before anything is written to it
        os.close(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        key.unlink(missing_ok=True)
        fail("openssl is not there: install it")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    if done.returncode != 0:
        key.unlink(missing_ok=True)
        fail(f"openssl: {done.stderr.strip().splitlines()[-1]}")
    typer.echo(f'certificate = "{certificate}"')
    typer.echo(f'key = "{key}"')


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # of a zone, which may be any text
