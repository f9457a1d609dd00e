"""Standard output of a command may be a file on a disk that fills up; this module reports its errors."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

#: the exit status of a failure; 1 is a result of some commands
_STATUS = 2


class _StandardOutput(io.TextIOWrapper):
    """Ends the command with an error line if a write fails. A pipe whose reader has ended is not an error."""

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
        # discard the rest of the buffer, or Python would fail once more at its end
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        with suppress(OSError):  # the standard error may be the same file
            os.write(2, f"error: standard output: {error.strerror}\n".encode())
        raise SystemExit(_STATUS)


@contextmanager
def checked() -> Iterator[None]:
    """Run a block that writes to the standard output, and flush it at the end.

    :raises SystemExit: it cannot be written; the standard error says why.
    """
    given: Any = sys.stdout
    if given is None:  # closed by the process that has started the command, which reads no output
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
