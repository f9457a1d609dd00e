"""The standard output of a command, which may be a file on a disk that fills up."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

#: 1 says something of what a command looked for.
_STATUS = 2


class _StandardOutput(io.TextIOWrapper):
    """Ends the command with a line where it cannot be written. A pipe whose reader has ended is no error."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._end(error)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> NoReturn:
        # what is left in the buffer goes nowhere, or Python would fail once more at its end
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        with suppress(OSError):  # it may be the same file
            os.write(2, f"error: standard output: {error.strerror}\n".encode())
        raise SystemExit(_STATUS)


@contextmanager
def checked() -> Iterator[None]:
    """A block that writes to the standard output; at its end all is written.

    :raises SystemExit: it cannot be written; the standard error says why.
    """
    given: Any = sys.stdout
    if given is None:  # closed by what has started the command, which wants to read nothing
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if isinstance(given, io.TextIOWrapper):
        sys.stdout = _StandardOutput(
            given.buffer,
            encoding=given.encoding,
            errors=given.errors,
            newline="\n",
            line_buffering=given.line_buffering,
            write_through=given.write_through,
        )
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
