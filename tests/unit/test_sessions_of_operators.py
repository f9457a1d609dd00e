"""Sessions of the console are few, and last for some hours (S11)."""

from __future__ import annotations

import pytest

from coordinator.http import sessions
from coordinator.http.sessions import MOST, Sessions

pytestmark = pytest.mark.rule("S11")


def test_a_session_is_found_by_its_cookie_until_it_is_ended() -> None:
    held = Sessions()
    session = held.begin(b"token")
    assert held.find(session.cookie) is session
    assert held.find("") is held.find(session.form) is None
    held.end(session)
    assert held.find(session.cookie) is None


def test_one_more_than_the_most_ends_the_oldest() -> None:
    held = Sessions()
    begun = [held.begin(b"token") for _ in range(MOST + 1)]
    assert [each for each in begun if held.find(each.cookie) is None] == begun[:1]


def test_it_lasts_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SECONDS", -1.0)
    held = Sessions()
    assert held.find(held.begin(b"token").cookie) is None
