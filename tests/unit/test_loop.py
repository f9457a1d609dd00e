"""A turn of the event loop."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from tests.fix_loop import PATIENCE, EpollLoop


@pytest.fixture
def loop() -> Iterator[EpollLoop]:
    loop = EpollLoop()
    yield loop
    loop.close()


def test_what_a_deadline_leaves_to_the_end_of_the_turn_waits_for_no_descriptor(loop: EpollLoop) -> None:
    ended = threading.Event()
    first: list[bool] = []
    reading, writing = os.pipe()

    def end_the_wait() -> None:
        first.append(ended.wait(PATIENCE / 6))
        os.write(writing, b".")

    loop.watch(reading, select.EPOLLIN, lambda _: None)
    loop.end_turn = ended.set
    loop.call_later(0, lambda: None)
    thread = threading.Thread(target=end_the_wait)
    thread.start()
    loop.turn(PATIENCE)
    thread.join()
    for fd in (reading, writing):
        os.close(fd)
    assert first == [True]


def test_without_a_deadline_a_turn_waits_for_a_descriptor(loop: EpollLoop) -> None:
    reading, writing = os.pipe()
    came: list[int] = []
    loop.watch(reading, select.EPOLLIN, came.append)
    thread = threading.Thread(target=os.write, args=(writing, b"."))
    thread.start()
    loop.turn(PATIENCE)
    thread.join()
    for fd in (reading, writing):
        os.close(fd)
    assert came == [select.EPOLLIN]
