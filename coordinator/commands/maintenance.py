"""Maintenance does what the store needs now and then: partitions ahead, retention, a sweep. The supervisor starts a
child for each run, so that no wait for the database holds up the service.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta

import structlog

from coordinator.address.addresses import UNUSED
from coordinator.commands import held_up
from coordinator.process import logs
from coordinator.process.children import Handed
from coordinator.process.supervisor import make_days
from coordinator.settings import RetentionSettings, Settings
from store import audit, removal, retention, roles
from store.database import connected
from store.errors import StoreError

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: as PostgreSQL shows it
_SESSION = "coordinator maintenance"


def policy(settings: RetentionSettings) -> retention.Policy:
    return retention.Policy(
        messages=timedelta(hours=settings.hours),
        decisions=timedelta(hours=settings.decisions_hours),
        messages_bytes=settings.messages_bytes,
    )


def maintain(settings: Settings, database_url: str) -> int:
    """Do one run; what only the owner of the store can do is left to ``coordinator maintain`` where this role is
    another (S9). Returns the exit status: 0 done, 1 not done, or too few partitions ahead.
    """
    try:
        with held_up.reporting(database_url, _SESSION, _log.warning):
            enough = make_days(database_url)
            with connected(database_url, application_name=_SESSION) as connection:
                owner = roles.owns(connection)
                connection.rollback()
                done = retention.drop_old(connection, policy(settings.retention)) if owner else retention.Dropped()
                told = audit.forget(connection, timedelta(hours=settings.retention.audit_hours)) if owner else 0
                swept = removal.sweep(connection)
                inbox_age = timedelta(hours=settings.retention.inbox_hours)
                forgotten = retention.forget(connection, inbox_age)
                tags = retention.forget_posted(connection, inbox_age)
                unused = removal.remove_unused(connection, UNUSED)
    except StoreError as error:
        _log.warning("the store was not maintained", reason=str(error))
        return 1
    if not owner:
        _log.info("old days stay: the database's role does not own the store, and coordinator maintain drops them")
    if replace(done, held=()) != retention.Dropped():
        _log.info("old days dropped", **asdict(done))
    if done.unarchived:
        _log.warning("days wait for the archive", partitions=done.unarchived, run="coordinator archive write")
    if done.held:
        _log.warning("empty tables of old days stay: other objects depend on them", tables=done.held)
    if forgotten:
        _log.info("messages of the inbox forgotten", messages=forgotten)
    if tags:
        _log.info("delivery-tags of producers forgotten", tags=tags)
    if told:
        _log.info("rows of the audit forgotten", rows=told)
    if unused:
        _log.info("unused addresses removed", addresses=unused)
    if swept:
        _log.warning("entries of groups that are gone were dropped", entries=swept)
    return 0 if enough else 1


def maintenance(handed: Handed) -> int:
    logs.configure(handed.settings.log)
    return maintain(handed.settings, handed.database_url)
