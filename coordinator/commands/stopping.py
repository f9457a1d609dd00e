"""Stop a command on a signal: it prints one word, and ends with a status of its own."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from coordinator.commands.administration import fail

_AGAIN_SECONDS = 0.01


@contextmanager
def stopped_by_name() -> Iterator[None]:
    """The first of :data:`spark.java.SIGNALS` ends the command with 128 and its number, as 1 would mean findings;
    what comes after it, while things are put away, is ignored. What was ignored before stays so (``nohup``).
    """
    from spark.java import SIGNALS

    stop = _Stop()
    tell = sys.unraisablehook
    sys.unraisablehook = stop.unraised
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt:
        # up to the end of the process
        for number in taken:
            signal.signal(number, signal.SIG_IGN)
        came = signal.Signals(stop.number or signal.SIGINT)
        fail("interrupted" if came == signal.SIGINT else f"interrupted by {came.name}", 128 + came)
    else:
        for number, handler in taken.items():
            signal.signal(number, handler)
    finally:
        sys.unraisablehook = tell


class _Stop:
    """Handles signals; ``number`` is that of the one which stopped the command."""

    def __init__(self) -> None:
        self.number: int | None = None
        #: what is raised now is forgotten
        self._reporting = False
        #: the one that comes again has come
        self._raised = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        stops = self.number is None and not self._reporting
        if stops:
            self.number = number
        self._raised = True
        if stops:
            raise KeyboardInterrupt

    def unraised(self, what: sys.UnraisableHookArgs) -> None:
        """Python prints, and then forgets, what is raised while it calls back for an object that is gone, as Py4J
        has it do for each of Java's: a signal that comes just then comes again a moment later, until it has stopped
        the command.
        """
        if not isinstance(what.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(what)
            return
        self._reporting = True
        number, self.number = self.number or signal.SIGINT, None
        threading.Thread(target=self._raise_again, args=(number,), daemon=True).start()
        self._reporting = False

    def _raise_again(self, number: int) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while self.number is None:
            time.sleep(_AGAIN_SECONDS)
            self._raised = False
            signal.pthread_kill(main, number)
            # one at a time: what comes after the command has ended would end the process
            while not self._raised and self.number is None:
                time.sleep(_AGAIN_SECONDS)
