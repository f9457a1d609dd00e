"""The load generator as a child process: ``load.c`` beside this file, compiled when it is newer than its program."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("load.c")
REPOSITORY = SOURCE.parents[2]
FOLDER = REPOSITORY / "build" / "bench"
PROGRAM = FOLDER / "load"

#: The load generator in C, or a program that takes its flags and prints what it prints.
Program = Sequence[str]
IN_C: Program = (str(PROGRAM),)

_COMPILE = ("-O2", "-std=gnu11", "-Wall", "-Wextra")


class GeneratorFailed(Exception):
    """The generator could not do its work; the message is what it said."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the generator saw between "start" and "end"."""

    messages: int
    seconds: float
    #: From the first to the last, before "start" too.
    total: int
    #: It ended because ``messages`` were committed, before its time.
    limited: bool
    cpu_seconds: float
    #: Transactions whose commit was timed; the two below mean nothing when it is 0.
    latencies: int
    p50_us: float
    p99_us: float
    #: Deliveries to the consumer that got the fewest, and the most, while it was measured.
    least: int = 0
    most: int = 0


def build() -> None:
    """Compile the generator, unless that was done since its source changed.

    :raises GeneratorFailed: when there is no C compiler, or it refuses.
    """
    if PROGRAM.exists() and PROGRAM.stat().st_mtime_ns >= SOURCE.stat().st_mtime_ns:
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise GeneratorFailed("the load generator needs a C compiler (cc): install gcc or clang")
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [compiler, *_COMPILE, "-o", str(PROGRAM), str(SOURCE)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise GeneratorFailed(f"{SOURCE.name} does not compile: {done.stderr.strip()}")


def take_all_descriptors() -> None:
    """As many as this process may have: of the generator and the servers that it starts from then on, too."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _nothing() -> None:
    pass


def run(
    mode: str,
    port: int,
    *flags: str,
    program: Program = IN_C,
    started: Callable[[], None] = _nothing,
    ended: Callable[[], None] = _nothing,
) -> Load:
    """Put a load on the server at ``port`` of the loopback interface; the flags are those of ``load.c``.

    ``started`` is called when the measured time begins, ``ended`` when it is over (connections still stand).

    :raises GeneratorFailed: with what the peer said, or whatever else went wrong.
    """
    process = subprocess.Popen(
        [*program, mode, f"--port={port}", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            result = ""
            for line in process.stdout:
                if line == "start\n":
                    started()
                elif line == "end\n":
                    ended()
                else:
                    result = line
            said = process.stderr.read()
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status != 0 or not result:
        raise GeneratorFailed(said.strip() or f"the load generator ended with status {status}")
    return Load(**json.loads(result))
