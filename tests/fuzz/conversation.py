"""Cases made by the grammar: performatives of the test client's kit, on sessions and links that are there or are not.

Each case opens a connection in order up to its stage and continues from there. Most frames come where they may; a few
in a hundred are no performative, or come where they may not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.grammar import CONTAINERS, LINKS, QUEUES, TAGS, TOPICS, UINTS, Grammar
from tests.fuzz.logins import login
from tests.fuzz.stages import EVERYWHERE, SHARES, STAGES
from tests.wire import messages
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SASL,
    SASL_HEADER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
    TransactionalState,
    Transfer,
    frame,
)
from tests.wire.types import (
    Symbol,
)


@dataclasses.dataclass
class _Link:
    handle: int
    role: bool
    control: bool = False


class _Session:
    def __init__(self) -> None:
        self.links: list[_Link] = []
        self.deliveries = 0
        self.sent = 0
        self.handles = 0
        #: (link, delivery id) of a delivery whose last frame has not gone out
        self.partial: tuple[_Link, int] | None = None


_WINDOW = 1 << 20
_DECLARE = messages.section(messages.VALUE, Declare().described())


class Conversation:
    """One case in the making: what was said so far, so that the next frame can be in its place."""

    def __init__(self, grammar: Grammar, random: Random) -> None:
        self._grammar = grammar
        self._random = random
        self._sessions: dict[int, _Session] = {}
        self._names = 0
        shared = random.random() < 0.1
        self._container = random.choice(CONTAINERS) if shared else f"alone-{random.getrandbits(48):x}"
        #: subscriptions that last are made by the few containers alone, so that their number is bounded
        self._lasting = shared
        self._writes: list[bytes] = []
        self._frames: list[int] = []
        self._pending: list[bytes] = []
        self._headers = 0
        self._kinds: dict[str, Callable[[], bytes]] = {
            "open": lambda: frame(self._grammar.record(Open, container_id=random.choice(CONTAINERS))),
            "begin": self._begin,
            "attach": self._attach,
            "control": self._control,
            "post": self._post,
            "flow": self._flow,
            "disposition": self._disposition,
            "detach": self._detach,
            "end": self._end,
            "close": lambda: frame(self._grammar.record(Close)),
            "nonsense": lambda: grammar.nonsense(self._session()[0]),
            "empty": lambda: frame(None),
            "wrong place": self._wrong_place,
        }

    def case(self) -> Case:
        random = self._random
        stage = random.choices(tuple(STAGES), weights=SHARES)[0]
        self._opening(stage)
        if stage not in ("header", "sasl", "open"):
            self._in_order(stage)
        weights = {**EVERYWHERE, **STAGES[stage]}
        kinds, shares = tuple(weights), tuple(weights.values())
        left = random.choice((2, 10, 30, 60, 90))
        if stage in ("header", "sasl", "open"):
            left = random.choice((1, 3, 8))
        while left > 0:
            many = min(left, random.choice((1, 2, 4, 8, 16)))
            for kind in random.choices(kinds, shares, k=many):
                self._pending.append(self._kinds[kind]())
            self._write()
            left -= many
        return Case("grammar", stage, self._writes, self._frames, abrupt=random.random() < 0.1)

    def _write(self) -> None:
        if self._pending:
            self._writes.append(b"".join(self._pending))
            self._frames.append(len(self._pending) - self._headers)
            self._pending = []
            self._headers = 0

    def _header(self, octets: bytes) -> None:
        self._pending.append(octets)
        self._headers += 1

    def _opening(self, stage: str) -> None:
        random = self._random
        if stage == "header":
            self._header(
                random.choice(
                    (AMQP_HEADER, SASL_HEADER, b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x01", random.randbytes(8),
                     AMQP_HEADER[: random.randrange(8)], b"\x16\x03\x01" + random.randbytes(20), b"GET / HTTP/1.1\r\n")
                )
            )  # fmt: skip
        if stage == "sasl" or random.random() < 0.2:
            self._header(SASL_HEADER)
            if stage == "sasl":
                for _ in range(random.choice((1, 1, 2))):
                    self._pending.append(
                        frame(login(random, self._grammar), kind=SASL, channel=random.choice((0, 0, 0, 1)))
                    )
                    if random.random() < 0.3:
                        self._write()
            else:
                self._pending.append(frame(SaslInit(mechanism="ANONYMOUS", initial_response=b""), kind=SASL))
        self._header(AMQP_HEADER)
        if stage != "open":
            self._pending.append(frame(Open(container_id=self._container, max_frame_size=random.choice(
                (None, 512, 4096, 65536)))))  # fmt: skip

    def _in_order(self, stage: str) -> None:
        """A session, and the links that most of the stage's frames are for."""
        self._session_frame(0)
        if stage == "begin":
            self._write()
            return
        grammar = self._grammar
        random = self._random
        outcomes = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")
        queue = random.choice(QUEUES)
        self._link(SENDER, Source(outcomes=outcomes), Coordinator(), control=True)
        self._write()
        if stage == "control":
            control = self._sessions[0].links[0]
            self._pending += [self._sent(control, _DECLARE) for _ in range(random.choice((0, 1, 3)))]
        if stage in ("transfer", "message", "disposition", "flow", "control", "detach"):
            self._write()
            self._link(SENDER, Source(outcomes=outcomes), Target(address=queue))
            self._link(SENDER, Source(outcomes=outcomes), Target())
            source = Source(
                address=random.choice((queue, queue, random.choice(TOPICS), *QUEUES)),
                filter=grammar.filter() if random.random() < 0.2 else None,
                distribution_mode="copy" if random.random() < 0.1 else None,
            )
            self._link(RECEIVER, source, Target())
            handle = self._sessions[0].links[-1].handle
            self._pending.append(
                frame(Flow(next_incoming_id=0, incoming_window=_WINDOW, next_outgoing_id=0, outgoing_window=_WINDOW,
                           handle=handle, delivery_count=0, link_credit=random.choice((1, 10, 1000))))
            )  # fmt: skip
        if stage in ("transfer", "disposition", "message") and random.random() < 0.5:
            control = self._sessions[0].links[0]
            self._pending += [self._sent(control, _DECLARE)]
        self._write()
        self._writes += [b"", b""]  # until the attaches are answered
        self._frames += [0, 0]

    def _session_frame(self, channel: int) -> None:
        self._sessions[channel] = _Session()
        self._pending.append(
            frame(Begin(next_outgoing_id=0, incoming_window=_WINDOW, outgoing_window=_WINDOW), channel=channel)
        )

    def _link(self, role: bool, source: Any, target: Any, *, control: bool = False) -> None:
        session = self._sessions[0]
        random = self._random
        link = _Link(session.handles, role, control)
        session.handles += 1
        session.links.append(link)
        self._names += 1
        self._pending.append(
            frame(Attach(name=f"link-{self._names}", handle=link.handle, role=role, source=source, target=target,
                         initial_delivery_count=0 if role is SENDER else None,
                         snd_settle_mode=random.choice((None, 0, 1, 2)), rcv_settle_mode=random.choice((None, 0, 1))))
        )  # fmt: skip

    # -- frames in their place, mostly

    def _session(self) -> tuple[int, _Session]:
        random = self._random
        if self._sessions and random.random() < 0.997:
            channel = random.choice(tuple(self._sessions))
            return channel, self._sessions[channel]
        return random.choice((0, 1, 2, 1023, 1024, 65535)), _Session()

    def _begin(self) -> bytes:
        random = self._random
        free = [channel for channel in range(6) if channel not in self._sessions]
        channel = free[0] if free and random.random() < 0.99 else random.choice((0, 1, 1023, 1024, 65535))
        self._sessions.setdefault(channel, _Session())
        windows = {"incoming_window": _WINDOW, "outgoing_window": _WINDOW, "next_outgoing_id": random.choice(UINTS)}
        given = windows if random.random() < 0.8 else {}
        return frame(self._grammar.record(Begin, remote_channel=None, **given), channel=channel)

    def _end(self) -> bytes:
        channel, _ = self._session()
        if self._random.random() < 0.9:
            self._sessions.pop(channel, None)
        return frame(self._grammar.record(End), channel=channel)

    def _attach(self) -> bytes:
        random = self._random
        channel, session = self._session()
        self._names += 1
        role = random.random() < 0.5
        control = role is SENDER and random.random() < 0.3
        link = _Link(session.handles, role, control)
        if random.random() < 0.99:
            session.handles += 1
        else:
            link.handle = random.choice((0, 1, 1023, 1024, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
        session.links.append(link)
        grammar = self._grammar
        given: dict[str, Any] = {
            "name": f"link-{self._names}" if random.random() < 0.9 else random.choice(LINKS),
            "handle": link.handle,
            "role": role,
            "snd_settle_mode": random.choice((None, 0, 1, 2)),
            "rcv_settle_mode": random.choice((None, 0, 1)),
            "initial_delivery_count": 0 if random.random() < 0.9 else random.choice(UINTS),
            "unsettled": None if random.random() < 0.9 else grammar.map(1),
            "source": grammar.source(),
            "properties": self._properties() if random.random() < 0.3 else None,
        }
        if not self._lasting and given["source"].expiry_policy == "never":
            given["source"] = dataclasses.replace(given["source"], expiry_policy=None)
        given["target"] = grammar.coordinator() if control else grammar.target()
        return frame(grammar.record(Attach, **given), channel=channel)

    def _properties(self) -> dict[Any, Any]:
        random = self._random
        found = self._grammar.map(2)
        if random.random() < 0.5:
            key = random.choice(("coordinator:timeout-ms", "coordinator:on-refused-post", "x-opt-timeout"))
            found[Symbol(key)] = self._grammar.any(1)
        if random.random() < 0.5:
            found[Symbol("coordinator:producer")] = "shop" if random.random() < 0.8 else self._grammar.any(1)
        return found

    def _detach(self) -> bytes:
        random = self._random
        channel, session = self._session()
        handle = random.choice((0, 1, 5, 0xFFFFFFFF))
        if session.links and random.random() < 0.99:
            link = random.choice(session.links)
            handle = link.handle
            session.links.remove(link)
        return frame(self._grammar.record(Detach, handle=handle, closed=random.random() < 0.7), channel=channel)

    def _sender(self, session: _Session, *, control: bool) -> _Link | None:
        random = self._random
        wanted = [link for link in session.links if link.role is SENDER and link.control is control]
        if wanted and random.random() < 0.997:
            return random.choice(wanted)
        return random.choice(session.links) if session.links else None

    def _control(self) -> bytes:
        channel, session = self._session()
        link = self._sender(session, control=True)
        if link is None:
            return self._attach()
        settled = True if self._random.random() < 0.02 else None
        return self._sent(link, self._grammar.control_message(), channel, settled=settled)

    def _sent(self, link: _Link, message: bytes, channel: int = 0, **given: Any) -> bytes:
        session = self._sessions.get(channel) or _Session()
        number = session.deliveries
        session.deliveries += 1
        body = Transfer(handle=link.handle, delivery_id=number, delivery_tag=b"%d" % number, message_format=0, **given)
        return frame(body, channel=channel, payload=message)

    def _post(self) -> bytes:
        random = self._random
        grammar = self._grammar
        channel, session = self._session()
        if session.partial is not None and random.random() < 0.9:
            return self._continued(channel, session)
        link = self._sender(session, control=False)
        if link is None:
            return self._attach()
        state = grammar.record(TransactionalState, txn_id=grammar.txn_id(), outcome=None)
        if random.random() < 0.4:
            state = grammar.state() if random.random() < 0.05 else None
        more = random.random() < 0.1
        number = session.deliveries
        if random.random() < 0.997:
            session.deliveries += 1
        else:
            number = random.choice(UINTS)
        if more:
            session.partial = (link, number)
        body = grammar.record(
            Transfer, handle=link.handle, delivery_id=number, delivery_tag=random.choice((b"%d" % number, *TAGS)),
            settled=random.choice((None, False, True)), more=more, state=state, resume=None, aborted=None,
        )  # fmt: skip
        message = grammar.message()
        if more:
            message = message[: random.randrange(len(message) + 1)]
        return frame(body, channel=channel, payload=message)

    def _continued(self, channel: int, session: _Session) -> bytes:
        random = self._random
        assert session.partial is not None
        link, number = session.partial
        more = random.random() < 0.4
        if not more:
            session.partial = None
        body = self._grammar.record(
            Transfer, handle=link.handle, delivery_id=random.choice((None, number)), delivery_tag=None, state=None,
            settled=random.choice((None, None, True)), more=more, aborted=random.random() < 0.2, resume=None,
        )  # fmt: skip
        return frame(body, channel=channel, payload=random.choice((b"", random.randbytes(30), self._grammar.message())))

    def _flow(self) -> bytes:
        random = self._random
        channel, session = self._session()
        handle = None
        if session.links and random.random() < 0.85:
            handle = random.choice(session.links).handle
        elif random.random() < 0.02:
            handle = random.choice(UINTS)
        given: dict[str, Any] = {"handle": handle}
        if random.random() < 0.8:
            given.update(next_incoming_id=0, incoming_window=_WINDOW, next_outgoing_id=session.deliveries,
                         outgoing_window=_WINDOW)  # fmt: skip
        if handle is not None:
            given.update(delivery_count=random.choice((0, 0, 1, 5, *UINTS)),
                         link_credit=random.choice((0, 1, 10, 1000, *UINTS)), drain=random.random() < 0.3)  # fmt: skip
            if random.random() < 0.02:
                given["properties"] = {Symbol("txn-id"): self._grammar.any(1)}
        return frame(self._grammar.record(Flow, **given), channel=channel)

    def _disposition(self) -> bytes:
        random = self._random
        channel, _ = self._session()
        first = random.choice((0, 0, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, *UINTS))
        body = self._grammar.record(
            Disposition,
            role=RECEIVER if random.random() < 0.9 else SENDER,
            first=first,
            last=random.choice((None, first, first + random.randrange(5) & 0xFFFFFFFF, first + (1 << 30) & 0xFFFFFFFF))
            if random.random() < 0.98
            else random.choice(UINTS),
            settled=random.choice((None, False, True, True)),
            state=self._grammar.state() if random.random() < 0.95 else None,
        )
        return frame(body, channel=channel)

    # -- out of all places

    def _wrong_place(self) -> bytes:
        kind = self._random.choice((Open, SaslInit, SaslOutcome, Begin, Accepted, Source, Declare))
        channel, _ = self._session()
        return frame(self._grammar.record(kind), channel=channel, kind=self._random.choice((0, 0, 1)))
