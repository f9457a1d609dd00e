"""What another decoder says of our frames (rule P20): tshark reads a recorded run, and finds nothing malformed.

The dissector takes each transfer's payload for a whole message, so that the run has no message of many frames; those
are held against the standard by the test client itself, frame by frame.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fix_wire import Dial
from tests.wire import capture
from tests.wire.frames import (
    RECEIVER,
    Accepted,
    Begin,
    Close,
    Discharge,
    Error,
    Modified,
    Open,
    Rejected,
    Released,
    Source,
    Target,
    frame,
)
from tests.wire.messages import Header, Properties, data, section
from tests.wire.peer import Octets, Peer
from tests.wire.queues import BROKEN, NEVER
from tests.wire.types import Described, Symbol, ULong, encode

TSHARK = shutil.which("tshark")

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed (Debian: apt-get install tshark)")


def everything(peer: Peer, address: str) -> None:
    """A run that has the service send every performative, state and error that it knows."""
    peer.open(sasl=True, max_frame_size=1000, idle_time_out=30_000)
    session = peer.begin()
    control, sender, relay = session.control(), session.sender(address), session.sender(Target())
    second = session.sender(address, rcv_settle_mode=1)
    consumer = session.receiver(address)
    whole = Header(durable=True, ttl=60_000).encoded() + section(0x72, {Symbol("x-opt"): "a"})
    whole += Properties(message_id="m", to=address).encoded() + data(b"x" * 500)
    for octets in (data(b"1"), whole, data(b"3")):
        sender.outcome(octets)
    sender.outcome(BROKEN)
    sender.outcome(data(b"x"), txn=NEVER)
    relay.outcome(Properties(to="$nowhere").encoded() + data(b"x"))
    txn = control.declare()
    sender.outcome(data(b"4"), txn=txn)
    second.answer_to(second.post(data(b"5"), txn=txn))
    first, large, third = consumer.take_many(3)
    first.retire(txn)
    large.retire(txn, Modified(delivery_failed=True, message_annotations={Symbol("x-opt-b"): "b"}), settled=False)
    third.retire(txn, Rejected(error=Error(condition="app:bad", description="bad")), settled=False)
    control.commit(txn)
    control.discharge(txn, fail=True)
    control.discharge(NEVER)
    control.reply(data(b"no declare"))
    txn = control.declare()
    sender.outcome(BROKEN, txn=txn)
    control.discharge(txn)
    for delivery, outcome in zip(consumer.take_many(3), (Released(), Rejected(), Accepted()), strict=True):
        delivery.disposition(outcome, settled=False)
        delivery.settlement()
    session.receiver(Source(address=address, distribution_mode="copy")).drain()
    session.receiver(Source(dynamic=True)).detach()
    refused = session.attach(RECEIVER, source=Source(address="$no-such-node"), target=Target())
    assert refused.source is None
    control.request(Discharge(txn_id=NEVER, fail=False), settled=True)
    assert control.error == "amqp:illegal-state"
    consumer.detach()
    peer.begin().end()
    session.end()
    peer.close()


def broken(peer: Peer) -> None:
    """The service's own close with an error."""
    peer.open()
    peer.begin()
    peer.send(encode(Described(ULong(0x99), [])))
    assert peer.closed().condition == "amqp:decode-error"


def dissected(path: Path) -> list[dict[str, Any]]:
    """Tshark's view of each packet."""
    assert TSHARK is not None
    command = [TSHARK, "-r", str(path), "-d", f"tcp.port=={capture.PORT},amqp", "-T", "json", "--no-duplicate-keys"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [packet["_source"]["layers"] for packet in json.loads(done.stdout)]


def malformed(layers: dict[str, Any]) -> bool:
    return "_ws.malformed" in json.dumps(layers)


@pytest.mark.rule("P20")
def test_every_frame_is_valid_to_a_dissector(dial: Dial, address: str, tmp_path: Path) -> None:
    """Part 2, section 2.3: all that the service sent, in a run that has it send all that it can."""
    peers = [dial(), dial()]
    everything(peers[0], address)
    broken(peers[1])
    path = tmp_path / "run.pcap"
    capture.write(path, (peer.record for peer in peers))
    packets = [layers for layers in dissected(path) if layers["tcp"]["tcp.srcport"] == str(capture.PORT)]
    frames = json.dumps(packets).count('"amqp.doff"')
    assert frames > 50, "the dissector saw hardly any frame"
    assert [layers for layers in packets if malformed(layers)] == []
    text = json.dumps(packets)
    assert all(f'"amqp.performative": "{code}"' in text for code in range(Open.CODE, Close.CODE + 1))


def test_the_dissector_does_see_what_is_malformed(tmp_path: Path) -> None:
    """An attach that is cut off in its frame is found: the dissector can tell."""
    cut = frame(b"\x00\x53\x12\xc0\xff\x01\xa1\xff")
    path = tmp_path / "wrong.pcap"
    opening = frame(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)) + frame(Close())
    capture.write(path, [[Octets(1.0, True, b"AMQP\x00\x01\x00\x00"), Octets(1.1, False, opening + cut)]])
    assert any(malformed(layers) for layers in dissected(path))
