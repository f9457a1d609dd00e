"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

#: the name declared in setup.cfg
DISTRIBUTION = "amqp-transaction-coordinator"

try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:
    # Run from the source folder, not installed.
    VERSION = "unknown"
