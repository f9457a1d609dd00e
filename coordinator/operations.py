"""Operations are what operators ask of the store, and do to it: each is a function, a command, and a path of the API.

A function takes a connection to the store, and the arguments of its path and its request by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from coordinator import acts, answers, changes, message_ids

#: Where the paths of all begin.
ROOT = "/api/v1"
#: The arguments that no request gives: the service has them.
OF_THE_SERVICE = ("kept", "seconds")


class Operation(NamedTuple):
    """``path``: below :data:`ROOT`, with arguments in braces. ``command``: what follows ``coordinator``; ``long``: it
    may take longer than a moment.
    """

    path: str
    command: str
    run: Callable[..., Any]
    long: bool = False


ACTS = (
    Operation("/transactions/{txn_id}/resolve", "transaction resolve", acts.resolve),
    Operation("/transactions/{txn_id}/resume", "transaction resume", acts.resume),
    Operation("/connections/{connection_id}/close", "connection close", acts.close),
    Operation("/dead-letters/{name:path}/replay", "dead-letters replay", acts.replay, long=True),
    Operation("/addresses/{name:path}/purge", "address purge", acts.purge, long=True),
    Operation("/groups/{name:path}/seek", "group seek", acts.seek, long=True),
    Operation("/findings/{run}/repair", "repair", acts.repair, long=True),
    Operation("/messages/{half_id}/retire", "message retire", acts.retire, long=True),
    Operation("/addresses/{name:path}/add", "address add", changes.add_address),
    Operation("/addresses/{name:path}/set", "address set", changes.set_address),
    Operation("/addresses/{name:path}/remove", "address remove", changes.remove_address, long=True),
    Operation("/groups/{name:path}/set", "group set", changes.set_group),
    Operation("/groups/{name:path}/pause", "group pause", changes.pause_group),
    Operation("/groups/{name:path}/resume", "group resume", changes.resume_group),
    Operation("/permissions/grant", "permission grant", changes.grant),
    Operation("/permissions/revoke", "permission revoke", changes.revoke),
    Operation("/users/{name:path}/add", "user add", changes.add_user),
    Operation("/users/{name:path}/set", "user set", changes.set_user),
    Operation("/users/{name:path}/remove", "user remove", changes.remove_user),
)

READS = (
    Operation("/addresses", "address list", answers.all_addresses),
    Operation("/addresses/{name:path}", "address show", answers.one_address),
    Operation("/audit", "audit", answers.audited),
    Operation("/check", "check", answers.checked),
    Operation("/connections", "connection list", answers.all_connections),
    Operation("/connections/{connection_id}", "connection show", answers.one_connection),
    Operation("/dead-letters", "dead-letters list", answers.all_dead_letters),
    Operation("/dead-letters/{name:path}", "dead-letters show", answers.letters),
    Operation("/findings", "findings list", answers.all_runs),
    Operation("/findings/{run}", "findings list, one of them", answers.one_run),
    Operation("/findings/{run}/findings", "findings show", answers.findings),
    Operation("/groups", "group list", answers.all_groups),
    Operation("/messages", "message show --since --no-archive", message_ids.messages),
    Operation("/messages/{half_id}", "message show --no-archive", answers.message),
    Operation("/permissions", "permission list", answers.all_permissions),
    Operation("/schedules", "schedule list", answers.all_schedules),
    Operation("/schedules/{name:path}", "schedule show", answers.scheduled),
    Operation("/transactions", "transaction list", answers.all_undecided),
    Operation("/transactions/{txn_id}", "transaction show --no-archive", answers.transaction),
    Operation("/users", "user list", answers.all_users),
)
