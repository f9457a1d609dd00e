"""A bearer of a token logs in by it: SASL OAUTHBEARER (RFC 7628), and XOAUTH2, which clients had before it (S13)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from coordinator.login import verifiers
from coordinator.login.logins import OAUTHBEARER, XOAUTH2, origin_of
from coordinator.login.password import REFUSED, Challenge, Code, Outcome, Reply, unescaped
from coordinator.login.tokens import NoKeys, Refused, UnknownKey
from store.clock import CLOCK

if TYPE_CHECKING:
    from coordinator.login.tokens import Claimed, Keys, Tokens
    from coordinator.login.users import Users
    from store.loop import Loop
    from store.users import Account

log = structlog.get_logger(__name__)

#: How long a login with a key that is not known waits for the issuer's keys to be read again.
KEYS_SECONDS = 5.0
#: Seconds between two looks for tokens that have expired.
LOOK_SECONDS = 1.0

_BEARER = re.compile(rb"(?i:bearer) +([A-Za-z0-9._~+/-]+=*)")
_XOAUTH2 = re.compile(rb"user=([^\x01]*)\x01auth=([^\x01]+)\x01\x01")
#: gs2-header with an authzid or none, and the fields (RFC 7628, section 3.1); channel binding is not offered
_OAUTHBEARER = re.compile(rb"[ny],(?:a=([^,\x01]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)*)\x01")


class TokenLogins:
    """What the logins by token of one worker share: the keys, and when each connection ends."""

    def __init__(self, loop: Loop, users: Users, tokens: Tokens, ask: Callable[[], None]) -> None:
        """``ask``: has the issuer's keys read again; :meth:`learn` is called then, also with the same keys."""
        self.tokens = tokens
        self._users = users
        self._loop = loop
        self._ask = ask
        #: logins that wait for keys; the number is of the question that they wait for
        self._waiting: list[Callable[[], None]] = []
        self._question = 0
        #: when the connections end that have logged in by a token
        self._ends: dict[Callable[[], None], float] = {}
        self._looks = False

    def begin(
        self, mechanism: str, address: str, reply: Reply, disabled: Callable[[], None], expired: Callable[[], None]
    ) -> Bearer:
        return Bearer(mechanism, self._users, self, address, reply, disabled, expired)

    def learn(self, keys: Keys) -> None:
        self.tokens.learn(keys)
        self._answered()

    def when_read_again(self, then: Callable[[], None]) -> None:
        """Call ``then`` when the issuer's keys are read again, or after a time."""
        if not self._waiting:
            self._question += 1
            question = self._question
            self._ask()
            self._loop.call_later(KEYS_SECONDS, lambda: self._answered(question))
        self._waiting.append(then)

    def _answered(self, question: int | None = None) -> None:
        if question in (None, self._question):
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                self._loop.call_later(0, each)

    def end_at(self, expires: float, end: Callable[[], None]) -> None:
        """Call ``end`` when the token has expired, by the database's clock."""
        self._ends[end] = expires
        if not self._looks:
            self._looks = True
            self._loop.call_later(LOOK_SECONDS, self._look)

    def forget(self, end: Callable[[], None]) -> None:
        self._ends.pop(end, None)

    def _look(self) -> None:
        now = CLOCK.now()
        for end in [end for end, expires in self._ends.items() if expires <= now]:
            del self._ends[end]
            self._loop.call_later(0, end)
        self._looks = bool(self._ends)
        if self._looks:
            self._loop.call_later(LOOK_SECONDS, self._look)


class Bearer:
    """Logs a client in by a token. ``address``: of its host. ``disabled``: called when an operator disables the user,
    who need not be in the store. ``expired``: called when the token expires.
    """

    def __init__(
        self,
        mechanism: str,
        users: Users,
        logins: TokenLogins,
        address: str,
        reply: Reply,
        disabled: Callable[[], None],
        expired: Callable[[], None],
    ) -> None:
        self._mechanism = mechanism
        self._users = users
        self._logins = logins
        self._address = address
        self._reply = reply
        self._disabled = disabled
        self._expired = expired
        self._user: str | None = None
        self._may = True
        self._in = self._ended = self._refused = False

    def end(self) -> None:
        self._ended = True
        self._logins.forget(self._expired)
        if self._user is not None:
            self._users.leave(self._user, self._lock_out)

    def _lock_out(self, account: Account | None) -> None:
        if account is not None and not account.enabled:
            self._may = False
            if self._in:
                self._disabled()

    def take(self, response: bytes | None) -> None:
        if self._refused:  # the client has read why (RFC 7628, section 3.2.3)
            self._reply(REFUSED)
        elif response is None:
            self._reply(Challenge(b""))
        else:
            found = _parsed(self._mechanism, response)
            if found is None:
                self._refuse("the initial response has no token, or is not as its mechanism says")
            else:
                self._check(*found)

    def _check(self, as_whom: str, token: bytes, *, again: bool = True) -> None:
        """``as_whom``: the user that the client says it is; empty: it says none."""
        if self._ended:
            return
        try:
            claimed = self._logins.tokens.check(token)
        except NoKeys:
            log.warning("a client cannot log in: the keys of the issuer of its token are not read yet")
            self._reply(Outcome(Code.SYS_TEMP))
            return
        except UnknownKey as error:
            if again:
                self._logins.when_read_again(lambda: self._check(as_whom, token, again=False))
            else:
                self._refuse(str(error))
            return
        except Refused as error:
            self._refuse(str(error), error.user)
            return
        if as_whom and not _same(as_whom, claimed.user):  # to act as another is not possible
            self._refuse("the client names another user than its token", claimed.user)
            return
        self._user = claimed.user
        # before the query: a NOTIFY reports changes that its answer does not include
        self._users.enter(claimed.user, self._lock_out)
        self._users.look_up_account(claimed.user, partial(self._found, claimed), self._found_none)

    def _found(self, claimed: Claimed, account: Account | None) -> None:
        if self._ended:
            return
        if not self._may or (account is not None and not account.enabled):
            self._refuse("the user is disabled", claimed.user)
            return
        self._in = True
        issuer = self._logins.tokens.settings.issuer
        log.debug("login by token", address=self._address, user=claimed.user, issuer=issuer, subject=claimed.subject)
        self._logins.end_at(claimed.expires, self._expired)
        user_id = f"token {claimed.user}" if account is None else account.id
        self._reply(Outcome(Code.OK, user=claimed.user, user_id=user_id, roles=claimed.roles))

    def _found_none(self, outcome: Outcome) -> None:
        if not self._ended:
            self._reply(outcome)

    def _refuse(self, why: str, user: str | None = None) -> None:
        """Answer after a wait, as to a wrong password: longer with each that fails from this address."""
        self._refused = True
        log.info("login refused", address=self._address, user=user, reason=why)
        self._users.failures.count(self._address, user, why)
        # no user has this name: wrong tokens delay no password
        wait = self._users.penalties.failed(self._address, f"\0{origin_of(self._address)}")
        self._users.call_later(wait, self._answer_refused)

    def _answer_refused(self) -> None:
        if self._ended:
            return
        if self._mechanism == XOAUTH2:  # its clients know no challenge, or wait for none
            self._reply(REFUSED)
            return
        told = {"status": "invalid_token"}
        settings = self._logins.tokens.settings
        if settings.keys is None:
            told["openid-configuration"] = settings.configuration_url
        self._reply(Challenge(json.dumps(told).encode()))


def _parsed(mechanism: str, response: bytes) -> tuple[str, bytes] | None:
    """Return the user that the client says it is, or '', and the token; None: there is none."""
    found = (_XOAUTH2 if mechanism == XOAUTH2 else _OAUTHBEARER).fullmatch(response)
    if found is None:
        return None
    name, rest = found.groups()
    if mechanism == OAUTHBEARER:
        given = [field[5:] for field in rest.split(b"\x01") if field.startswith(b"auth=")]
        if len(given) != 1:
            return None
        (rest,) = given
    token = _BEARER.fullmatch(rest)
    try:
        as_whom = (name or b"").decode()
    except UnicodeDecodeError:
        return None
    named = as_whom if mechanism == XOAUTH2 else unescaped(as_whom)
    return None if token is None or named is None else (named, token[1])


def _same(as_whom: str, user: str) -> bool:
    try:
        return len(as_whom) <= verifiers.MOST_NAME_OCTETS and verifiers.prepared_name(as_whom) == user
    except verifiers.NotPrepared:
        return False
