"""Previews say what an act would do, in sentences, before it is done: they change nothing, and look at a bounded part
of the store. What others do meanwhile counts for the act all the same.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from coordinator import repairs
from coordinator.acts import goals_of, moved_to, retirable, way_of
from coordinator.address.addresses import shown
from coordinator.answers import Unknown, connection_id_of, group_of, txn_id_of, user_name
from coordinator.changes import no_permission, permission_of, since
from coordinator.timeline import as_utc
from store import addresses, connections, dead_letters, permissions, purge, seeks, undecided
from store.tables import ANONYMOUS

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from sqlalchemy import Connection

#: letters, and entries or messages, that are looked at
_MOST_LETTERS = 500
_MOST = 10_000
#: repairs that are told one by one
_MOST_TOLD = 20
_FIRST = "The first decision wins and stays."
_STATES = {"can": "It would", "done": "Done already:", "cannot": "It cannot be repaired:"}
#: After so many no other letters, or findings, are looked at.
_SECONDS = 3.0


def of_decision(connection: Connection, *, txn_id: str, decision: str | None = None) -> list[str]:
    """Of :func:`coordinator.acts.resolve`. ``decision``: None: it is not said yet.

    :raises CannotCommit: its client alone can commit it.
    :raises AlreadyDecided: with the decision, and who made it.
    :raises NotUndecided: no such transaction is known.
    """
    wanted = txn_id_of(txn_id)
    found = undecided.outcome_of(connection, wanted)
    if found is None or found.outcome != "undecided":
        raise undecided.not_undecided(connection, wanted)
    if decision == "commit":
        undecided.check_commit(connection, wanted)
    if not undecided.checkable(connection, wanted):
        return [
            f"It is undecided, with {found.posted:,} messages posted, which its client alone can commit: a rollback "
            "throws them away.",
            f"It has retired {found.retired:,} deliveries: a rollback gives them back.",
            _FIRST,
        ]
    return [
        f"It is undecided, with {found.posted:,} messages posted: a commit delivers them, a rollback throws them away.",
        f"It has retired {found.retired:,} deliveries: a commit ends them, a rollback gives them back.",
        _FIRST,
    ]


def of_check(connection: Connection, *, txn_id: str) -> list[str]:
    """Of :func:`coordinator.acts.resume`.

    :raises CannotCheck: it is a plain transaction.
    :raises AlreadyDecided: with the decision, and who made it.
    :raises NotUndecided: no such transaction is known.
    """
    undecided.check_resume(connection, txn_id_of(txn_id))
    return [
        "It is undecided: its checkers are asked about it again, from the first check on.",
        "That begins at once, or when its client has left it, or its time is over.",
    ]


def of_close(connection: Connection, *, connection_id: str) -> list[str]:
    """Of :func:`coordinator.acts.close`."""
    found = connections.one(connection, connection_id_of(connection_id))
    who = f"The client {found.container_id} of user {found.user or '(none)'} at {found.host}"
    return [f"{who} is told the reason, and loses {found.links} links; it may connect again at once."]


def of_removal(connection: Connection, *, name: str) -> list[str]:
    """Of :func:`coordinator.changes.remove_address`."""
    found = _waiting(connection, name)
    count = f"{found.free + found.held:,}{' and more' if found.more else ''}"
    return [f"{count} messages are at {shown(name)}. While there is one, the address is not removed without them."]


def _waiting(connection: Connection, name: str) -> purge.Waiting:
    found = purge.waiting(connection, name, _MOST)
    if found is None:
        raise Unknown(f"there is no address {shown(name)}")
    return found


def of_purge(connection: Connection, *, name: str) -> list[str]:
    """Of :func:`coordinator.acts.purge`.

    :raises Unknown: there is no such address.
    """
    found = _waiting(connection, name)
    least = "At least " if found.more else ""
    return [
        f"{least}{found.free:,} messages that wait at {shown(name)} are thrown away, in all its groups.",
        f"{least}{found.held:,} stay, as consumers hold them or they are on their way to the dead letters.",
    ]


def of_replay(
    connection: Connection,
    *,
    name: str,
    ids: list[int] | None = None,
    to: str | None = None,
    like: int | None = None,
) -> list[str]:
    """Of :func:`coordinator.acts.replay`."""
    group, goals = goals_of(connection, name, to, like)
    go: Counter[str] = Counter()
    stay: Counter[str] = Counter()
    looked = above = 0
    others, end = True, time.monotonic() + _SECONDS
    while others and looked < _MOST_LETTERS and time.monotonic() < end:
        most = min(dead_letters.CHUNK, _MOST_LETTERS - looked)
        found = dead_letters.letters(connection, group, ids=ids, above=above, most=most)
        others = len(found) == most
        for each in found:
            looked, above = looked + 1, each.id
            goal = goals.decide(each)
            if isinstance(goal, str):
                stay[goal] += 1
            elif goal is not None:
                go[goals.name_of(goal[0])] += 1
    which = "the group that they came from" if to is None else "all groups"
    lines = [
        f"{count:,} {'letter is' if count == 1 else 'letters are'} posted anew to {which} of {shown(address)}."
        for address, count in go.items()
    ]
    lines += [f"{count:,} {'letter stays' if count == 1 else 'letters stay'}: {why}." for why, count in stay.items()]
    if others:
        lines.append(f"That is of the first {looked:,} letters; if there are others, they follow likewise.")
    return lines or ["No letter is there that would be posted."]


def looked_at(connection: Connection, *, run: str) -> dict[str, str]:
    """Return the argument of :func:`coordinator.acts.repair` that says which state of the run a page tells of."""
    return {"seen_at": repairs.stored_run(connection, run).seen_at.isoformat()}


def of_repair(
    connection: Connection, *, run: str, finding: int | None = None, seen_at: datetime | None = None
) -> list[str]:
    """Of :func:`coordinator.acts.repair`."""
    found = repairs.of_run(connection, run, finding=finding, seen_at=seen_at)
    lines: list[str] = []
    count, others, end = 0, False, time.monotonic() + _SECONDS
    by_hand = repairs.ByHand()
    for piece in repairs.pieces(connection, found, apply=False):
        by_hand.add(piece.by_hand)
        for each in piece.lines:
            count += 1
            if len(lines) < _MOST_TOLD:
                lines.append(f"{_STATES[each.state]} {each.said} ({each.kind}).")
        others = count >= _MOST_LETTERS or time.monotonic() > end
        if others:
            break
    if count > len(lines):
        lines.append(f"And so on: {count:,} findings that the store can do something about, or has.")
    lines += [f"By hand: {each.findings:,} {each.kind}: {each.suggested_repair}" for each in by_hand.told()]
    if others:
        lines.append("That is of the first findings; others may follow.")
    return lines or ["The run has found nothing."]


def of_pause(connection: Connection, *, name: str) -> list[str]:
    """Of :func:`coordinator.changes.pause_group`."""
    group_of(connection, name)
    return [
        f"The consumers of {shown(name)} keep their links, and get nothing new until the group is resumed.",
        "Posts go on, and what waits can be browsed; what was delivered can be settled.",
    ]


def of_resumption(connection: Connection, *, name: str) -> list[str]:
    """Of :func:`coordinator.changes.resume_group`."""
    _, group = group_of(connection, name)
    pause = addresses.pause_of(connection, group)
    if pause is None or pause.paused_at is None:
        return [f"{shown(name)} is not paused."]
    return [f"{shown(name)} is paused {since(asdict(pause))}."]


def of_grant(
    connection: Connection, *, verbs: str, pattern: str, user: str | None = None, role: str | None = None
) -> list[str]:
    """Of :func:`coordinator.changes.grant`."""
    grantee, wanted = permission_of(verbs, pattern, user, role)
    if grantee.user is not None and not permissions.is_user(connection, grantee.user):
        raise Unknown(f"there is no user {grantee.user}")
    who = f"All users with the role {grantee.role}" if grantee.user is None else grantee.user
    who = "Clients without a login" if grantee.role == ANONYMOUS else who
    before = permissions.there(connection)
    return [f"{who} may {', '.join(wanted)} {pattern}, at once.", *_who_may(before, before._replace(permissions=True))]


def of_revocation(
    connection: Connection, *, verbs: str, pattern: str, user: str | None = None, role: str | None = None
) -> list[str]:
    """Of :func:`coordinator.changes.revoke`.

    :raises Unknown: there is no such permission.
    """
    grantee, wanted = permission_of(verbs, pattern, user, role)
    count = permissions.count(connection, grantee, wanted, pattern)
    if not count:
        raise no_permission(grantee, pattern)
    after = permissions.there(connection, but=(grantee, wanted, pattern))
    lines = _who_may(permissions.there(connection), after)
    return [f"{count} permissions are taken back, and links that need them are detached at once.", *lines]


def of_new_user(connection: Connection) -> list[str]:
    """Of :func:`coordinator.changes.add_user`."""
    before = permissions.there(connection)
    return _who_may(before, before._replace(users=True))


def of_user_removal(connection: Connection, *, name: str) -> list[str]:
    """Of :func:`coordinator.changes.remove_user`.

    :raises Unknown: there is no such user.
    """
    name = user_name(name)
    if not permissions.is_user(connection, name):
        raise Unknown(f"there is no user {name}")
    lines = _who_may(permissions.there(connection), permissions.there(connection, but_user=name))
    return ["Its password, roles and permissions go with it, and its connections are closed.", *lines]


def _who_may(before: permissions.There, after: permissions.There) -> list[str]:
    """Say what counts before a change of users and permissions, and after it."""
    lines = [
        "Up to now clients without a login may do everything, as there is no user and no permission."
        if before.none_counts
        else "Up to now permissions count: clients without a login may do what the role anonymous may."
    ]
    if after.none_counts:
        lines.append("Then no user and no permission is left: clients without a login may do everything.")
    elif not after.permissions:
        lines.append("Then there is no permission: no client may do anything, until it is granted.")
    elif before.none_counts:
        lines.append("Then permissions count: clients without a login may do what the role anonymous may.")
    else:
        lines.append("That stays so.")
    if before.none_counts:
        lines.append("To let them go on as before, grant all with the pattern * to the role anonymous first.")
    return lines


def of_retirement(connection: Connection, *, half_id: str, group: str) -> list[str]:
    """Of :func:`coordinator.acts.retire`."""
    wanted, _, found = retirable(connection, half_id, group)
    due = "" if found.available_at is None else f", is due at {as_utc(found.available_at)}"
    return [
        f"Message {wanted} waits in the group {shown(group)}{due}, and has failed {found.failures} times.",
        "As accepted it leaves the group as if a consumer had accepted it; else it goes to the group's dead letters, "
        "with the reason. The first decision wins: a consumer may be faster.",
    ]


def of_seek(
    connection: Connection,
    *,
    name: str,
    to: str | None = None,
    back_to: str | None = None,
    forth_to: str | None = None,
    kept: timedelta,
) -> list[str]:
    """Of :func:`coordinator.acts.seek`."""
    option, place = way_of(to, back_to, forth_to)
    group, to_id = moved_to(connection, name, option, place, kept)
    lines = [f"The group {shown(name)} is moved to {shown(place)}, while its consumers run."]
    if option != "back_to":
        before = seeks.waiting_before(connection, group, to_id, _MOST)
        lines.append(f"Of the next {_MOST:,} messages that wait, {before:,} were posted before, and are thrown away.")
    if option != "forth_to":
        since = seeks.posted_since(connection, group, to_id, _MOST)
        lines.append(
            f"Of the first {_MOST:,} messages of the store from there on, {since:,} were posted to this address; "
            "those of them that the group has had are delivered again."
        )
    return lines
