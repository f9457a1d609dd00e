"""The name of the store's schema, and the session settings of its readers; without SQLAlchemy, unlike store.tables."""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "coordinator"

#: Sets the formats of text, times, intervals and numbers, which drivers read in one way only, and of our literals:
#: database, role or environment may set others.
AS_READ: Final = (
    "set client_encoding = 'UTF8'; set datestyle = iso, ymd; set intervalstyle = postgres; set extra_float_digits = 1; "
    "set timezone = 'UTC'; set standard_conforming_strings = on; "
)
