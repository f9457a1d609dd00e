"""Report that a command waits for locks, and who holds them, while it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from store.database import BRIEF, connected
from store.errors import StoreError
from store.locks import held_up

#: between looks; and what has waited for less is not told
_LOOK_SECONDS = 5.0
_LONG_SECONDS = 2.0


@contextmanager
def reporting(url: str, session: str, report: Callable[[str], None]) -> Iterator[None]:
    """While a statement of the block waits, call ``report``, in another thread, and again when others hold it up.
    ``session``: the name under which it connects.
    """
    ended = Event()

    def watch() -> None:
        said = ""
        while not ended.wait(_LOOK_SECONDS):
            try:
                with connected(url, application_name="coordinator command", patience=BRIEF) as connection:
                    found = held_up(connection, session, _LONG_SECONDS)
            except StoreError:  # the block finds out for itself
                continue
            text = f"waiting for a lock ({found.of_what}), held by {found.by}" if found.by else ""
            if text and text != said and not ended.is_set():
                report(text)
            said = text

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1)
