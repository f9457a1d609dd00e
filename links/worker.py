"""A worker registers as an instance of the store, serves clients until it is stopped, and returns its leases."""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import ssl
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog

from coordinator.address.addresses import AddressPolicy
from coordinator.errors import Condition, Refusal
from coordinator.login.logins import ANONYMOUS, offered
from coordinator.process import certificates
from coordinator.process.children import Handed, Supervising
from coordinator.process.listeners import loopback
from coordinator.process.worker_reports import Reporting
from coordinator.secret_file import FileInvalid
from coordinator.service import Service
from coordinator.settings import WEBSOCKET, Endpoint, Settings
from coordinator.version import VERSION
from links.close_reason import CloseReason
from links.connection import Connection
from links.reactor import Reactor
from links.tls import TlsSocket
from links.upgrade import Door
from links.websocket import TlsWebSocket, WebSocket
from store import migrations, recovery
from store.database import Patience, connected
from store.errors import Contended, StoreError, StoreUnavailable
from store.recovery import STALE_SECONDS

if TYPE_CHECKING:
    from coordinator.login.bearer import TokenLogins
    from coordinator.traces import Traces

# A worker that cannot use the database closes its clients' connections, so that they can try another one (F4).
#
# Otherwise they would wait in vain. A restarted database is back in a moment; one without free connections stays so
# until an operator intervenes, and one that was not reached for as long as other instances wait before they give this
# one up may be away for this machine alone.

#: A new connection may have to wait until the server has ended the previous one.
PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
#: Looks that are further apart say that this process stood still, and nothing of the database.
_LONGEST_GAP_SECONDS = 3.0

_NONE_LEFT = Refusal(
    Condition.RESOURCE_LIMIT_EXCEEDED,
    "the database has no connection left for this worker of the service: connect again later; its operator is to "
    "allow more connections, or to run fewer workers (the service's log says which limit it is)",
)
_CUT_OFF = Refusal(
    Condition.CONNECTION_FORCED,
    f"this machine of the service has had no answer of its database for {STALE_SECONDS:g} s: connect to another one "
    "of the service, or again later; what was asked and not answered may have been done (the service's log says more)",
)


class Starving:
    """Checks every half second whether the worker can use the database, and refuses clients while it cannot."""

    def __init__(self, reactor: Reactor, service: Service) -> None:
        self._reactor = reactor
        self._service = service
        self._looked_at = self._steady_since = time.monotonic()
        self._check()

    def _check(self) -> None:
        self._reactor.call_later(_LOOK_SECONDS, self._check)
        refusal = self._refusal()
        before, self._service.starved = self._service.starved, refusal
        if refusal is before:
            return
        if refusal is None:
            log.info("the database can be used again: clients are served")
            return
        told = [each for each in self._reactor.connections if each.opened and not each.closing]
        why = "has no connection left" if refusal is _NONE_LEFT else "does not answer"
        log.error(f"the database {why}: clients are refused", clients=len(told))
        for connection in told:
            connection.force_close(CloseReason.NO_DATABASE_CONNECTION, refusal.condition, refusal.description)

    def _refusal(self) -> Refusal | None:
        now = time.monotonic()
        if now - self._looked_at > _LONGEST_GAP_SECONDS:
            self._steady_since = now
        self._looked_at = now
        if any(each.none_left(PATIENCE_SECONDS) for each in self._service.vital_connections):
            return _NONE_LEFT
        if min(self._service.beat_age, now - self._steady_since) >= STALE_SECONDS:
            return _CUT_OFF
        return None


log = structlog.get_logger(__name__)

#: seconds for unfinished work when the service stops (rule F5)
GRACE_SECONDS = 5.0
_STORE_RETRY_SECONDS = 0.2
_READY_LOOK_SECONDS = 0.002
_REGISTER_PATIENCE = Patience(statement_seconds=10.0, lock_seconds=5.0)
# Recovery may have to read all entries. A start does not wait that long: the recovery process completes it.
_RECOVER_PATIENCE = Patience(statement_seconds=5.0, lock_seconds=2.0)
_END_PATIENCE = Patience(statement_seconds=60.0, lock_seconds=2.0)

STATUS_FENCED = 3


def main(handed: Handed) -> int:
    """Serve clients on the listeners, and report to the supervisor; return the exit status."""
    settings, database_url, supervising = handed.settings, handed.database_url, handed.supervising
    _raise_descriptor_limit()
    registration = _register(database_url, settings.addresses.here)
    reactor = Reactor()
    status = 0

    def fenced() -> None:
        nonlocal status
        status = STATUS_FENCED
        reactor.stop()

    service = Service(reactor, settings, AddressPolicy(settings.addresses), database_url, registration, fenced=fenced)
    reactor.end_turn = service.end_turn
    if settings.tokens.issuer is not None:
        service.users.by_token = _token_logins(handed, service)
    service.instance.traces = _traces(handed, registration)
    service.start()
    doors = _Doors(reactor, service, settings, handed.tls)
    for listener, place in zip(handed.listeners, handed.places, strict=True):
        reactor.listen(listener, partial(doors.enter, place))
    wake_up, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_up, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    ending = _Ending(reactor, service)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: reactor.call_later(0, ending.begin))
    # a signal makes this descriptor readable: epoll returns, and the signal's handler runs
    reactor.watch(wake_up, select.EPOLLIN, lambda _: _discard(wake_up))
    log.info("serving", instance=registration.instance_id, store=registration.store_id)
    service.instance.disk_low = handed.disk_low

    def on_line(_: int) -> None:
        words = supervising.receive()
        if not words:  # the supervisor has ended, and the kernel ends this process
            reactor.forget(supervising.fileno())
        for each in words:
            if "certificates" in each:
                doors.read_certificates()
            elif "token_keys" in each:
                if service.users.by_token is not None:
                    service.users.by_token.learn(each["token_keys"])
            else:
                service.instance.disk_low = bool(each["disk_low"])

    reactor.watch(supervising.fileno(), select.EPOLLIN, on_line)
    Starving(reactor, service)
    Reporting(service, supervising, reactor.connections, lambda: sum(link.open for link in reactor.links.values()))
    _report_ready(reactor, service, supervising)
    # Objects of the start-up stay: later full garbage collections do not scan them.
    gc.collect()
    gc.freeze()
    reactor.run()
    reactor.end()
    service.close()
    if status != STATUS_FENCED:
        _end(database_url, registration.instance_id)
    return status


def _token_logins(handed: Handed, service: Service) -> TokenLogins:
    from coordinator.login.bearer import TokenLogins  # what it needs is not installed everywhere
    from coordinator.login.tokens import Tokens

    tokens = Tokens(handed.settings.tokens, handed.token_keys)
    return TokenLogins(service.loop, service.users, tokens, lambda: handed.supervising.offer(wants_keys=True))


def _traces(handed: Handed, registration: recovery.Registration) -> Traces | None:
    if handed.settings.traces.endpoint is None:
        return None
    from coordinator.traces import Traces  # what it needs is not installed everywhere

    return Traces(handed.settings.traces, handed.trace_headers, registration.store_id, registration.instance_id)


class _Doors:
    """Accepts connections of clients, with TLS or without, over WebSockets or not."""

    def __init__(self, reactor: Reactor, service: Service, settings: Settings, tls: ssl.SSLContext | None) -> None:
        self._reactor = reactor
        self._service = service
        self._settings = settings
        self._tls = tls

    def read_certificates(self) -> None:
        """Load the certificates again, for new connections. The supervisor has checked them; a later error changes
        nothing.
        """
        try:
            self._tls = certificates.load(self._settings.tls)
        except FileInvalid as error:
            log.error("certificates not read again", reason=str(error))

    def enter(self, place: Endpoint, sock: socket.socket) -> Connection:
        tls = self._tls if place.has_tls else None
        tokens = self._settings.tokens.issuer is not None
        mechanisms = offered(self._settings.login, loopback=loopback(place.host), tls=place.has_tls, tokens=tokens)
        if place.scheme in WEBSOCKET:
            door = Door(place.path, self._settings.websocket.origins, ANONYMOUS in mechanisms)
            sock = WebSocket(sock, door) if tls is None else TlsWebSocket(sock, tls, door)
        elif tls is not None:
            sock = TlsSocket(sock, tls)
        return Connection(self._reactor, self._service, sock, mechanisms)


def _report_ready(reactor: Reactor, service: Service, supervising: Supervising) -> None:
    """Report readiness once all database connections are up: other processes may have taken the last ones."""
    if service.connected:
        supervising.send(ready=True)
    else:
        reactor.call_later(_READY_LOOK_SECONDS, lambda: _report_ready(reactor, service, supervising))


def _raise_descriptor_limit() -> None:
    """Raise the limit of descriptors: each connection has one, and the usual soft limit of 1,024 is far too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _discard(fd: int) -> None:
    os.read(fd, 4096)


def _register(database_url: str, here: str | None) -> recovery.Registration:
    """Wait for the store, register as an instance, and recover from lost instances."""
    waiting = False
    while True:
        try:
            with connected(database_url, patience=_REGISTER_PATIENCE) as connection:
                migrations.check(connection)
                registration = recovery.register(connection, VERSION, here)
            given_up = _recover(database_url)
            break
        except (StoreUnavailable, Contended) as error:
            if not waiting:
                waiting = True
                log.warning("waiting for the database", reason=str(error))
            time.sleep(_STORE_RETRY_SECONDS)
    if given_up.instances:
        log.warning(
            "recovered from instances that were lost",
            instances=list(given_up.instances),
            leases=given_up.leases,
            transactions=given_up.transactions,
            addresses=given_up.addresses,
            groups=given_up.groups,
        )
    return registration


def _recover(database_url: str) -> recovery.GivenUp:
    """Recover from lost instances as far as possible now; the recovery process completes it."""
    try:
        with connected(database_url, patience=_RECOVER_PATIENCE) as connection:
            return recovery.recover(connection)
    except StoreError as error:
        log.warning("not recovered yet from instances that were lost", reason=str(error))
        return recovery.GivenUp()


def _end(database_url: str, instance_id: int) -> None:
    try:
        with connected(database_url, patience=_END_PATIENCE) as connection:
            recovery.end(connection, instance_id)
    except StoreError as error:
        log.warning("not deregistered; other instances will give this one up", reason=str(error))


class _Ending:
    """Stops the worker: refuses new work, awaits units on their way, closes connections with amqp:connection:forced."""

    def __init__(self, reactor: Reactor, service: Service) -> None:
        self._reactor = reactor
        self._service = service
        self._deadline = 0.0

    def begin(self) -> None:
        if self._deadline:
            return
        self._deadline = time.monotonic() + GRACE_SECONDS
        log.info("stopping", connections=len(self._reactor.connections))
        self._reactor.stop_listening()
        self._wait()

    def _wait(self) -> None:
        """Await the commits under way, then close all connections, then await their rollbacks and returns."""
        late = time.monotonic() >= self._deadline
        if not late and not self._service.commit.idle:
            self._reactor.call_later(0.01, self._wait)
            return
        for connection in list(self._reactor.connections):
            text = "the service is stopping; connect again"
            connection.force_close(CloseReason.SERVICE_STOPS, Condition.CONNECTION_FORCED, text)
        self._finish()

    def _finish(self) -> None:
        late = time.monotonic() >= self._deadline
        written = not any(connection.output.has_any for connection in self._reactor.connections)
        told = self._service.users.failures.end()
        if late or (self._service.commit.idle and written and told):
            self._reactor.stop()
        else:
            self._reactor.call_later(0.01, self._finish)
