"""Why the embedded server cannot run, or cannot be reached."""

from __future__ import annotations


class EmbeddedError(Exception):
    """The embedded server cannot run; the message says what is wrong, where, and what to do."""


class DataFolderUnusable(EmbeddedError):
    """The data folder cannot be made, entered or written."""


class DataFolderInUse(EmbeddedError):
    """Another live service (or its server) uses the data folder."""


class WrongVersion(EmbeddedError):
    """The data folder was made by a major version that is not here."""


class BinariesMissing(EmbeddedError):
    """No PostgreSQL programs were found."""


class ServerFailed(EmbeddedError):
    """``initdb`` or ``postgres`` failed; the message has the last lines of the log."""


class NotRunning(EmbeddedError):
    """No server that takes connections runs in the data folder."""


class StartCancelled(EmbeddedError):
    """The service was told to stop before the server was up."""
