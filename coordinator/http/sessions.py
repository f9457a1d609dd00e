"""Sessions are operators' logins to the console: a browser shows a cookie in place of the token (S11)."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

#: How long a session lasts.
SECONDS = 8 * 3600.0
#: The most sessions: another one ends the oldest.
MOST = 64


@dataclass(frozen=True)
class Session:
    """``token``: the one that was shown, which each request is checked for anew. ``cookie`` and ``form`` cannot be
    guessed: the browser shows the first with each request, and its pages show the second with what they send.
    """

    token: bytes
    cookie: str = field(default_factory=secrets.token_urlsafe)
    form: str = field(default_factory=secrets.token_urlsafe)
    ends: float = field(default_factory=lambda: time.monotonic() + SECONDS)


class Sessions:
    """Has the sessions of this process, which end with it. Not for several threads."""

    def __init__(self) -> None:
        #: by cookie, the oldest first
        self._open: dict[str, Session] = {}

    def begin(self, token: bytes) -> Session:
        session = Session(token)
        self._open[session.cookie] = session
        if len(self._open) > MOST:
            self.end(next(iter(self._open.values())))
        return session

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None: there is none, or it has ended."""
        session = self._open.get(cookie)
        if session is None or time.monotonic() < session.ends:
            return session
        self.end(session)
        return None

    def end(self, session: Session) -> None:
        self._open.pop(session.cookie, None)
