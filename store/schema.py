"""The name of the schema in which all tables of the store are; for those that need no other of :mod:`store.tables`."""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "coordinator"
