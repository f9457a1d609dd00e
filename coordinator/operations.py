"""Operations are what operators ask of the store, and do to it: each is a function, a command, and a path of the API.

A function takes a connection to the store, and the arguments of its path and its request by their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from coordinator import acts, answers, changes, message_ids, timeline
from store import (
    addresses,
    audit,
    connections,
    dead_letters,
    permissions,
    purge,
    removal,
    runs,
    scheduled,
    undecided,
    users,
)

#: Where the paths of all begin.
ROOT = "/api/v1"
#: The arguments that no request gives: the service has them.
OF_THE_SERVICE = ("kept", "seconds")


class Operation(NamedTuple):
    """``path``: below :data:`ROOT`, with arguments in braces. ``command``: what follows ``coordinator``; ``answers``:
    the type of what the JSON says that it answers; ``long``: it may take longer than a moment.
    """

    path: str
    command: str
    run: Callable[..., Any]
    answers: Any
    long: bool = False


#: What has changed, by the names of the columns.
_CHANGED = dict[str, str | int | None]

ACTS = (
    Operation("/transactions/{txn_id}/resolve", "transaction resolve", acts.resolve, undecided.Outcome),
    Operation("/transactions/{txn_id}/resume", "transaction resume", acts.resume, acts.Resumed),
    Operation("/connections/{connection_id}/close", "connection close", acts.close, acts.Closed),
    Operation("/dead-letters/{name:path}/replay", "dead-letters replay", acts.replay, dead_letters.Replayed, long=True),
    Operation("/addresses/{name:path}/purge", "address purge", acts.purge, purge.Purged, long=True),
    Operation("/groups/{name:path}/seek", "group seek", acts.seek, list[acts.Moved], long=True),
    Operation("/findings/{run}/repair", "repair", acts.repair, acts.Repairs, long=True),
    Operation("/messages/{half_id}/retire", "message retire", acts.retire, acts.Retired, long=True),
    Operation("/addresses/{name:path}/add", "address add", changes.add_address, changes.AddedAddress),
    Operation("/addresses/{name:path}/set", "address set", changes.set_address, _CHANGED),
    Operation("/addresses/{name:path}/remove", "address remove", changes.remove_address, removal.Removal, long=True),
    Operation("/groups/{name:path}/set", "group set", changes.set_group, _CHANGED),
    Operation("/groups/{name:path}/pause", "group pause", changes.pause_group, changes.Paused),
    Operation("/groups/{name:path}/resume", "group resume", changes.resume_group, changes.Paused),
    Operation("/permissions/grant", "permission grant", changes.grant, changes.Granted),
    Operation("/permissions/revoke", "permission revoke", changes.revoke, changes.Revoked),
    Operation("/users/{name:path}/add", "user add", changes.add_user, changes.ChangedUsers),
    Operation("/users/{name:path}/set", "user set", changes.set_user, changes.ChangedUser),
    Operation("/users/{name:path}/remove", "user remove", changes.remove_user, changes.ChangedUsers),
)

READS = (
    Operation("/addresses", "address list", answers.all_addresses, list[addresses.AddressLine]),
    Operation("/addresses/{name:path}", "address show", answers.one_address, addresses.AddressDetail),
    Operation("/audit", "audit", answers.audited, list[audit.AuditLine]),
    Operation("/check", "check", answers.checked, answers.Checked),
    Operation("/connections", "connection list", answers.all_connections, list[connections.ConnectionLine]),
    Operation("/connections/{connection_id}", "connection show", answers.one_connection, connections.ConnectionDetail),
    Operation("/dead-letters", "dead-letters list", answers.all_dead_letters, list[dead_letters.Box]),
    Operation(
        "/dead-letters/{name:path}",
        "dead-letters show",
        answers.letters,
        list[answers.Letter] | list[answers.WholeLetter],
    ),
    Operation("/findings", "findings list", answers.all_runs, list[answers.RunLine]),
    Operation("/findings/{run}", "findings list, one of them", answers.one_run, answers.RunLine),
    Operation("/findings/{run}/findings", "findings show", answers.findings, list[runs.Finding]),
    Operation("/groups", "group list", answers.all_groups, list[addresses.Group]),
    Operation("/messages", "message show --since --no-archive", message_ids.messages, list[timeline.Life]),
    Operation("/messages/{half_id}", "message show --no-archive", answers.message, timeline.Life),
    Operation(
        "/permissions",
        "permission list",
        answers.all_permissions,
        list[permissions.PermissionLine] | list[answers.Allowed],
    ),
    Operation("/schedules", "schedule list", answers.all_schedules, list[scheduled.Schedule]),
    Operation("/schedules/{name:path}", "schedule show", answers.scheduled, list[scheduled.Later]),
    Operation("/transactions", "transaction list", answers.all_undecided, list[undecided.Undecided]),
    Operation("/transactions/{txn_id}", "transaction show --no-archive", answers.transaction, timeline.TransactionLife),
    Operation("/users", "user list", answers.all_users, list[users.UserLine]),
)
