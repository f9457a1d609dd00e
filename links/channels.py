"""Channels tracks a peer's sessions and links by its frames, and applies the standard's rules to frames that violate
them.

The engine ignores absent fields, hides ``echo``, and closes the connection where only a session must end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from coordinator.errors import Condition, Refusal
from links import engine, states
from links.frames import LITTLE, LinkState
from links.incoming import Incoming
from links.performatives import ATTACH, BEGIN, CLOSE, DETACH, DISPOSITION, END, FLOW, OPEN, TRANSFER, Performative
from store.codec.encoding import DecodeError, encode_string, scalar

if TYPE_CHECKING:
    from coordinator.outcomes import Outcome
    from links.connection import Connection
    from links.frames import Key, Named

#: fields of an attach, and of its source
_SOURCE, _TARGET, _UNSETTLED = 5, 6, 7
_DEFAULT_OUTCOME = 8

# The sessions and links of a peer, by its frames.


class Channel:
    """A session that the peer has begun. ``pointer``: the engine's, once it has reported the session."""

    __slots__ = ("delivery", "ended", "left", "links", "named", "pointer", "received")

    def __init__(self, first: int) -> None:
        self.pointer: engine.Pointer | None = None
        #: the id of the next transfer
        self.received = first
        #: the id of the next delivery; None: there was no delivery yet
        self.delivery: int | None = None
        self.links: dict[int, End] = {}
        #: the number of links of each name, by whether the peer is the sender, and the name
        self.named: Counter[tuple[bool, str]] = Counter()
        #: whether the service has ended it: frames are ignored until the peer's end (part 2, section 2.5.5)
        self.ended = False
        #: then: the transactions of the deliveries that it left undecided; empty octets for those without one
        self.left: set[bytes] = set()


class End:
    """A link that the peer has attached."""

    __slots__ = (
        "acquires", "channel", "delivery", "hidden_fields", "incomplete", "keys", "limit", "name", "pointer",
        "recovered", "recovering", "refusal", "resumes", "second", "sends", "settled", "txn_id",
    )  # fmt: skip

    def __init__(self, name: str, channel: int, *, sends: bool, second: bool) -> None:
        #: its name in the engine
        self.name = name
        #: the channel of the peer's session
        self.channel = channel
        self.pointer: engine.Pointer | None = None
        #: whether the peer is its sender
        self.sends = sends
        #: whether its receiver settles second
        self.second = second
        #: if the peer is the receiver: the delivery-count up to which it has granted credit
        self.limit = 0
        #: the txn-id that its flows have named last: its messages are acquired in that transaction (T33); False:
        #: a later one has properties without a txn-id
        self.acquires: bytes | Literal[False] | None = None
        #: whether its current delivery is incomplete
        self.incomplete = False
        #: the last begun delivery: its id, its transaction, and whether it resumes one of an earlier link
        self.delivery = 0
        self.txn_id: bytes | None = None
        self.resumes = False
        #: whether that delivery is settled
        self.settled = False
        #: the keys under which its transfers are plain
        self.keys: set[Key] = set()
        #: the refusal of its attach
        self.refusal: Refusal | None = None
        #: the fields of its termini that the engine hides
        self.hidden_fields: Termini | None = None
        #: the outcomes of deliveries of earlier links that the peer, a receiver, could not tell (P21), by their entries
        self.recovered: dict[int, Outcome] = {}
        #: octets of the map that they came in
        self.recovering = 0


class Termini(NamedTuple):
    """The fields of an attach's source and target that the engine hides (part 3, section 3.5.3): whether each is
    present, and the default-outcome of the source, or None.
    """

    source: bool
    target: bool
    default_outcome: Outcome | None


def _termini(attach: Performative) -> Termini:
    """Decode the hidden fields of an attach.

    :raises DecodeError: the default-outcome is not one of the four.
    """
    fields = attach.fields(_SOURCE, _DEFAULT_OUTCOME + 1)
    outcome = None
    if len(fields) > _DEFAULT_OUTCOME:
        outcome = states.default_outcome(attach.octets, fields[_DEFAULT_OUTCOME])
    return Termini(attach.has(_SOURCE), attach.has(_TARGET), outcome)


#: The act that follows a frame, right after the engine has got it.
Act = Callable[[], None]

#: the smallest max-frame-size (part 2, section 2.8.19)
_SMALLEST_FRAME = 512
_SECOND = 1
_TXN_ID = "txn-id"
#: the place of the state in transfers and dispositions
_STATES = {TRANSFER: 7, DISPOSITION: 4}
#: link-credit is a uint, which the engine counts in a signed one
MOST_CREDIT = (1 << 31) - 1
_IDS = 1 << 32
# The engine copies a disposition's state to each delivery that it names: one frame of 54 kB for 10,000 deliveries is
# half a gigabyte before the first event, and 14 times as much once it is decoded and its values are small. The engine
# keeps that memory for the next delivery in the same place, settled or not.
#: the most octets of a state, times the deliveries that it applies to
MOST_OCTETS = 1 << 20
#: the most octets of a disposition by a sender
_MOST_BY_SENDER = 1068
#: the most octets of a transfer without its message: a tag and a transactional-state take fewer than 100
MOST_OF_TRANSFER = 1024
_NULL, _TRUE = b"\x40", b"\x41"
#: frames that are not ignored on the channel of an ended session
_ALWAYS = (OPEN, END, CLOSE)


class Broken(Refusal):
    """Refuses a frame for which the connection must end, not only the session."""


class Before(partial[None]):
    """An act that precedes the frame in the engine: the frame is the reason why a link ends."""


class Channels:
    """Tracks the sessions and links of one peer. ``plain``: the channel of each link whose next transfer may begin a
    delivery, and for dispositions that of each session. ``named``: the deliveries named by dispositions that the engine
    has got, and whose events are not handled. ``largest``: octets of the largest disposition of the last input; 0: none
    is large.
    """

    __slots__ = (
        "_attaching", "_beginning", "_by_symbol", "_channels", "_connection", "_ends", "_handle_max", "_refused",
        "_renamed", "largest", "named", "open_refused", "opened", "plain",
    )  # fmt: skip

    def __init__(self, connection: Connection, handle_max: int) -> None:
        self._connection = connection
        self._handle_max = handle_max
        self._channels: dict[int, Channel] = {}
        self.plain: dict[Key, Channel] = {}
        self.named: Named = {}
        self.largest = 0
        #: whether the peer encodes descriptors as symbols: then its frames are never plain
        self._by_symbol = False
        #: sessions and links that the engine has not reported yet, in order
        self._beginning: deque[Channel] = deque()
        self._attaching: deque[End] = deque()
        self._refused: dict[engine.Pointer, Refusal] = {}
        self._ends: dict[engine.Pointer, End] = {}
        #: how many links have another name in the engine than the peer's
        self._renamed = 0
        #: whether the peer has sent the open
        self.opened = False
        #: the refusal of the open, and the field that is the reason
        self.open_refused: tuple[Refusal, str] | None = None

    # -- events of the engine

    def begun(self, session: engine.Pointer) -> None:
        if self._beginning:
            self._beginning.popleft().pointer = session

    def attached(self, link: engine.Pointer) -> None:
        if self._attaching:
            end = self._attaching.popleft()
            end.pointer = link
            self._ends[link] = end
            if end.refusal is not None:
                self._refused[link] = end.refusal

    def refusal_of(self, link: engine.Pointer) -> Refusal | None:
        """Return the refusal of an attach, for fields that the engine hides; only once."""
        return self._refused.pop(link, None)

    def end_of(self, link: engine.Pointer) -> End | None:
        """Return the peer's end of a link; None: the peer has detached it."""
        return self._ends.get(link)

    def hidden_fields(self, link: engine.Pointer) -> Termini | None:
        """Return the fields of the termini in its attach; None: the peer has detached the link."""
        end = self._ends.get(link)
        return None if end is None else end.hidden_fields

    # -- frames of the peer

    def by_symbol(self) -> None:
        """Have each frame checked, as the peer encodes descriptors as symbols."""
        self._by_symbol = True
        self.plain.clear()

    def ignores(self, number: int, found: Performative) -> bool:
        """Whether the frame belongs to a session that the service has ended."""
        channel = self._channels.get(number)
        return channel is not None and channel.ended and found.code not in _ALWAYS

    def renamed(self, number: int, attach: Performative) -> bytes:
        """Return the attach with a unique name, if another link of its session has the same (part 2, section 2.6.1),
        for which the engine would close the connection. A NUL ends the name for all but the engine. Empty: unchanged.
        """
        channel, name = self._channels.get(number), attach.value(0)
        if channel is None or not isinstance(name, str):
            return b""
        if "\0" in name:
            raise _cut("the name of a link")
        if not channel.named[attach.value(2) is False, name]:
            return b""
        self._renamed += 1
        self._connection.output.frames.renames()
        return attach.rewritten({0: encode_string(f"{name}\0{self._renamed}")})

    def take(self, number: int, found: Performative, octets: bytes) -> Act | None:
        """Check a frame on that channel; return the act that it needs. ``octets``: those that ``found`` was decoded
        from.

        :raises Refusal: the session must end, and the engine must not get the frame. Broken: the connection must end.
        :raises DecodeError: the connection must end.
        """
        if not self.opened and found.code != OPEN:
            text = f"{found.name} before the open, which comes first (part 2, section 2.4.1)"
            raise Refusal(Condition.ILLEGAL_STATE, text)
        judge = _JUDGES.get(found.code)
        if judge is not None:
            return judge(self, number, found)
        channel = self._channels.get(number)
        if channel is None:  # the engine reports the unknown session
            return None
        if found.code == TRANSFER:
            return self._on_transfer(channel, found, octets)
        if found.code == DISPOSITION:
            return self._on_disposition(channel, found, len(octets))
        if found.code == FLOW:
            return self._on_flow(number, channel, found)
        if found.code == DETACH:
            end = self._link(channel, found, 0)
            self._forget(channel, end)
            self._leave(end)
            name = end.sends, _said(end.name)
            channel.named[name] -= 1
            if not channel.named[name]:
                del channel.named[name]
            del channel.links[found.number(0) or 0]
        return None

    def _on_open(self, number: int, found: Performative) -> None:
        container = found.value(0)
        if type(container) is not str:
            text = "an open without its mandatory field container-id, a string"
            self.open_refused = Refusal(Condition.DECODE_ERROR, text), ""
        elif "\0" in container:
            self.open_refused = _cut("the container-id"), "container-id"
        if number:
            text = f"an open on channel {number}: 0 was expected (part 2, section 2.4.1)"
            self.open_refused = Refusal(Condition.NOT_ALLOWED, text), ""
        size = found.number(2)
        if size is not None and size < _SMALLEST_FRAME:
            text = f"a max-frame-size of {size}: {_SMALLEST_FRAME} or more was expected (part 2, section 2.7.1)"
            self.open_refused = Refusal(Condition.INVALID_FIELD, text), "max-frame-size"
        self.opened = True

    def _on_begin(self, number: int, found: Performative) -> Act | None:
        if number in self._channels:
            raise DecodeError(f"a begin on channel {number}, which another session has")
        if found.number(0) is not None:  # the connection reports the error
            return None
        channel = self._channels[number] = Channel(found.number(1) or 0)
        if not self._by_symbol:
            self.plain[_of_dispositions(number)] = channel
        self._beginning.append(channel)
        # the engine refuses transfers before it has written the answer
        return partial(_write, self._connection)

    def _on_attach(self, number: int, found: Performative) -> Act | None:
        channel = self._channels.get(number)
        if channel is None:
            return None
        handle = found.number(1) or 0
        if handle > self._handle_max:
            text = f"an attach with the handle {handle}: expected at most our handle-max, {self._handle_max}"
            raise Broken(Condition.FRAMING_ERROR, text)
        if handle in channel.links:
            raise Refusal(Condition.HANDLE_IN_USE, f"an attach with the handle {handle}, which another link has")
        sends = found.value(2) is False
        if sends and not found.has(9):
            raise Refusal(Condition.INVALID_FIELD, "an attach by a sender without its initial-delivery-count")
        name = str(found.value(0))
        channel.named[sends, _said(name)] += 1
        end = channel.links[handle] = End(name, number, sends=sends, second=found.value(4) == _SECOND)
        try:
            end.hidden_fields = _termini(found)
            if not sends and found.has(_UNSETTLED):
                self._recover(end, bytes(found.octets[found.starts[_UNSETTLED] : found.end_of(_UNSETTLED)]))
        except DecodeError as error:
            end.refusal = Refusal(Condition.INVALID_FIELD, str(error))
        except Refusal as refusal:
            end.refusal = refusal
        address = found.address(_TARGET if sends else _SOURCE)
        if isinstance(address, str) and "\0" in address:
            end.refusal = _cut("an address")
        if not sends and found.value(8) is True:
            text = "an attach of a receiver whose map of unsettled deliveries is incomplete: no delivery is resumed"
            end.refusal = Refusal(Condition.NOT_IMPLEMENTED, text)
        self._attaching.append(end)
        return partial(_write, self._connection)

    def _recover(self, end: End, octets: bytes) -> None:
        """Keep the outcomes in a receiver's map of unsettled deliveries, those of this store (P21)."""
        service = self._connection.service
        prefix = service.store_id.encode() + b":"
        end.recovered = states.recovered(octets, prefix)
        end.recovering = len(octets) if end.recovered else 0
        most = service.memory.fair_share
        if sum(each.recovering for channel in self._channels.values() for each in channel.links.values()) > most:
            end.recovered, end.recovering = {}, 0
            text = f"the maps of unsettled deliveries of a connection's links have at most {most} octets together"
            raise Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text)

    def _link(self, channel: Channel, found: Performative, place: int) -> End:
        handle = found.number(place) or 0
        end = channel.links.get(handle)
        if end is None:
            raise Refusal(Condition.UNATTACHED_HANDLE, f"no link of the session has the handle {handle}")
        return end

    def _on_transfer(self, channel: Channel, found: Performative, octets: bytes) -> Act | None:
        end = self._link(channel, found, 0)
        if not end.sends:
            raise Refusal(Condition.NOT_ALLOWED, "a transfer on a link whose sender is the service")
        channel.received += 1
        number = found.number(1)
        begins = not end.incomplete or (number not in (None, end.delivery) and self._has_given_up(end))
        end.incomplete = found.value(5) is True and found.value(9) is not True
        if not begins and end.settled and found.value(4) is False:
            raise Refusal(Condition.INVALID_FIELD, "a delivery that was settled is said not to be")
        end.settled = found.value(4) is True or (end.settled and not begins)
        if begins:
            self._begin_delivery(channel, end, found, number)
        elif number not in (None, end.delivery):
            text = f"a transfer with the delivery-id {number} in the midst of the delivery {end.delivery} of its link"
            raise Refusal(Condition.INVALID_FIELD, text)
        if end.incomplete:
            self._forget(channel, end)
        else:
            first, second = found.starts[0], found.starts[1] if len(found.starts) > 1 else len(octets)
            key = octets[6:8], octets[first:second]
            if not self._by_symbol:
                end.keys.add(key)
                self.plain[key] = channel
        refusal = _of_delivery(end, found, begins)
        if refusal is not None:
            return Before(self._refuse_next, end, refusal)
        if not end.resumes:
            return None if begins else self._of_another(end, found)
        if end.txn_id is None:
            return None
        return Before(self._connection.service.registry.refuse_incomplete, end.txn_id, self._connection)

    def _begin_delivery(self, channel: Channel, end: End, found: Performative, number: int | None) -> None:
        if number is None:
            raise Refusal(Condition.INVALID_FIELD, "the first transfer of a delivery without its delivery-id")
        if channel.delivery not in (None, number):
            text = f"a delivery with the delivery-id {number}: {channel.delivery} was expected"
            raise Refusal(Condition.INVALID_FIELD, text)
        channel.delivery = (number + 1) % _IDS
        end.delivery, end.txn_id, end.resumes = number, _txn_id_of(found), found.value(8) is True

    def _has_given_up(self, end: End) -> bool:
        """Whether the link has refused the incomplete delivery, whose rest need not be sent."""
        link = self._connection.endpoints.links.get(end.pointer)
        return not isinstance(link, Incoming) or link.ending is not None

    def _of_another(self, end: End, found: Performative) -> Act | None:
        """Return the act for a state with another transaction than the delivery's first transfer (part 4, section
        4.4.1), or None if it is the same. The engine uses the first, or a later state of the sender.
        """
        txn_id = _txn_id_of(found)
        if txn_id == end.txn_id or (txn_id is None and found.code == TRANSFER):
            return None
        return Before(self._refuse_in_both, end, txn_id)

    def _refuse_in_both(self, end: End, txn_id: bytes | None) -> None:
        for each in (end.txn_id, txn_id):
            if each is not None:
                self._connection.service.registry.refuse_incomplete(each, self._connection)
        text = "a delivery that is said to be in two transactions, or in one and in none (part 4, section 4.4.1)"
        self._refuse_next(end, Refusal(Condition.TXN_ROLLBACK, text))

    def resumed(self, number: int, found: Performative) -> bytes:
        """Return the transfer of a resumed delivery, rewritten for the engine. Deliveries are never resumed here, so
        that it is ignored (part 2, section 2.6.13): without its message, and aborted by its last transfer. Empty: the
        delivery is not resumed.
        """
        channel = self._channels.get(number)
        end = None if channel is None else channel.links[found.number(0) or 0]
        if end is None or not end.resumes:
            return b""
        more, aborted = (_TRUE, _NULL) if end.incomplete else (_NULL, _TRUE)
        return found.rewritten({5: more, 7: _NULL, 8: _NULL, 9: aborted})

    def _on_disposition(self, channel: Channel, found: Performative, size: int) -> Act | None:
        """Check a disposition. If two name one delivery, the engine reports only the last; so the events of the first
        are handled before the engine gets the second.
        """
        first = found.number(1) or 0
        last = first if (said := found.number(2)) is None else said
        if size > LITTLE:
            self._bound(found, size, (last - first) % _IDS + 1)
        if found.value(0) is not True:
            for end in channel.links.values() if found.has(_STATES[DISPOSITION]) else ():
                if end.incomplete and not end.resumes and first <= end.delivery <= last:
                    return self._of_another(end, found) or Before(self.named.clear)
            return Before(self.named.clear)
        if not self.named.get(channel, -1) < first <= last:
            return Before(self._begin_numbers_anew, channel, last if first <= last else _IDS)
        self.named[channel] = last
        return None

    def _bound(self, found: Performative, size: int, named: int) -> None:
        """Check the size of a disposition.

        :raises Broken: the engine would use too much memory for it.
        """
        if named * size > MOST_OCTETS:
            text = f"a disposition of {size} bytes for many deliveries: say it of fewer at once, or say less"
            raise Broken(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        if size > _MOST_BY_SENDER and found.value(0) is not True:
            text = f"a disposition of {size} bytes by a sender: say less in its state"
            raise Broken(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        self.largest = max(self.largest, size)

    def _begin_numbers_anew(self, channel: Channel, highest: int) -> None:
        """Reset the named deliveries to ``highest``, which is above all if the numbers begin anew."""
        self.named.clear()
        self.named[channel] = highest

    def _on_flow(self, number: int, channel: Channel, found: Performative) -> Act | None:
        asked, sent = found.value(9) is True, found.number(2) or 0
        if sent != channel.received % _IDS:  # part 2, section 2.5.6: the peer's count is valid
            self._connection.output.frames.counts(number, sent - channel.received)
            channel.received = sent
        if not found.has(4):
            for place, name in ((5, "delivery-count"), (6, "link-credit"), (7, "available"), (8, "drain")):
                if found.has(place) and found.value(place) is not False:
                    raise Refusal(Condition.INVALID_FIELD, f"a flow of the session, without a handle, with {name}")
            return partial(self._echo, number, None, drains=False) if asked else None
        end = self._link(channel, found, 4)
        txn_id = None if end.sends else found.told(10, _TXN_ID)
        if txn_id is not None:
            if not isinstance(txn_id, bytes):
                text = f"a flow whose {_TXN_ID} is no binary"
                return Before(self._refuse, end, Refusal(Condition.INVALID_FIELD, text))
            end.acquires = txn_id
        elif end.acquires is not None and found.has(10):
            end.acquires = False
        end.limit = (found.number(5) or 0) + min(found.number(6) or 0, MOST_CREDIT)
        drains = found.value(8) is True and not end.sends
        return partial(self._echo, number, end, drains) if asked or drains else None

    def _on_end(self, number: int, _found: Performative) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._connection.output.frames.ended(number)
            self.plain.pop(_of_dispositions(number), None)
            for end in channel.links.values():
                self._forget(channel, end)
                self._leave(end)

    def _leave(self, end: End) -> None:
        """Forget the pointer of a link that the peer has detached."""
        self._ends.pop(end.pointer, None)
        end.pointer = None

    def _forget(self, channel: Channel, end: End) -> None:
        """Have the transfers of the link checked: they are no longer plain."""
        for key in end.keys:
            self.plain.pop(key, None)
        end.keys.clear()

    # -- acts

    def refuse_incomplete(self, number: int, found: Performative | None) -> None:
        """Refuse the transaction of a frame that is ignored: of an ended session, or the reason of its end. A transfer
        may be a post (T22), a receiver's disposition a retirement (T26), of any delivery that the session left
        undecided.
        """
        if found is not None and found.code in _STATES:
            txn_id = _txn_id_of(found)
            if txn_id is not None and (
                found.code == TRANSFER or (found.value(0) is True and self._channels[number].left - {txn_id})
            ):
                self._connection.service.registry.refuse_incomplete(txn_id, self._connection)

    def end(self, number: int, refusal: Refusal, found: Performative | None) -> None:
        """End a session because of the frame ``found`` (part 2, section 2.5.5). The connection stays open."""
        channel = self._channels[number]
        channel.ended = True
        self.plain.pop(_of_dispositions(number), None)
        for end in channel.links.values():
            self._forget(channel, end)
        if channel.pointer is not None:
            channel.left = self._connection.end_session(channel.pointer, refusal)
        self.refuse_incomplete(number, found)

    def _echo(self, number: int, end: End | None, drains: bool) -> None:
        """Send the flow state of the session, or of a link. ``drains``: only if a drain has found no credit, which the
        engine does not answer.
        """
        link = None if end is None else self._connection.endpoints.links.get(end.pointer)
        if end is None:
            self._connection.output.add_frame(number, partial(self._state, number, None))
        elif isinstance(link, Incoming):
            link.send_credit()
        elif link is not None and not end.sends and not (drains and engine.link_credit(link.pointer) > 0):
            self._connection.output.add_frame(end, partial(self._state, number, end))

    def send_state(self, link: engine.Pointer) -> None:
        """Send the flow state of a link, whose drained credit is used up."""
        end = self._ends.get(link)
        if end is not None:
            self._connection.output.add_frame(end, partial(self._state, end.channel, end))

    def _state(self, number: int, end: End | None) -> bytes:
        """Return the flow of a session or link; empty if it has ended."""
        channel = self._channels.get(number)
        if channel is None or channel.ended:
            return b""
        if end is None:
            return self._connection.output.frames.flow(number, channel.received, None)
        link = self._connection.endpoints.links.get(end.pointer)
        if link is None:
            return b""
        left = engine.link_credit(link.pointer) + engine.link_queued(link.pointer)
        state = LinkState(end.name, end.limit - left, max(0, left), bool(engine.link_get_drain(link.pointer)))
        return self._connection.output.frames.flow(number, channel.received, state)

    def _refuse(self, end: End, refusal: Refusal) -> None:
        link = self._connection.endpoints.links.get(end.pointer)
        if link is not None and link.open:
            link.refuse(refusal)

    def _refuse_next(self, end: End, refusal: Refusal) -> None:
        """Refuse the next delivery of a link, unless its attach waits for the store: it has no credit, and refuses
        transfers.
        """
        link = self._connection.endpoints.links.get(end.pointer)
        if isinstance(link, Incoming):
            link.refuse_next(refusal)


def _of_delivery(end: End, found: Performative, begins: bool) -> Refusal | None:
    """Return the refusal of the link for an invalid transfer (part 2, section 2.7.5); None: it is valid."""
    if begins and not found.has(2):
        return Refusal(Condition.INVALID_FIELD, "the first transfer of a delivery without its delivery-tag")
    if begins and end.incomplete and not found.has(3):
        return Refusal(Condition.INVALID_FIELD, "the first transfer of a delivery of many without its message-format")
    if found.number(3):
        return Refusal(Condition.NOT_IMPLEMENTED, f"messages of the format {found.number(3)}: 0 was expected")
    if found.number(6) == _SECOND and not end.second:
        text = "a transfer with the rcv-settle-mode second, on a link whose own is first"
        return Refusal(Condition.INVALID_FIELD, text)
    return None


def _txn_id_of(found: Performative) -> bytes | None:
    """Return the txn-id of the frame's transactional state; None: it has no such state."""
    with suppress(DecodeError):
        for start in found.fields(_STATES[found.code], 1):
            txn_id, _ = scalar(found.octets, start)
            if isinstance(txn_id, bytes):
                return txn_id
    return None


def _of_dispositions(number: int) -> Key:
    return bytes(divmod(number, 256)), None


def _said(name: str) -> str:
    """Return the peer's own name of a link."""
    return name.partition("\0")[0]


def _cut(what: str) -> Refusal:
    """Return the refusal of a text with a NUL, which would end it in the engine, as a string of C."""
    return Refusal(Condition.INVALID_FIELD, f"{what} has a NUL, which ends it in the engine")


def _write(connection: Connection) -> None:
    """Have the engine make the frames that it has to write."""
    engine.transport_pending(connection.transport)


_JUDGES: dict[int, Callable[[Channels, int, Performative], Act | None]] = {
    OPEN: Channels._on_open,
    BEGIN: Channels._on_begin,
    ATTACH: Channels._on_attach,
    END: Channels._on_end,
}
