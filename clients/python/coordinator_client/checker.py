"""Answers what the coordinator asks about transactions: check-back over AMQP (H8), by Qpid Proton.

``docs/how-to/answer-checks.md`` says what a checker has to look at before it answers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from proton import SASL, Delivery, Message
from proton._events import Event
from proton.handlers import MessagingHandler
from proton.reactor import Container

log = logging.getLogger(__name__)

#: Conditions of a link that the coordinator refuses again however often it is asked.
_FOR_GOOD = frozenset(("amqp:unauthorized-access", "amqp:not-implemented", "amqp:invalid-field", "amqp:not-allowed"))

#: Seconds between two attempts to connect.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0
#: Seconds between two looks at whether another thread has stopped the checker.
_LOOK = 0.2
#: Seconds that the coordinator has to answer the close of a connection.
_LAST_WAIT = 2.0


class Answer(Enum):
    """What became of a transaction. ``UNKNOWN``: it cannot be told now; the coordinator asks again later."""

    COMMIT = Delivery.ACCEPTED
    ROLLBACK = Delivery.REJECTED
    UNKNOWN = Delivery.RELEASED


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question. ``message`` is a copy of the first one that the transaction has posted or, if it has posted none,
    has retired.
    """

    txn_id: bytes
    message: Message
    #: the address that the message was posted to
    address: str | None
    #: how often the transaction was checked, with this time
    count: int
    #: messages that it has posted, and deliveries that it has retired
    posted: int
    retired: int
    declared_at: datetime
    #: the message is large, and the copy has no body
    body_left_out: bool


class CheckerRefused(Exception):
    """The coordinator does not take this checker: it may not log in or not answer for the group, or there is no such
    group.
    """


class Checker:
    """Answers the checks of a producer group until it is stopped, over as many connections as it takes.

    ``answer`` is called for one check after the other, in the thread of :meth:`run`; as long as it works, no heartbeat
    is sent. What it raises is logged, and the answer is ``UNKNOWN``.
    """

    def __init__(
        self, url: str, group: str, answer: Callable[[Check], Answer], *, credit: int = 10, **connect: Any
    ) -> None:
        """
        :param url: ``amqp://`` or ``amqps://``, with the user and the password if there is one.
        :param credit: checks that may wait here for the one before; the coordinator counts them as sent.
        :param connect: further arguments of ``proton.reactor.Container.connect``, such as ``ssl_domain``.
        """
        self.url = url
        self.group = group
        self.credit = credit
        self.connect = {"reconnect": False, "heartbeat": 30, **connect}
        self.stopped = threading.Event()
        self._answer = answer

    def run(self) -> None:
        """Answer until :meth:`stop`. A connection that is lost is made anew.

        :raises CheckerRefused: to connect once more would not help.
        """
        wait = _FIRST_WAIT
        while not self.stopped.is_set():
            attached = _Attached(self)
            try:
                Container(attached).run()
            except OSError as error:  # the name of the host is not found, say
                attached.problem = str(error)
            if attached.refused:
                raise CheckerRefused(attached.problem)
            if not self.stopped.is_set():
                wait = _FIRST_WAIT if attached.opened else min(2 * wait, _LONGEST_WAIT)
                log.warning("the checker of %s connects again in %.1f s: %s", self.group, wait, attached.problem)
                self.stopped.wait(wait)

    def stop(self) -> None:
        """Have :meth:`run` end. It may be called in any thread, by a handler of a signal, and by ``answer``: its own
        answer is sent then, and no further one.
        """
        self.stopped.set()

    def answer(self, check: Check) -> Answer:
        try:
            return self._answer(check)
        except Exception:
            log.exception("the check of transaction %s is not answered", check.txn_id.hex())
            return Answer.UNKNOWN


class _Attached(MessagingHandler):
    """One connection of a checker, from its beginning to its end."""

    def __init__(self, checker: Checker) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self._checker = checker
        self._closed = self._leaves = False
        self.opened = False
        self.refused = False
        self.problem = "the coordinator has closed the connection"

    def on_start(self, event: Event) -> None:
        self._container: Any = event.container
        self._connection = self._container.connect(self._checker.url, **self._checker.connect)
        receiver = self._container.create_receiver(self._connection, f"$check/{self._checker.group}")
        receiver.flow(self._checker.credit)
        self._container.schedule(_LOOK, self)

    def on_timer_task(self, event: Event) -> None:
        """Another thread may have stopped it. A coordinator that does not answer the close is not waited for."""
        if self._leaves:
            self._container.stop()
        elif self._checker.stopped.is_set():
            self._leaves = True
            self._connection.close()
            self._container.schedule(_LAST_WAIT, self)
        elif not self._closed:
            self._container.schedule(_LOOK, self)

    def on_link_opened(self, event: Event) -> None:
        self.opened = True

    def on_message(self, event: Event) -> None:
        delivery: Any = event.delivery
        link: Any = event.link
        if self._checker.stopped.is_set():
            return
        delivery.update(self._checker.answer(_check(event.message)).value)
        delivery.settle()
        if self._checker.stopped.is_set():
            self._connection.close()
        else:
            link.flow(1)

    def on_link_error(self, event: Event) -> None:
        link: Any = event.link
        self._ends(link.remote_condition)
        self._connection.close()

    def on_connection_remote_close(self, event: Event) -> None:
        """Proton's own handler leaves a connection open that is closed by force, as by a service that is stopped."""
        connection: Any = event.connection
        if connection.remote_condition is not None:
            self._ends(connection.remote_condition)
        connection.close()

    def on_transport_error(self, event: Event) -> None:
        transport: Any = event.transport
        self._ends(transport.condition)
        # of other outcomes, sys-temp while its database is away, Proton says amqp:unauthorized-access, too
        if transport.sasl().outcome not in (None, SASL.OK, SASL.AUTH):
            self.refused = False
            self.problem = "the coordinator cannot check logins now"

    def on_transport_closed(self, event: Event) -> None:
        self._closed = True

    def _ends(self, condition: Any) -> None:
        self.problem = f"{condition.name}: {condition.description}"
        self.refused = condition.name in _FOR_GOOD


def _check(message: Any) -> Check:
    told = message.instructions
    return Check(
        txn_id=bytes(told["x-opt-txn-id"]),
        message=message,
        address=told.get("x-opt-original-address"),
        count=int(told["x-opt-check-count"]),
        posted=int(told["x-opt-half-count"]),
        retired=int(told["x-opt-retired-count"]),
        declared_at=datetime.fromtimestamp(int(told["x-opt-declared-at"]) / 1000, UTC),
        body_left_out=bool(told.get("x-opt-body-left-out")),
    )
