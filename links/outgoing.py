"""Outgoing links answer an attach, and send deliveries to the peer (rules P5 to P8).

A large message (:data:`store.spool.LARGE`) is handed to the engine in pieces. Each piece is read from the store when
the one before it is written, so a consumer of large messages costs a piece or two of memory. The other deliveries of
the link wait until the large one is complete; other links do not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import structlog

from coordinator.codec import filters
from coordinator.codec.selectors import Selector
from coordinator.errors import Condition, Refusal
from coordinator.group.entries import now_micros
from links import container, engine, steps
from links.close_reason import CloseReason
from links.link import RECEIVER, Link, answer_default_outcome, answer_terminus, copy_target
from links.output import MOST_HANDED
from store.codec.encoding import DecodeError, decode, encode_map, pairs, skip
from store.codec.message import first_delivery, outgoing

if TYPE_CHECKING:
    from coordinator.address.nodes import Address
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.outcomes import Outcome
    from links.connection import Connection


# Delivering is the base of all links on which the service sends: answer to the attach, credit, waits (rules P5, P8).

#: the most octets that wait to be written in one session; with more, its consumers stop
MOST_BACKLOG = 1 << 20


class Delivering(Link):
    """A link on which the service sends: it has the credit, answers a drain, and sends while the session has room."""

    __slots__ = ("_drains", "_end", "_owes_flow", "_unused", "credit", "draining")

    def __init__(
        self, connection: Connection, pointer: engine.Pointer, address: str, filters: bytes, *, lasts: bool = False
    ) -> None:
        """Answer the attach. ``filters``: the encoded map of honoured filters. ``lasts``: the source outlives the
        link.
        """
        super().__init__(connection, pointer)
        source = engine.link_source(pointer)
        answer_terminus(source, engine.link_remote_source(pointer), lasts=lasts)
        engine.terminus_set_type(source, engine.SOURCE)  # a null source names a subscription by the link's name
        asked = None if engine.terminus_is_dynamic(source) else engine.address_of(source)
        engine.set_address(source, asked or address)
        if not engine.terminus_distribution_mode(source):  # part 3, section 3.5.3
            engine.terminus_set_distribution_mode(source, engine.DIST_MODE_MOVE)
        # P8: the answer leaves out unknown filters
        engine.put_octets(filters, engine.terminus_filter(source))
        engine.put(container.symbols(container.OUTCOMES), engine.terminus_outcomes(source))
        copy_target(connection, pointer)
        engine.link_set_snd_settle_mode(pointer, engine.link_remote_snd_settle_mode(pointer))
        engine.link_set_rcv_settle_mode(pointer, engine.link_remote_rcv_settle_mode(pointer))
        engine.link_set_max_message_size(pointer, int(connection.service.limits.max_message_size_bytes))
        engine.link_open(pointer)
        self._end = self._channels.end_of(pointer)
        #: credit that the peer has drained
        self._unused = 0
        #: whether the drain ends once the engine has written its deliveries for the link
        self._drains = False
        #: whether the peer drains credit, and the flow that it is used up is still to be sent
        self._owes_flow = False
        self._read_credit()
        connection.mark()

    def _read_credit(self) -> None:
        self.credit = max(0, engine.link_credit(self.pointer))
        self.draining = bool(engine.link_get_drain(self.pointer))
        self._owes_flow = self._owes_flow or (self.draining and self.credit > 0)

    @property
    def carried(self) -> int:
        # what the peer's delivery-count and credit allow, less what is left of it, is the engine's own delivery-count
        limit = 0 if self._end is None else self._end.limit
        return (limit - int(engine.link_credit(self.pointer)) - self._unused) % (1 << 32)

    def lost(self) -> None:
        self.connection.held_back.pop(self, None)

    def refuses_acquisition(self) -> bool:
        """Refuse to acquire messages in a transaction if a flow names one (part 4, section 4.4.3); whether it has."""
        if self._end is None or self._end.acquires is None:
            return False
        text = f"the link {self.name!r} acquires nothing in a transaction: expected flows without a txn-id"
        self.refuse(Refusal(Condition.NOT_IMPLEMENTED, text))
        return True

    def _backlogged(self) -> bool:
        """Whether too many octets wait to be written for the link to send."""
        output = self.connection.output
        in_session: int = engine.session_outgoing_bytes(self.session)
        return output.writing or output.handed > MOST_HANDED or in_session > MOST_BACKLOG

    def _held_back(self) -> bool:
        """Whether the link must wait: its connection leaves more than its share unsettled, and all together too
        much.
        """
        if self.connection.output.over_share:
            self.connection.hold_back(self)
            return True
        return False

    def held_no_more(self) -> None:
        if self.open:
            self._has_room()

    def _has_room(self) -> None:
        """Send more, as there may be room, or the peer drains its credit."""
        raise NotImplementedError

    def refuse_transfer(self) -> bool:
        """Close the connection if the peer, the receiver of this link, has sent a transfer; whether it has."""
        if engine.link_current(self.pointer) == engine.NULL:  # our own deliveries are complete at once
            return False
        text = f"a transfer from the receiver of the link {self.name!r}"
        self.connection.force_close(CloseReason.PROTOCOL_ERROR, Condition.NOT_ALLOWED, text)
        return True

    def drained(self) -> None:
        self.credit = 0
        self.draining = False
        self._drains = True
        engine.transport_pending(self.connection.transport)  # it makes its frames, as far as the peer's window allows
        self._end_drain()

    def _end_drain(self) -> None:
        """Send the end of a drain. The engine sends it only if called after the last transfer, and if credit is
        left.
        """
        if engine.link_queued(self.pointer) > 0:
            self.connection.starved[self] = None
            return
        self._drains = False
        # A peer that lowers its credit below what is on its way leaves less than none: the engine would take that back.
        left = engine.link_credit(self.pointer)
        if left > 0:
            self._unused += left
            engine.link_drained(self.pointer)
        elif self._owes_flow:
            self.connection.send_state(self.pointer)
        self._owes_flow = False
        self.connection.mark()

    def fed(self) -> None:
        """Resume after octets were written."""
        if self.open:
            if self._drains:
                self._end_drain()
            self._go_on_sending()

    def _go_on_sending(self) -> None:
        """Send more, if there is room."""
        raise NotImplementedError


log = structlog.get_logger(__name__)

_keys = count(1)

#: octets of one piece of a large message, read when fewer than these wait to be written
_PIECE = 1 << 18
#: octets of the engine's buffer for a large delivery until that is settled
LARGE_IN_ENGINE = 2 * _PIECE
#: the most octets that a header with counts adds to a message, without annotations
_MOST_ADDED = 64


class TooLarge(Exception):
    """A message has more octets than the peer accepts (part 2, section 2.7.3)."""


class Large:
    """A large delivery under way. ``at``: how many octets of the stored message the engine has got."""

    __slots__ = ("asking", "at", "delivery", "entry")

    def __init__(self, entry: Entry, delivery: engine.Pointer) -> None:
        self.entry = entry
        self.delivery = delivery
        self.at = 0
        self.asking = False


class Outgoing(Delivering):
    """The base of consumers and browsers: sends entries as deliveries."""

    role = RECEIVER
    __slots__ = (
        "_address", "_large", "_most_octets", "_queue", "_store_prefix", "default_outcome", "in_txn", "key",
        "presettled",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        honoured: Filters,
        *,
        lasts: bool = False,
    ) -> None:
        """``lasts``: the source outlives the link."""
        self.key = next(_keys)
        #: the largest message that the peer accepts; 0: any (part 2, section 2.7.3)
        self._most_octets: int = engine.link_remote_max_message_size(pointer)
        self._large: Large | None = None
        #: the encoded state of transfers that are acquired in a transaction; empty: they are in none
        self.in_txn = b""
        self._address = address
        address.users.add(self)
        self._queue = queue
        self._store_prefix = connection.service.store_id.encode() + b":"
        self.presettled = engine.link_remote_snd_settle_mode(pointer) == engine.SND_SETTLED
        asked = connection.hidden_fields(pointer)
        #: the default outcome of the source; None: it names none, and the default of T28 applies
        self.default_outcome: Outcome | None = None
        if asked is not None and asked.default_outcome is not None:
            self.default_outcome = self._default_outcome(asked.default_outcome)
        super().__init__(connection, pointer, address.name, honoured.answer(), lasts=lasts)
        if self.default_outcome is not None:
            answer_default_outcome(connection, pointer, self.default_outcome)

    def _default_outcome(self, asked: Outcome) -> Outcome:
        """Return the default outcome that applies when a source names this one."""
        return asked

    def on_flow(self) -> None:
        if self.refuses_acquisition():
            return
        credit = max(0, engine.link_credit(self.pointer))
        drains = bool(engine.link_get_drain(self.pointer))
        self._owes_flow = self._owes_flow or (drains and credit > 0)
        draining = drains and self._large is None
        if credit == self.credit and not draining and not self.draining:
            return  # the engine also reports each transfer that it has written
        self.credit = credit
        self.draining = draining
        self._has_room()
        self.connection.mark()

    def lost(self) -> None:
        self._address.users.discard(self)
        super().lost()

    def _has_room(self) -> None:
        self._queue.touch()

    def _deliver(self, entry: Entry) -> engine.Pointer:
        """Send an entry, or begin to send a large one; return the delivery. If it raises, nothing was sent.

        :raises DecodeError: the stored message cannot be decoded.
        :raises TooLarge: the message is larger than the peer accepts.
        """
        octets = entry.message
        assert octets is not None
        pointer = self.pointer
        if not entry.whole:
            # the delivery-count that the poster set is never passed on
            changed = entry.attempts or entry.expires or entry.acquired or entry.annotations
            octets = _marked(entry, octets) if changed else first_delivery(octets)
        if self._most_octets:
            # of a large message: with all octets that the service may add
            size = entry.whole + len(entry.annotations) + _MOST_ADDED if entry.whole else len(octets)
            if size > self._most_octets:
                raise TooLarge(size)
        tag = self._store_prefix + b"%d" % entry.id
        if entry.whole:
            delivery = steps.outgoing_delivery(pointer, tag)
            if self.in_txn:
                engine.set_state(delivery, engine.TRANSACTIONAL, self.in_txn)
            self._large = Large(entry, delivery)
            self.draining = False
            self._send_head(self._large, octets)
            return delivery
        delivery = steps.send_whole(pointer, tag, octets)
        if self.in_txn:  # the engine writes it with the transfer, which is made later
            engine.set_state(delivery, engine.TRANSACTIONAL, self.in_txn)
        connection = self.connection
        connection.output.handed += len(octets)
        self.credit -= 1
        if not connection.dirty:
            connection.mark()
        return delivery

    # -- large messages

    def _send_head(self, large: Large, head: bytes) -> None:
        """Send the first piece. ``head``: the beginning of the stored message, with the sections that the service may
        change.
        """
        entry = large.entry
        octets = head
        try:
            octets = _marked(entry, head)
        except DecodeError:
            if len(head) < entry.whole:
                self._ask(large, 2 * len(head))
                return
        self._send_piece(large, octets, len(head))

    def _send_piece(self, large: Large, octets: bytes, stored: int) -> None:
        large.at += stored
        engine.link_send(self.pointer, octets, len(octets))
        self.connection.output.handed += len(octets)
        self.connection.mark()
        self._go_on()

    def _go_on(self) -> None:
        """Send the next piece if there is room for it; otherwise wait until octets are written."""
        large = self._large
        if large is None or large.asking:
            return
        connection = self.connection
        if large.at >= large.entry.whole:
            self._large = None
            engine.link_advance(self.pointer)
            connection.mark()
            self._read_credit()
            self._sent(large.entry, large.delivery)
            self._has_room()
        elif connection.output.writing or connection.asking or engine.session_outgoing_bytes(self.session) > _PIECE:
            connection.starved[self] = None
        else:
            self._ask(large, _PIECE)

    def _ask(self, large: Large, size: int) -> None:
        """Read the next piece. A connection reads one at a time, for all its links."""
        large.asking = self.connection.asking = True

        def answered(octets: bytes | None) -> None:
            self.connection.asking = large.asking = False
            self.connection.mark()
            if self._large is not large or not self.open:
                return
            if not octets:
                log.error("a large message cannot be read to its end", entry=large.entry.id, at=large.at)
                self.refuse(Refusal(Condition.INTERNAL_ERROR, "the store has lost a part of a message"))
            elif large.at:
                self._send_piece(large, octets, len(octets))
            else:
                self._send_head(large, octets)

        large.entry.queue.piece(large.entry, large.at, size, answered)

    def _sent(self, entry: Entry, delivery: engine.Pointer) -> None:
        """Complete a large delivery."""
        raise NotImplementedError

    def _stop(self, delivery: engine.Pointer) -> bool:
        """Abort the delivery, which the peer has decided, if it is a large incomplete one; whether it was."""
        large = self._large
        if large is None or large.delivery != delivery:
            return False
        self._large = None
        engine.delivery_abort(delivery)
        self._read_credit()
        self._has_room()
        self.connection.mark()
        return True


def _marked(entry: Entry, octets: bytes) -> bytes:
    """Return the message with its counts, its remaining time-to-live and its annotations."""
    left = max(1, (entry.expires - now_micros()) // 1000) if entry.expires else None
    return outgoing(octets, entry.attempts, left, entry.annotations, acquired=entry.acquired)


# Filters of a source (part 3, section 3.5.8): this service knows JMS selectors, AMQP's filter expressions and no-local
# (rule P16).
#
# Each is a described value under a key of the client's choice, by the descriptors of the registry "AMQP Capabilities,
# filters", or of AMQP's Filter Expressions.

_NO_LOCAL = ("apache.org:no-local-filter:list", 0x0000_468C_0000_0003)


@dataclass(frozen=True, slots=True)
class Filters:
    """The known filters of a client's source. ``selector``: None if it is missing or empty."""

    selector: Selector | None = None
    no_local: bool = False
    #: the client's encoded keys and values
    _selectors: tuple[bytes, ...] = ()
    _no_locals: tuple[bytes, ...] = ()

    @property
    def text(self) -> str:
        """The selector's text; empty if every message matches."""
        return "" if self.selector is None else self.selector.text

    def without_no_local(self) -> Filters:
        """Return the filters of a source that cannot honour no-local: the answer omits it, to inform the client
        (3.5.3).
        """
        return replace(self, no_local=False, _no_locals=())

    def answer(self) -> bytes:
        """Return the encoded filter set of the answer: the honoured filters, unchanged; empty if there are none."""
        honoured = [*self._selectors, *self._no_locals]
        return encode_map(honoured) if honoured else b""


def has_filters(source: engine.Pointer) -> bool:
    """Whether the source has filters, which take time to decode."""
    return bool(engine.data_encoded_size(engine.terminus_filter(source)))


def decode_filters(source: engine.Pointer, selector: Callable[[str], Selector]) -> Filters:
    """Decode the known filters of a source. ``selector`` compiles the text of one.

    :raises Refusal: a filter cannot be decoded, or there are two of one kind.
    """
    try:
        return known(engine.encoded(engine.terminus_filter(source)), selector)
    except DecodeError as error:
        raise Refusal(Condition.DECODE_ERROR, f"the filter of the source: {error}") from None


def known(octets: bytes, selector: Callable[[str], Selector] = Selector) -> Filters:
    """Decode the known filters of an encoded filter set.

    :raises DecodeError: the set is malformed.
    """
    if octets[:1] not in (b"\xc1", b"\xd1"):
        return Filters()
    asked: dict[Callable[[bytes], str], str] = {}
    selectors: list[bytes] = []
    no_locals: list[bytes] = []
    for _, pair in pairs(octets, 0):
        at = skip(pair, 0)
        if pair[at] != 0x00:
            continue
        descriptor, value_at = decode(pair, at + 1)
        if descriptor in _NO_LOCAL:
            no_locals.append(pair)
        elif isinstance(descriptor, int | str) and (text_of := filters.KNOWN.get(descriptor)) is not None:
            if text_of in asked:
                raise Refusal(Condition.INVALID_FIELD, f"the source has two filters {descriptor}, one was expected")
            asked[text_of] = text_of(pair[value_at:])
            selectors.append(pair)
    texts = [text for text in asked.values() if text.strip()]
    found = selector(texts[0] if len(texts) == 1 else f"({') AND ('.join(texts)})") if texts else None
    return Filters(found, bool(no_locals), tuple(selectors), tuple(no_locals))
