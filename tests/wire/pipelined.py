"""Empty transactions by the thousand on one control link: frames made in one go, answers found in the octets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count

from tests.wire.frames import Accepted, Declare, Discharge, Disposition, Transfer, frame, parse
from tests.wire.links import Control
from tests.wire.messages import VALUE, section

#: declares sent at once, then their discharges: within the control link's credit
AT_ONCE = 400
_ID = bytes(16)
_NUMBER = b"\x7f\xff\xff\xff"
_DECLARED = re.compile(rb"\x00\x53\x33(?:\xc0..|\xd0.{8})\xa0\x10(.{16})", re.DOTALL)


class EmptyTransactions:
    """Of one control link; whatever else is on its connection must be silent."""

    def __init__(self, control: Control) -> None:
        self._session = control.session
        self._handle = control.handle
        self._socket = control.session.peer.socket
        self._numbers = count(control.session.next_delivery_id())
        self._declare = self._pieces(Declare())
        self._discharge = self._pieces(Discharge(txn_id=_ID, fail=False))
        self._octets = b""

    def _pieces(self, body: Declare | Discharge) -> list[bytes]:
        """A transfer, cut where the delivery's number and the txn-id go in."""
        number = int.from_bytes(_NUMBER, "big")
        transfer = Transfer(handle=self._handle, delivery_id=number, delivery_tag=b"t", message_format=0)
        octets = frame(transfer, channel=self._session.channel, payload=section(VALUE, body.described()))
        return re.split(_NUMBER + b"|" + _ID, octets)

    def run(self, transactions: int) -> None:
        for _ in range(0, transactions, AT_ONCE):
            self._send(number.join(self._declare) for number in self._delivery_ids())
            ids = self._declared()
            begin, middle, end = self._discharge
            numbers = self._delivery_ids()
            self._send(begin + number + middle + txn + end for number, txn in zip(numbers, ids, strict=True))
            self._accepted()

    def _delivery_ids(self) -> list[bytes]:
        return [next(self._numbers).to_bytes(4, "big") for _ in range(AT_ONCE)]

    def _send(self, transfers: Iterable[bytes]) -> None:
        self._socket.sendall(b"".join(transfers))

    def _more(self) -> None:
        octets = self._socket.recv(1 << 18)
        assert octets, "the service closed the socket"
        self._octets += octets

    def _declared(self) -> list[bytes]:
        while len(ids := _DECLARED.findall(self._octets)) < AT_ONCE:
            self._more()
        # the last frame may be followed by others, and those before it are of no interest
        at = 0
        for found in _DECLARED.finditer(self._octets):
            at = found.end()
        self._octets = self._octets[at:]
        return ids

    def _accepted(self) -> None:
        left = AT_ONCE
        while left:
            size = int.from_bytes(self._octets[:4], "big")
            if len(self._octets) < max(size, 4):
                self._more()
                continue
            found = parse(self._octets[:size]).performative
            self._octets = self._octets[size:]
            if isinstance(found, Disposition):
                assert found.state == Accepted()
                left -= (found.first if found.last is None else found.last) - found.first + 1
