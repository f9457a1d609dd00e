"""One connection alone for a container (AMQP Enforcing Connection Uniqueness 1.0; rule P15), over two workers.

The sections named are those of the extension.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, DialTo
from tests.sole import (
    CLOSE,
    DETECTION,
    FAILED,
    POLICY,
    REFUSE,
    WEAK,
    alone,
    assert_closed_for_another,
    assert_refused,
    is_admitted,
    lives,
    offers,
    opened,
    properties,
)
from tests.wire.frames import (
    SENDER,
    Attach,
    Begin,
    Flow,
    Open,
    Source,
    Target,
    frame,
)
from tests.wire.types import Symbol, UInt, ULong
from tests.workers import pids_of_workers


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"workers": "2"}) as service:
        yield service


@pytest.mark.rule("P15")
@pytest.mark.parametrize("other", [0, 1])
@pytest.mark.parametrize("policy", [None, REFUSE])
def test_the_second_is_refused_and_the_first_goes_on(
    dial_to: DialTo, address: str, other: int, policy: UInt | None
) -> None:
    first, second = dial_to(0), dial_to(other)
    answer = opened(first, address, **alone(policy))
    assert offers(answer)
    assert is_admitted(answer)
    assert properties(answer)[POLICY] == REFUSE
    assert properties(answer)[DETECTION] == WEAK
    refused = opened(second, address, **alone(policy))
    assert offers(refused)
    assert_refused(second, refused)
    assert lives(first)
    # its place is free when it has closed
    first.close()
    third = dial_to(other)
    assert is_admitted(opened(third, address, **alone(policy)))
    assert lives(third)


@pytest.mark.rule("P15")
@pytest.mark.parametrize("other", [0, 1])
def test_the_first_is_closed_where_it_asked_for_that(dial_to: DialTo, address: str, other: int) -> None:
    peers = [dial_to(0), dial_to(other), dial_to(0)]
    for before, peer in zip([None, *peers], peers, strict=False):
        answer = opened(peer, address, **alone(CLOSE))
        assert offers(answer)
        assert is_admitted(answer)
        assert properties(answer)[POLICY] == CLOSE
        if before is not None:
            assert_closed_for_another(before.closed())
    assert lives(peers[-1])


@pytest.mark.rule("P15")
def test_the_policy_of_the_one_that_is_there_decides(dial_to: DialTo, address: str) -> None:
    """As in Qpid Broker-J: a connection that asked to stay alone is not closed by a later one."""
    first, second, third = dial_to(0), dial_to(1), dial_to(0)
    assert is_admitted(opened(first, address, **alone(CLOSE)))
    assert is_admitted(opened(second, address, **alone(REFUSE)))
    assert_closed_for_another(first.closed())
    assert_refused(third, opened(third, address, **alone(CLOSE)))
    assert lives(second)


@pytest.mark.rule("P15")
def test_a_connection_that_does_not_ask_opens_beside_any_other(dial_to: DialTo, address: str) -> None:
    """Section 3.2: detection is weak, and the open says so."""
    peers = [dial_to(number % 2) for number in range(4)]
    for number, peer in enumerate(peers):
        answer = opened(peer, address, **(alone() if number == 2 else {}))
        assert is_admitted(answer)
        assert offers(answer) is (number == 2)
        assert (POLICY in properties(answer)) is (number == 2)
    assert all(lives(peer) for peer in peers)


@pytest.mark.rule("P15")
def test_of_many_at_once_one_is_admitted(dial_to: DialTo, address: str) -> None:
    peers = [dial_to(number % 2) for number in range(8)]
    for peer in peers:
        peer.send(Open(container_id=address, **alone()))
    answers = [peer.wait(Open) for peer in peers]
    admitted = [peer for peer, answer in zip(peers, answers, strict=True) if is_admitted(answer)]
    assert len(admitted) == 1
    assert lives(admitted[0])
    for peer, answer in zip(peers, answers, strict=True):
        if peer is not admitted[0]:
            assert_refused(peer, answer)


@pytest.mark.rule("P15")
def test_what_comes_with_the_open_waits_for_the_answer(dial_to: DialTo, address: str, ask: Ask) -> None:
    """Part 2, section 2.4.2: everything may be sent before anything is read; a refused connection has done nothing."""
    first, second = dial_to(0), dial_to(1)
    for peer in (first, second):
        target = Target(address=f"{address}-{'first' if peer is first else 'second'}")
        pipelined = [
            Open(container_id=address, **alone()),
            Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100),
            Attach(name="hasty", handle=0, role=SENDER, source=Source(), target=target, initial_delivery_count=0),
        ]
        peer.send_octets(b"".join(frame(each) for each in pipelined))
        answer = peer.wait(Open)
        if peer is first:
            assert is_admitted(answer)
            peer.wait(Begin)
            assert peer.wait(Attach).target.address == target.address
            peer.wait(Flow)
        else:
            assert_refused(peer, answer)
    there = "select name from coordinator.address where name like %s"
    assert ask(there, f"{address}-%") == [(f"{address}-first",)]


@pytest.mark.rule("P15", "P14")
@pytest.mark.parametrize("policy", [UInt(2), ULong(1), "close-existing"])
def test_a_policy_that_there_is_not(dial_to: DialTo, address: str, policy: Any) -> None:
    peer = dial_to(0)
    answer = opened(peer, address, **alone(policy))
    assert properties(answer)[FAILED] is True
    error = peer.closed()
    assert error.condition == "amqp:invalid-field"
    assert error.info == {Symbol("invalid-field"): Symbol("properties")}
    assert is_admitted(opened(dial_to(0), address, **alone()))


@pytest.mark.rule("P15", "S7")
@pytest.mark.parametrize("container", ["", "x" * 10_000, "'; drop table x; --\n\U0001f600"])
def test_any_container_id(dial_to: DialTo, container: str) -> None:
    first, second = dial_to(0), dial_to(1)
    assert is_admitted(opened(first, container, **alone()))
    assert_refused(second, opened(second, container, **alone()))
    first.close()


@pytest.mark.rule("P15")
def test_a_connection_whose_host_is_silent_gives_way(dial_to: DialTo, service: Service, address: str) -> None:
    """A client that lost its network comes back: the service still has the connection that it lost."""
    first, second = dial_to(0), dial_to(1)
    assert is_admitted(opened(first, address, **alone()))
    silence(first.socket)
    since = len(service.log_lines())
    assert is_admitted(opened(second, address, **alone()))
    gone = service.wait_for(lambda line: line.get("reason") == "host-gone", since=since)
    assert gone["container"] == address


@pytest.mark.rule("P15")
def test_a_reset_connection_gives_way_at_once(dial_to: DialTo, address: str) -> None:
    first, second = dial_to(0), dial_to(1)
    assert is_admitted(opened(first, address, **alone()))
    linger = (1).to_bytes(4, "little") + bytes(4)
    first.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    first.close_socket()
    assert is_admitted(opened(second, address, **alone()))


@pytest.mark.rule("P15")
@pytest.mark.parametrize("policy", [REFUSE, CLOSE])
def test_the_connection_of_a_killed_worker_gives_way(
    dial_to: DialTo, service: Service, address: str, policy: UInt
) -> None:
    first, second = dial_to(0), dial_to(1)
    assert is_admitted(opened(first, address, **alone(policy)))
    os.kill(pids_of_workers(service)[0], signal.SIGKILL)
    first.rest()
    assert is_admitted(opened(second, address, **alone(policy)))
    assert lives(second)


@pytest.mark.rule("P15")
def test_nothing_is_left_in_the_store(dial_to: DialTo, address: str, ask: Ask) -> None:
    claims = "select container_id from coordinator.sole_connection where container_id = %s"
    first, second = dial_to(0), dial_to(1)
    opened(first, address, **alone())
    opened(second, address, **alone())
    second.rest()
    assert ask(claims, address) == [(address,)]
    first.close()
    third = dial_to(1)
    assert is_admitted(opened(third, address, **alone()))
    third.close()
    # what the same connection asks for is answered in its order: this comes after the release
    fourth = dial_to(1)
    opened(fourth, f"{address}-other", **alone())
    assert ask(claims, address) == []


def silence(sock: socket.socket) -> None:
    """From now on this host's side of the connection gets nothing and acknowledges nothing: a filter drops it all."""

    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]

    drop = Instruction(6, 0, 0, 0)  # BPF_RET, of no octets
    program = Program(1, ctypes.pointer(drop))
    so_attach_filter = 26
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # an acknowledgement that is due goes before
    sock.setsockopt(socket.SOL_SOCKET, so_attach_filter, bytes(program))
