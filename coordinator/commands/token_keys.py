"""The supervisor runs this child, which reads the public keys of the issuer of tokens again and again (S13)."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

import structlog

from coordinator.process import logs
from coordinator.secret_file import FileInvalid
from store import token_keys
from store.database import BRIEF, connected
from store.errors import StoreError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from coordinator.login.tokens import Keys
    from coordinator.process.children import Handed

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: Seconds from one read to the next; after a failure.
EVERY_SECONDS = 300.0
RETRY_SECONDS = 10.0
#: Seconds between two reads, however often a token has a key that is not known.
FEWEST_SECONDS = 10.0


class _Reading:
    """Reads the keys: of the issuer, or of the file in the settings. The last good ones stay until there are others."""

    def __init__(self, handed: Handed) -> None:
        self._handed = handed
        self._keys: Keys | None = handed.token_keys
        self._failed = ""
        self._kept: Keys | None = None

    def run(self) -> None:
        """Return when the supervisor has ended."""
        supervising = self._handed.supervising
        if self._keys is None:
            self._tell(self._from_store())
        while True:
            began = time.monotonic()
            pause = EVERY_SECONDS if self._read() else RETRY_SECONDS
            while (left := began + pause - time.monotonic()) > 0:
                readable, _, _ = select.select([supervising], [], [], left)
                if readable:
                    if not supervising.receive():
                        return
                    if time.monotonic() - began >= FEWEST_SECONDS:
                        break
                    self._tell(self._keys)  # it was just read: who waits for it goes on

    def _read(self) -> bool:
        """Read the keys, and tell them; whether that was possible."""
        from coordinator.process.issuer import IssuerSilent, current_keys

        settings = self._handed.settings.tokens
        try:
            keys = current_keys(settings)
        except (IssuerSilent, FileInvalid) as error:
            if str(error) != self._failed:
                self._failed = str(error)
                left = (
                    "none are known, and no client logs in by a token" if self._keys is None else "the last ones count"
                )
                _log.warning(f"the keys of the issuer of tokens are not read: {left}", reason=self._failed)
            self._tell(self._keys)
            return False
        if self._failed or keys != self._keys:
            _log.info("keys of the issuer of tokens read", issuer=settings.issuer, keys=len(keys))
        self._failed = ""
        self._tell(keys)
        if settings.keys is None:
            self._keep(keys)
        return True

    def _tell(self, keys: Keys | None) -> None:
        if keys is not None:
            self._keys = keys
            self._handed.supervising.send(token_keys=list(keys))

    def _store(self) -> AbstractContextManager[Connection]:
        return connected(self._handed.database_url, application_name="coordinator keys", patience=BRIEF)

    def _from_store(self) -> Keys | None:
        settings = self._handed.settings.tokens
        try:
            with self._store() as connection:
                self._kept = token_keys.read(connection, settings.issuer or "")
        except StoreError as error:
            _log.warning("the last keys of the issuer of tokens are not in reach", reason=str(error))
        return self._kept

    def _keep(self, keys: Keys) -> None:
        """Keep them for starts at which the issuer does not answer. What fails is done with the next read."""
        if keys == self._kept:
            return
        issuer = self._handed.settings.tokens.issuer or ""
        try:
            with self._store() as connection:
                token_keys.keep(connection, issuer, keys)
            self._kept = keys
        except StoreError as error:
            _log.warning("the keys of the issuer of tokens are not kept in the store yet", reason=str(error))


def read_token_keys(handed: Handed) -> int:
    """Read keys until the supervisor ends. It may be killed at any time."""
    logs.configure(handed.settings.log, process="issuer")
    _Reading(handed).run()
    return 0
