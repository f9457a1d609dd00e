"""The version, as the installed package has it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

#: As declared in setup.cfg.
DISTRIBUTION = "amqp-transaction-coordinator"

try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:
    # Run from its folder without being installed.
    VERSION = "unknown"
