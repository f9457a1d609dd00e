"""Requests to the API take turns in asking the store; an answer that has begun waits longer for its own (S5)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from coordinator.http import api
from coordinator.http.api import Asking
from coordinator.http.problems import Refused

pytestmark = pytest.mark.rule("S5")


def test_a_download_that_goes_on_waits_where_another_request_is_refused(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_TURN_SECONDS", 0.0)
    store = Asking(database_url, 0, None)

    def asked(*, patient: bool) -> object:
        with store.asked(patient=patient) as connection:
            return connection.execute(text("select 1")).scalar_one()

    with ThreadPoolExecutor(1) as threads:
        with store.asked(), store.asked():
            waiting = threads.submit(asked, patient=True)
            with pytest.raises(Refused, match="other requests ask the store"):
                asked(patient=False)
        assert waiting.result() == 1
