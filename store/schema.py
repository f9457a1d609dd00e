"""The name of the schema in which all tables of the store are, and how to read them; for those that need no other of
:mod:`store.tables`.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "coordinator"

#: How a session writes text, moments, intervals and numbers, whatever its database, role or environment says: drivers
#: read them in one way only; and how it reads our literals, in which a backslash is one.
AS_READ: Final = (
    "set client_encoding = 'UTF8'; set datestyle = iso, ymd; set intervalstyle = postgres; set extra_float_digits = 1; "
    "set timezone = 'UTC'; set standard_conforming_strings = on; "
)
