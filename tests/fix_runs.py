"""Runs of a reconciliation in the store, with findings that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from store import runs, watched
from tests.fix_reports import SEEN_AT

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spark.finding import Finding


def a_run(seen_at: datetime = SEEN_AT, **values: Any) -> runs.Run:
    """Over all there is, without books."""
    return runs.Run(**{"since": None, "until": None, "books": (), "seen_at": seen_at, "version": "1.2.3", **values})


def store_run(connection: Connection, found: Sequence[Finding], of: runs.Run | None = None, **values: Any) -> int:
    return runs.store(connection, of or a_run(), [asdict(each) for each in found], **values)


def a_batch(number: int = 0, since: int = 0, until: int = 10, **values: Any) -> watched.Batch:
    """What a watch has read: nothing, unless ``values`` say so."""
    return watched.Batch(**{"number": number, "since": since, "until": until, "counts": {}, "findings": (), **values})
