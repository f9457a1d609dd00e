"""An open page of the console is told what each look at the store finds; all pages share the looks (S5, S11)."""

from __future__ import annotations

import re
import time
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.acceptance import api
from tests.acceptance.api import left
from tests.fix_console import Operator
from tests.fix_hostile import HOSTILE
from tests.fix_service import Service, running_service
from tests.wire.frames import Accepted
from tests.wire.messages import data
from tests.wire.peer import Peer

pytestmark = pytest.mark.rule("S5", "S11")

_MOST = 3
_LONGEST = 1.5
_BRIEF: dict[str, object] = {
    **{"coordinator.process.measuring.POLL_SECONDS": 0.2, "coordinator.http.live._LOOK_SECONDS": 0.05},
    **{"coordinator.http.server._MOST_LASTING": _MOST, "coordinator.http.server._LONGEST_REQUEST_SECONDS": _LONGEST},
}


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    """Looks at the store all the time, and cuts requests off soon."""
    with running_service(token_settings, _BRIEF) as service:
        yield service


@pytest.fixture
def reader(service: Service) -> Operator:
    reader = Operator(service)
    reader.log_in(token=api.TOKEN)
    return reader


def test_what_comes_into_the_store_is_told(service: Service, reader: Operator) -> None:
    with reader.events() as events:
        first = next(events)
        assert first["said"] == "The figures follow the store."
        count = int(first["undecided"])
        left(service, 3)
        found = next(int(each["undecided"]) for each in events if each["undecided"] != first["undecided"])
        while found < count + 3:
            found = int(next(events)["undecided"])
        assert found == count + 3


def test_each_name_is_of_an_element_of_the_overview(reader: Operator) -> None:
    with reader.events() as events:
        names = set(next(events))
    page = reader.ask("/console")
    shown = {each["data-live"] for _, each in page.elements if "data-live" in each}
    assert shown == names
    (status,) = (each for _, each in page.elements if each.get("role") == "status")
    assert (status["data-live"], status["data-events"]) == ("said", "/console/events")


def test_pictures_say_what_they_show(service: Service, reader: Operator) -> None:
    left(service)
    with reader.events() as events:
        html = next(each["charts"] for each in events if "Undecided transactions: 0;" not in each["charts"])
    assert html.count('<svg role="img" aria-label="') == html.count("<figcaption>") == 6
    assert re.search(r'aria-label="Undecided transactions: [\d,]+; in the last \d+ min 0 to [\d,]+"', html)
    assert re.search(r'<polyline points="([\d.]+,[\d.]+ )+[\d.]+,[\d.]+">', html)


@pytest.mark.rule("S7")
def test_hostile_names_are_told_as_text(service: Service, reader: Operator) -> None:
    name = HOSTILE["HTML"][:200]
    peer = Peer(service.port)
    peer.open()
    assert peer.begin().sender(name).outcome(data(b"x")) == Accepted()
    with reader.events() as events:
        html = next(each["largest"] for each in events if "&lt;" in each["largest"])
    assert "<script" not in html.lower()
    assert {each.lower() for each in re.findall(r"<(\w+)", html)} == {"tr", "td", "a"}
    peer.close_socket()


def test_no_event_without_a_login(service: Service) -> None:
    stranger = Operator(service)
    assert (stranger.ask("/console/events").status, stranger.ask("/console/events", {}).status) == (401, 405)


def test_pages_are_few_and_others_are_answered_meanwhile(service: Service) -> None:
    with ExitStack() as stack:
        watching = []
        for _ in range(_MOST):
            reader = Operator(service)
            reader.log_in()
            watching.append(stack.enter_context(reader.events()))
        firsts = [next(each) for each in watching]
        assert len(firsts) == _MOST
        full = reader.ask("/console/events")
        assert (full.status, "too many pages watch" in full.text("p")) == (503, True)
        assert reader.ask("/console/audit").status == 200
        end = time.monotonic() + 2 * _LONGEST
        while time.monotonic() < end:
            assert all(next(each) for each in watching)
    with reader.events() as events:
        assert next(events)


def test_a_logout_ends_it(service: Service) -> None:
    reader = Operator(service)
    page = reader.log_in()
    with reader.events() as events:
        next(events)
        reader.ask("/console/logout", page.hidden)
        assert len(list(events)) < 20
    with pytest.raises(urllib.error.HTTPError, match="401"), reader.events():
        pass


@pytest.mark.night
def test_it_is_there_again_after_a_restart(token_settings: dict[str, str]) -> None:
    with running_service(token_settings, _BRIEF) as service:
        reader = Operator(service)
        reader.log_in()
        with reader.events() as events:
            next(events)
            service.kill()
            service.start()
            assert len(list(events)) < 100
        again = Operator(service)
        again.log_in()
        with again.events() as events:
            assert next(events)["said"] == "The figures follow the store."
