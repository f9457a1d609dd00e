"""The issuer of tokens is asked for its public keys by OpenID Connect Discovery: where they are, and for them (S13)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from coordinator.login.tokens import Keys, KeysInvalid, read_file, read_keys
from coordinator.settings import is_safe_url

if TYPE_CHECKING:
    from coordinator.settings import TokenSettings

#: Seconds for both requests together.
_SECONDS = 15.0
_MOST_OCTETS = 1 << 18


class IssuerSilent(Exception):
    """The keys could not be read; the message says where and why."""


class _NoRedirects(HTTPRedirectHandler):
    """The place of the keys is what the issuer says, and nothing that a redirect says."""

    def redirect_request(self, *_: object) -> None:
        return None


def current_keys(settings: TokenSettings) -> Keys:
    """Return the keys that the issuer has now, or those in the file of the settings.

    :raises IssuerSilent: it does not answer in time, or says something else.
    :raises FileInvalid: the file cannot be read, or has no keys.
    """
    if settings.keys is not None:
        return read_file(settings.keys)
    try:
        with _in_time():
            return _published(settings)
    except TimeoutError:
        raise IssuerSilent(f"{settings.configuration_url}: no keys in {_SECONDS:g} s") from None


def _published(settings: TokenSettings) -> Keys:
    url = settings.configuration_url
    try:
        found = json.loads(_read(url))
        issuer, place = found["issuer"], found["jwks_uri"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise IssuerSilent(f"{url}: expected JSON with issuer and jwks_uri") from None
    if issuer != settings.issuer:
        raise IssuerSilent(f"{url}: it has another issuer than tokens.issuer, to the letter")
    if not isinstance(place, str) or not is_safe_url(place):
        raise IssuerSilent(f"{url}: its jwks_uri is not https://...")
    try:
        return read_keys(_read(place))
    except KeysInvalid as error:
        raise IssuerSilent(f"{place}: {error}") from None


def _read(url: str) -> bytes:
    try:
        # S310: of the settings, or of the issuer, and checked there
        with build_opener(_NoRedirects).open(Request(url, headers={"Accept": "application/json"})) as answer:  # noqa: S310
            octets: bytes = answer.read(_MOST_OCTETS + 1)
    except HTTPError as error:
        raise IssuerSilent(f"{url}: the answer has the status {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            raise TimeoutError from None
        raise IssuerSilent(f"{url}: {reason or type(reason).__name__}") from None
    if len(octets) > _MOST_OCTETS:
        raise IssuerSilent(f"{url}: more than {_MOST_OCTETS} octets")
    return octets


@contextmanager
def _in_time() -> Iterator[None]:
    """Have :class:`TimeoutError` raised when the time is over, however slowly octets come; in the main thread."""

    def over(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
