"""The guard of a peer's frames, and the engine behind it: both know the same, wherever what comes in is cut (P14)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from links import engine, frames
from links.channels import Channel
from tests.guard_engine import Heard, Served
from tests.model import profiles
from tests.tables import all_cases
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Record,
    Rejected,
    Source,
    State,
    Target,
    TransactionalState,
    Transfer,
    frame,
)
from tests.wire.types import Symbol

pytestmark = pytest.mark.usefixtures("both_forms")

_OPENING = AMQP_HEADER + frame(Open(container_id="test", max_frame_size=512))
_BEGIN = Begin(next_outgoing_id=7, incoming_window=99, outgoing_window=99)
_WINDOWS: dict[str, Any] = {"next_incoming_id": 0, "incoming_window": 99, "next_outgoing_id": 7, "outgoing_window": 99}


class Step(NamedTuple):
    """A frame of the peer. ``odd``: how it is wrong, if at all; ``form``: how it is encoded."""

    kind: str
    channel: int
    handle: int
    odd: int
    form: int


class _Peer:
    """Makes frames that fit those before, apart from what is odd."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._links: dict[tuple[int, int], bool] = {}
        self._begun: dict[tuple[int, int], int] = {}
        self._names = 0

    def frame(self, step: Step) -> bytes:
        body, payload = getattr(self, f"_{step.kind}")(step)
        octets = _encoded(body, step.form) if isinstance(body, Record) else body
        if octets is None:
            return b""
        if step.odd == 1 and octets:  # a null, or another type, for a field
            octets = _replaced(octets, step.handle)
        extended = 4 * (step.form % 3 == 2) * step.handle
        made = frame(octets, channel=step.channel, payload=payload)
        if extended:
            made = (len(made) + extended).to_bytes(4, "big") + bytes((2 + extended // 4,)) + made[5:8] + bytes(
                extended
            ) + made[8:]  # fmt: skip
        return made

    def _begin(self, step: Step) -> Any:
        if step.channel in self._next and step.odd != 2:
            return None, b""
        self._next[step.channel] = 7
        return _BEGIN, b""

    def _end(self, step: Step) -> Any:
        if self._next.pop(step.channel, None) is None and step.odd != 2:
            return None, b""
        for at in [at for at in self._links if at[0] == step.channel]:
            del self._links[at]
            self._begun.pop(at, None)
        return End(), b""

    def _attach(self, step: Step) -> Any:
        at = step.channel, step.handle
        if (step.channel not in self._next or at in self._links) and step.odd != 2:
            return None, b""
        role = SENDER if step.form % 2 else RECEIVER
        self._links[at] = role
        self._names += step.odd != 3
        return (
            Attach(
                name=f"link-{self._names}", handle=step.handle, role=role, source=Source(address="a"),
                target=Target(address="a"), initial_delivery_count=0 if role is SENDER else None,
            ),
            b"",
        )  # fmt: skip

    def _detach(self, step: Step) -> Any:
        at = step.channel, step.handle
        if self._links.pop(at, None) is None and step.odd != 2:
            return None, b""
        self._begun.pop(at, None)
        return Detach(handle=step.handle, closed=step.form % 2 == 0), b""

    def _transfer(self, step: Step, *, more: bool = False, aborted: bool | None = None) -> Any:
        at = step.channel, step.handle
        if self._links.get(at) is not SENDER and step.odd != 2:
            return None, b""
        fields: dict[str, Any] = {}
        if at not in self._begun:
            number = self._next.get(step.channel, 0)
            self._next[step.channel] = number + 1
            self._begun[at] = number
            fields = {"delivery_id": number, "delivery_tag": b"%d" % number, "message_format": 0}
        if not more:
            del self._begun[at]
        settled = (None, True, False)[step.form % 3]
        sizes = (0, 9, 300, 3900)
        return (
            Transfer(handle=step.handle, settled=settled, more=more or (None, False)[step.form % 2], aborted=aborted,
                     rcv_settle_mode=1 if step.odd == 3 else None, **fields),
            b"\x00\x53\x75\xb0\x00\x00\x0f\x00" * (sizes[step.form % 4] // 8),
        )  # fmt: skip

    def _more(self, step: Step) -> Any:
        return self._transfer(step, more=True)

    def _aborted(self, step: Step) -> Any:
        return self._transfer(step, aborted=True)

    def _flow(self, step: Step) -> Any:
        at = step.channel, step.handle
        if step.channel not in self._next and step.odd != 2:
            return None, b""
        echo = (None, True, False)[step.form % 3]
        if self._links.get(at) is RECEIVER or step.odd == 2:
            link: dict[str, Any] = {
                "handle": step.handle,
                "delivery_count": 0,
                "link_credit": step.form,
                "drain": step.form % 4 == 0,
            }
            return Flow(**_WINDOWS, **link, echo=echo), b""
        return Flow(**_WINDOWS, echo=echo, link_credit=1 if step.odd == 3 else None), b""

    def _disposition(self, step: Step) -> Any:
        if step.channel not in self._next and step.odd != 2:
            return None, b""
        return Disposition(role=step.form % 2 == 0, first=step.handle, last=step.form, settled=True,
                           state=Accepted()), b""  # fmt: skip

    def _empty(self, _step: Step) -> Any:
        return b"", b""

    def _close(self, step: Step) -> Any:
        return (Close() if step.odd == 3 else None), b""


def _encoded(body: Record, form: int) -> bytes:
    octets = body.encoded(large=form % 5 == 0)
    return octets if form % 4 else octets.replace(b"\x00\x53", b"\x00\x80" + bytes(7), 1)


def _replaced(octets: bytes, place: int) -> bytes:
    """Another octet in the fields, deterministic."""
    at = 5 + place * 7919 % max(1, len(octets) - 5)
    values = (0x40, 0x41, 0x43, 0x00, 0xA1, 0x45, 0xC0, 0xFF)
    return octets[:at] + bytes((values[(place + at) % len(values)],)) + octets[at + 1 :]


_KINDS = ("begin", "attach", "attach", "transfer", "transfer", "transfer", "more", "more", "aborted", "flow", "flow",
          "disposition", "detach", "end", "empty", "close")  # fmt: skip
_steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(_KINDS),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from((0,) * 30 + (1, 2, 3)),
        st.integers(0, 11),
    ),
    max_size=40,
)


def _stream(steps: Sequence[Step]) -> bytes:
    """Of a peer that has begun two sessions with links."""
    peer = _Peer()
    first = [Step("begin", channel, 0, 0, 1) for channel in (0, 1)]
    first += [Step("attach", channel, handle, 0, 1 + handle % 2) for channel in (0, 1) for handle in (0, 1)]
    return _OPENING + b"".join(peer.frame(step) for step in (*first, *steps))


def _cut(octets: bytes, random: Random) -> list[bytes]:
    pieces = []
    at = 0
    while at < len(octets):
        size = random.choice((1, 3, 8, 20, 100, 1000, 2300, 5000))
        pieces.append(octets[at : at + size])
        at += size
    return pieces


def _view(served: Served) -> Any:
    channels = served.guard.channels._channels
    return {
        number: (channel.received, channel.ended, {handle: end.incomplete for handle, end in channel.links.items()})
        for number, channel in channels.items()
    }


@pytest.mark.day
@pytest.mark.rule("P14")
@given(_steps, st.randoms(use_true_random=False))
@profiles.of(300)
def test_what_the_engine_gets_is_the_same_however_it_is_cut(steps: list[Step], random: Random) -> None:
    stream = _stream(steps)
    whole, cut = Served(), Served()
    whole.hear([stream])
    cut.hear(_cut(stream, random), room=random.choice((1, 7, 512, 4096)))
    assert cut.got == whole.got
    assert cut.refused == whole.refused
    assert cut.failed == whole.failed
    assert _view(cut) == _view(whole)
    assert len(cut.guard.channels.plain) == len(whole.guard.channels.plain)


@pytest.mark.rule("P14")
@given(_steps, st.randoms(use_true_random=False))
@profiles.of(300)
def test_the_guard_and_the_engine_agree(steps: list[Step], random: Random) -> None:
    """On which sessions and links there are, and what each has had; and so does what is noted of what is said."""
    served = Served()
    served.hear(_cut(_stream(steps), random), room=random.choice((1, 7, 512, 4096)))
    if served.failed or served.closing or served.guard._refused:
        return
    channels = served.guard.channels
    assert not channels._beginning
    assert not channels._attaching
    assert {channel.pointer for channel in channels._channels.values()} == served.sessions
    links = {end.pointer: channel for channel in channels._channels.values() for end in channel.links.values()}
    assert set(links) == set(served.links)
    for pointer, channel in links.items():
        assert engine.link_session(pointer) == channel.pointer
    said = {
        number: (
            each.sent,
            {handle: (str(name).partition("\0")[0], role) for (name, role), handle in each.handles.items()},
        )
        for number, each in served.output.frames._sessions.items()
    }
    assert said == {number: (each.sent, each.handles) for number, each in served.output.sessions.items()}
    _same_count(served)


def _same_count(served: Served) -> None:
    """Of what each session has received, as the engine says it in its flows."""
    wanted = set()
    for channel in served.guard.channels._channels.values():
        if channel.ended:
            continue
        for end in channel.links.values():
            if end.sends and served.links[end.pointer].open:
                engine.link_flow(end.pointer, 1)
                wanted.add(channel.received)
    before = len(served.output.written)
    served.output.write(1000)
    served.output.read()
    flows = [each.performative for each in served.output.written[before:]]
    assert {flow.next_incoming_id for flow in flows if isinstance(flow, Flow)} == wanted


# -- what is said of deliveries


_DELIVERIES = 5


def _to_two_consumers() -> Heard:
    """A link with deliveries on each of two sessions, the first with a link to post on."""
    served = Heard()
    served.hear([_OPENING])
    for channel in (0, 1):
        served.hear([frame(_BEGIN, channel=channel)])
        attach = Attach(name=f"in-{channel}", handle=0, role=RECEIVER, source=Source(address="a"), target=Target())
        served.hear([frame(attach, channel=channel)])
        flow = Flow(**_WINDOWS, handle=0, delivery_count=0, link_credit=_DELIVERIES)
        served.hear([frame(flow, channel=channel)])
    attach = Attach(
        name="out", handle=1, role=SENDER, source=Source(), target=Target(address="a"), initial_delivery_count=0
    )
    served.hear([frame(attach)])
    served.hear([frame(b"")] * 2 * _DELIVERIES)
    sent = [each.performative for each in served.output.written]
    assert sum(isinstance(each, Transfer) and not each.more for each in sent) == 2 * _DELIVERIES
    return served


def _in(octet: int) -> TransactionalState:
    return TransactionalState(txn_id=bytes((octet,)) * 16, outcome=Accepted())


_dispositions = st.builds(
    lambda channel, role, first, more, settled, state, large: frame(
        Disposition(
            role=role, first=first, last=None if more is None else first + more, settled=settled, state=state
        ).encoded(large=large),
        channel=channel,
    ),
    st.integers(0, 1),
    st.sampled_from((RECEIVER, RECEIVER, SENDER)),
    st.integers(0, _DELIVERIES),
    st.sampled_from((None, None, 0, 1, 3)),
    st.sampled_from((None, False, True)),
    st.sampled_from((None, Accepted(), Modified(delivery_failed=True), Rejected(error=Error(condition=Symbol("x"))),
                     _in(1), _in(2))),
    st.booleans(),
)  # fmt: skip
_flows = st.just(frame(Flow(**_WINDOWS)))


def _post(number: int, state: State | None, *, more: bool) -> bytes:
    given: dict[str, Any] = {"handle": 1, "delivery_id": number, "settled": False}
    first = Transfer(**given, delivery_tag=b"%d" % number, message_format=0, state=state, more=more or None)
    if not more:
        return frame(first, payload=b"x")
    return frame(first, payload=b"x") + frame(Transfer(**given), payload=b"x")


@pytest.mark.rule("T26")
@given(
    st.lists(_dispositions | _flows, min_size=8, max_size=12),
    st.lists(st.tuples(st.sampled_from((None, Accepted(), _in(1))), st.booleans()), max_size=3),
    st.randoms(use_true_random=False),
)
@profiles.of(6)
def test_what_is_said_of_deliveries_is_the_same_wherever_it_is_cut(
    said: list[bytes], posts: list[tuple[State | None, bool]], random: Random
) -> None:
    """At each octet, and behind each frame."""
    for number, (state, more) in enumerate(posts):
        said.insert(random.randrange(len(said) + 1), _post(number, state, more=more))
    stream = b"".join(said)
    apart = _to_two_consumers()
    apart.hear(said)
    for at in range(len(stream)):
        cut = _to_two_consumers()
        cut.hear([stream[:at], stream[at:]])
        assert cut.heard == apart.heard, at
        assert (cut.refused, cut.failed) == (apart.refused, apart.failed)


# -- plain frames


_KEY = (b"\x00\x00", b"\x52\x01")
_MESSAGE = b"\x00\x53\x75\xa0\x01x"
_FIELDS = b"\x52\x01\x52\x05\xa0\x01t\x43"


def _transfer(count: int, fields: bytes, *, large: bool = False) -> bytes:
    """A frame whose list says that it has so many fields."""
    size = len(fields) + (4 if large else 1)
    head = b"\xd0" + size.to_bytes(4, "big") + count.to_bytes(4, "big") if large else b"\xc0" + bytes((size, count))
    return frame(b"\x00\x53\x14" + head + fields, payload=_MESSAGE)


@pytest.mark.rule("P14")
@all_cases("large", [False, True])
@all_cases(
    ("count", "fields", "plain"),
    [
        (4, _FIELDS, True),
        (5, _FIELDS + b"\x41", True),
        (5, _FIELDS + b"\x40", True),
        (6, _FIELDS + b"\x42\x42", True),
        (6, _FIELDS + b"\x42\x40", True),
        (7, _FIELDS + b"\x41\x42\x40", True),
        (8, _FIELDS + b"\x41\x42\x40\x00\x53\x24\x45", True),
        (9, _FIELDS + b"\x41\x42\x40\x40\x42", True),
        (11, _FIELDS + b"\x41\x42\x40\x40\x40\x40\x41", True),
        pytest.param(9, _FIELDS + b"\x41\x42\x40\x40\x41", False, id="resumed"),
        pytest.param(9, _FIELDS + b"\x41\x42\x40\x40\x56\x01", False, id="resumed in two octets"),
        pytest.param(9, _FIELDS + b"\x41\x42\x40\x00\x53\x24\x45\x41", False, id="resumed in a state"),
        pytest.param(4, _FIELDS.replace(b"\x52\x05", b"\x52\x07"), False, id="not the next delivery"),
        pytest.param(3, _FIELDS, False, id="too few fields are said to be there"),
        pytest.param(0, _FIELDS, False, id="none is said to be there"),
        pytest.param(12, _FIELDS + b"\x41\x42\x40" + b"\x40" * 5, False, id="too many fields"),
        pytest.param(5, _FIELDS + b"\x00\x53\x24\x45", False, id="settled is described"),
        pytest.param(6, _FIELDS + b"\x41\x41", False, id="more"),
        pytest.param(6, _FIELDS + b"\x41\x00\x53\x24\x45", False, id="more is described"),
        pytest.param(7, _FIELDS + b"\x41\x42\x50\x01", False, id="rcv-settle-mode"),
        pytest.param(7, _FIELDS + b"\x41\x42\x00\x53\x24\x45", False, id="rcv-settle-mode is described"),
        pytest.param(4, _FIELDS[:-1] + b"\x52\x01", False, id="another message-format"),
        pytest.param(4, b"\x52\x02" + _FIELDS[2:], False, id="another handle"),
        pytest.param(4, b"\x52\x01\x40" + _FIELDS[4:], False, id="no delivery-id"),
        pytest.param(4, b"\x52\x01\x43\x40\x43", False, id="no delivery-tag"),
    ],
)
def test_which_transfers_are_plain(count: int, fields: bytes, plain: bool, large: bool) -> None:
    """Those of which nothing is to be said but how many they are, and which delivery is the next."""
    channel = Channel(0)
    channel.delivery = 5
    octets = b"".join(
        _transfer(count, fields.replace(b"\x52\x05", each), large=large) for each in (b"\x52\x05", b"\x52\x06")
    )
    assert frames.plain(octets, 0, {_KEY: channel}, {}) == (len(octets) if plain else 0)
    assert (channel.received, channel.delivery) == ((2, 7) if plain else (0, 5))


@pytest.mark.rule("P14")
@all_cases(
    ("fields", "plain"),
    [
        (b"\xc0\x03\x02\x41\x43", True),
        (b"\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x41\x43", True),
        (b"\xc0\x05\x03\x41\x52\x05\x40", True),
        (b"\xc0\x0a\x06\x41\x52\x05\x52\x09\x41\x40\x40", True),
        pytest.param(b"\xc0\x01\x00\x41\x43", False, id="no field"),
        pytest.param(b"\xc0\x02\x01\x41\x43", False, id="one field"),
        pytest.param(b"\xc0\x03\x07\x41\x43", False, id="too many"),
        pytest.param(b"\xc0\x03\x02\x40\x43", False, id="no role"),
        pytest.param(b"\xc0\x03\x02\x42\x43", False, id="by a sender"),
        pytest.param(b"\xc0\x03\x02\x41\x40", False, id="no first"),
        pytest.param(b"\xc0\x06\x03\x41\x52\x05\x52\x04", False, id="the last before the first"),
        pytest.param(b"\xc0\x06\x03\x41\x52\x05\x50\x06", False, id="the last is no number"),
        pytest.param(b"\xc0\x06\x04\x41\x43\x40\x56\x01", False, id="settled in two octets"),
    ],
)
def test_which_dispositions_are_plain(fields: bytes, plain: bool) -> None:
    """Those by a receiver that are whole, and name what was not named."""
    octets, channel = frame(b"\x00\x53\x15" + fields), Channel(0)
    channels: dict[frames.Key, Channel] = {(b"\x00\x00", None): channel}
    told: frames.Named = {}
    assert frames.plain(octets, 0, channels, told) == (len(octets) if plain else 0)
    assert bool(told) is plain
    assert frames.plain(octets, 0, channels, told) == 0
    assert frames.plain(octets[:-1], 0, channels, {}) == 0
    assert frames.plain(octets, 0, {}, {}) == 0
    assert channel.received == 0


@pytest.mark.rule("T26")
@all_cases(
    ("said", "pieces"),
    [
        ([(0, 0, None), (0, 1, None), (0, 2, 5), (0, 6, None)], 1),
        ([(0, 0, 9), (1, 0, 9), (0, 10, None), (1, 10, None)], 1),
        ([(0, 0, None), (0, 0, None)], 2),
        ([(0, 0, 5), (0, 3, None), (0, 4, 4), (0, 3, 9)], 3),
        ([(0, 5, None), (0, 4, None), (0, 3, None)], 3),
        ([(0, 0, None), (1, 0, None), (0, 0, None), (1, 0, None)], 2),
        pytest.param([(0, 7, None), (0, 0xFFFF_FFFE, 1), (0, 2, None), (0, 3, None)], 3, id="the numbers begin anew"),
    ],
)
def test_what_names_a_delivery_again_is_another_piece(said: list[tuple[int, int, int | None]], pieces: int) -> None:
    """``said``: session, first and last."""
    served = Served()
    served.hear([_stream(())])
    octets = b"".join(
        frame(Disposition(role=RECEIVER, first=first, last=last, settled=True), channel=channel)
        for channel, first, last in said
    )
    for _ in range(2):  # what was said in another read does not count
        assert len(list(served.guard.filter(octets, engine.buffer_of(octets)))) == pieces
