"""Makes the partitions of the days to come, and logs it."""

from __future__ import annotations

import structlog

from store import partitions
from store.database import ENDLESS, Patience, connected

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


def make_days(url: str, patience: Patience = ENDLESS) -> bool:
    """Make them. False: there are still too few."""
    with connected(url, application_name="coordinator maintenance", patience=patience) as connection:
        made = partitions.make_ahead(connection)
    if made.created:
        _log.info("partitions made", partitions=made.created)
    if made.few:
        _log.error("partitions are running out: soon nothing can be posted", days_ahead=made.ahead)
    return not made.few
