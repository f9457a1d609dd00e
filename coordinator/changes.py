"""Changes are acts on what is configured in the store: addresses, consumer groups, permissions and users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field, SecretStr

from coordinator.address.addresses import SERVICE_PREFIX, AddressInvalid, check_name, keeps_dead_letters, shown
from coordinator.address.permissions import ANYTHING
from coordinator.answers import Answer, InTheWay, Malformed, Unknown, group_of, user_name
from coordinator.group.policies import RetryInvalid, parse_retry
from coordinator.login import verifiers
from coordinator.settings import Kind
from coordinator.timeline import as_utc
from store import addresses, permissions, removal, users
from store.errors import AddressExists, Locked, UserExists
from store.permissions import Grantee, Verb
from store.tables import ANONYMOUS

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: takes a policy back
INHERIT = "inherit"
MOST_ATTEMPTS = 32767
MOST_RETENTION_HOURS = 876_000
#: characters of an address, the separator, and a group
_LONGEST_PATTERN = 2050

_Attempts = Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)]

#: terms of checks: their column, and its least and greatest value
_CHECKS = (
    ("check_immunity", "check_immunity_ms", 0, 3_600_000),
    ("check_interval", "check_interval_ms", 1, 86_400_000),
    ("check_most", "check_most", 1, 1000),
)


@dataclass(frozen=True, kw_only=True)
class AddedAddress:
    """An address that was made. ``routing``: queue or topic."""

    name: str
    routing: str


def add_address(
    connection: Connection,
    *,
    name: str,
    topic: bool = False,
    kind: str = "normal",
    on_expiry: str = "drop",
    max_attempts: _Attempts = 16,
    retry: str = "immediate",
    retention_hours: Annotated[int | None, Field(ge=1, le=MOST_RETENTION_HOURS)] = None,
) -> Answer:
    """Make an address.

    :raises Malformed: a name, kind or policy can be none.
    :raises InTheWay: there is an address of that name.
    """
    try:
        check_name(name)
    except AddressInvalid as error:
        raise Malformed(str(error)) from None
    if name.startswith(SERVICE_PREFIX):
        raise Malformed(f"the address {shown(name)}: names that begin with {SERVICE_PREFIX} are the service's own")
    letters = keeps_dead_letters(name)
    if letters and topic:
        said = f"{shown(name)} keeps dead letters; expected a queue, as a topic keeps none for later"
        raise Malformed(said, "topic")
    _check_kind(kind)
    routing = "topic" if topic else "queue"
    try:
        addresses.add(
            connection,
            name=name,
            routing=routing,
            kind=kind,
            on_expiry=_expiry_policy(on_expiry),
            max_attempts=max_attempts,
            retry=_retry_policy(retry),
            retention_hours=retention_hours,
            origin="dead-letter" if letters else "administration",
        )
    except AddressExists:
        raise InTheWay(f"there is an address {shown(name)} already") from None
    return asdict(AddedAddress(name=name, routing=routing))


def set_address(
    connection: Connection,
    *,
    name: str,
    kind: str | None = None,
    on_expiry: str | None = None,
    max_attempts: _Attempts | None = None,
    retry: str | None = None,
    retention_hours: Annotated[int | None, Field(ge=0, le=MOST_RETENTION_HOURS)] = None,
    check_immunity: str | None = None,
    check_interval: str | None = None,
    check_most: str | None = None,
) -> Answer:
    """Change kind and policies of an address; they count for posts and outcomes from then on. ``retention_hours`` 0: as
    the settings say. Terms of checks are seconds, or a number of checks, or ``inherit``. Returns what has changed.

    :raises Malformed: nothing is given, or a value can be none.
    :raises Unknown: there is no such address.
    :raises InTheWay: its kind is fifo, or would become so.
    """
    given = {
        "kind": kind,
        "on_expiry": None if on_expiry is None else _expiry_policy(on_expiry),
        "max_attempts": max_attempts,
        "retry": None if retry is None else _retry_policy(retry),
        "retention_hours": retention_hours,
    }
    changes: dict[str, object] = {column: value for column, value in given.items() if value is not None}
    for (option, column, least, most), text in zip(_CHECKS, (check_immunity, check_interval, check_most), strict=True):
        if text is not None:
            changes[column] = _check_term(option, text, least, most)
    if not changes:
        options = "--kind, --on-expiry, --max-attempts, --retry, --retention-hours, --check-immunity"
        raise Malformed(f"give at least one of {options}, --check-interval and --check-most")
    if kind is not None:
        _check_kind(kind)
    before = addresses.kind_of(connection, name)
    if before is not None and kind is not None and (before == "fifo") is not (kind == "fifo"):
        said = f"{shown(name)} is of kind {before}; to or from fifo no address changes: make another one"
        raise InTheWay(said, "kind")
    kept = {"retention_hours": None} if retention_hours == 0 else {}
    if before is None or not addresses.change(connection, name, {**changes, **kept}):
        raise Unknown(f"there is no address {shown(name)}")
    return changes


def _check_term(option: str, text: str, least: int, most: int) -> int | None:
    """Return a term as it is stored: milliseconds, or a number of checks; None: as the settings say."""
    if text == INHERIT:
        return None
    counts = option == "check_most"
    try:
        value = int(text) if counts else round(float(text) * 1000)
    except (ValueError, OverflowError):
        value = -1
    if not least <= value <= most:
        expected = f"a number from {least} to {most}" if counts else f"seconds from {least / 1000:g} to {most // 1000}"
        raise Malformed(f"expected {expected}, or {INHERIT}, not {text[:40]!r}", option)
    return value


def _check_kind(kind: str) -> None:
    kinds = get_args(Kind)
    if kind not in kinds:
        raise Malformed(f"expected {', '.join(kinds[:-1])} or {kinds[-1]}, not {kind[:40]!r}", "kind")


def remove_address(connection: Connection, *, name: str, force: bool = False) -> Answer:
    """Remove an address. ``force``: with its messages, which are lost, and groups that last; transactions that
    posted to it, and are undecided, are rolled back.

    :raises Unknown: there is no such address.
    :raises InTheWay: it has these, without ``force``.
    :raises Locked: a transaction that posts there has been committing for long.
    """
    try:
        done = removal.remove(connection, name, force=force)
    except Locked as error:
        said = f"{shown(name)}: a transaction that posts there has been committing for 10 s; try again later"
        raise Locked(said, sqlstate=error.sqlstate) from None
    if done is None:
        raise Unknown(f"there is no address {shown(name)}")
    if not done.removed:
        because = []
        if done.waiting:
            because.append("has messages that are not consumed (coordinator address show counts them)")
        if done.undecided:
            because.append("has messages of undecided transactions (coordinator transaction list has them)")
        if done.groups:
            because.append(f"has consumer groups that last: {', '.join(map(shown, done.groups))}")
        raise InTheWay(f"the address {shown(name)} {' and '.join(because)}; --force removes it with them")
    return asdict(done)


def set_group(
    connection: Connection,
    *,
    name: str,
    on_expiry: str | None = None,
    max_attempts: int | str | None = None,
    retry: str | None = None,
) -> Answer:
    """Give a group policies of its own; ``inherit`` takes one back to that of the address. Returns what has changed.

    :raises Malformed: nothing is given, or a policy can be none.
    :raises Unknown: there is no such group.
    """
    given = {"on_expiry": on_expiry, "max_attempts": max_attempts, "retry": retry}
    changes: dict[str, object] = {
        column: None if value == INHERIT else _own(column, str(value))
        for column, value in given.items()
        if value is not None
    }
    if not changes:
        raise Malformed("give at least one of --on-expiry, --max-attempts and --retry")
    address, group = group_of(connection, name)
    if not addresses.change_group(connection, address, group, changes):
        raise Unknown(f"the group {shown(name)} was removed meanwhile")
    return changes


@dataclass(frozen=True, kw_only=True)
class Paused:
    """The pause of a group, which has begun or ended: since when, by whom, and for which reason."""

    name: str
    paused_at: datetime | None
    paused_by: str | None
    paused_for: str | None


def pause_group(connection: Connection, *, name: str) -> Answer:
    """Pause a group, in all instances at once: its consumers keep their links and their credit, and get nothing new;
    posts go on, browsers see what waits, and what was delivered can be settled.

    :raises Unknown: there is no such group.
    :raises InTheWay: it is paused.
    """
    pause = _pause(connection, name, addresses.pause_group)
    if not pause.done:
        raise InTheWay(f"{shown(name)} is paused {since(asdict(pause))}")
    return _told(name, pause)


def resume_group(connection: Connection, *, name: str) -> Answer:
    """End the pause of a group: its consumers get what waits, in order. Returns the pause that has ended.

    :raises Unknown: there is no such group.
    :raises InTheWay: it is not paused.
    """
    pause = _pause(connection, name, addresses.resume_group)
    if not pause.done:
        raise InTheWay(f"{shown(name)} is not paused")
    return _told(name, pause)


def _pause(
    connection: Connection, name: str, change: Callable[[Connection, str, int], addresses.Pause | None]
) -> addresses.Pause:
    address, group = group_of(connection, name)
    pause = change(connection, address, group)
    if pause is None:
        raise Unknown(f"the group {shown(name)} was removed meanwhile")
    return pause


def _told(name: str, pause: addresses.Pause) -> Answer:
    return asdict(Paused(name=name, paused_at=pause.paused_at, paused_by=pause.paused_by, paused_for=pause.paused_for))


def since(line: Mapping[str, Any]) -> str:
    """Return since when a group is paused, by whom, and why. ``line``: of a list of groups."""
    why = f": {line['paused_for']}" if line["paused_for"] else ""
    return f"since {as_utc(line['paused_at'])} by {line['paused_by']}{why}"


def _own(column: str, value: str) -> str | int:
    """Return the policy of a group as it is stored."""
    if column == "on_expiry":
        return _expiry_policy(value, inherited=True)
    if column == "max_attempts":
        if not (value.isascii() and value.isdecimal() and len(value) < 6 and 1 <= int(value) <= MOST_ATTEMPTS):
            said = f"expected a number from 1 to {MOST_ATTEMPTS} or {INHERIT}, not {value[:40]!r}"
            raise Malformed(said, "max_attempts")
        return int(value)
    return _retry_policy(value)


def _retry_policy(text: str) -> str:
    """Return the policy as it is stored."""
    try:
        return parse_retry(text).text
    except RetryInvalid as error:
        raise Malformed(str(error), "retry") from None


def _expiry_policy(text: str, *, inherited: bool = False) -> str:
    """Return the policy as it is stored. ``inherited``: whether it may be taken back."""
    if text not in ("drop", "dead-letter"):
        expected = f"drop, dead-letter or {INHERIT}" if inherited else "drop or dead-letter"
        raise Malformed(f"expected {expected}, not {text[:40]!r}", "on_expiry")
    return text


def words(changes: Mapping[str, object]) -> str:
    """Format changed columns; None: inherited."""
    return ", ".join(f"{column} {INHERIT if value is None else value}" for column, value in changes.items())


# Permissions and users. ``open_now``: clients without a login may do everything, as there is no user and no permission;
# ``open_before``: they might before the change.


@dataclass(frozen=True, kw_only=True)
class _Opened:
    open_before: bool
    open_now: bool


@dataclass(frozen=True, kw_only=True)
class Granted(_Opened):
    """A permission that was granted, to one of the two."""

    user: str | None
    role: str | None
    verbs: list[str]


@dataclass(frozen=True, kw_only=True)
class Revoked(_Opened):
    """How many permissions were taken back."""

    revoked: int


@dataclass(frozen=True, kw_only=True)
class ChangedUsers(_Opened):
    """A user who was added, or removed."""

    name: str


@dataclass(frozen=True, kw_only=True)
class ChangedUser:
    """What is so with a user now."""

    name: str
    state: str


def grant(
    connection: Connection, *, verbs: str, pattern: str, user: str | None = None, role: str | None = None
) -> Answer:
    """Let a user, or all users with a role, send to addresses, receive from them, and so on. It counts at once.

    ``verbs``: with commas between, or ``all``; ``pattern``: a name, or its beginning and a ``*``.

    :raises Malformed: one of these can be none.
    :raises Unknown: there is no such user.
    """
    grantee, wanted = permission_of(verbs, pattern, user, role)
    open_before = permissions.none_counts(connection)
    if not permissions.grant(connection, grantee, wanted, pattern):
        raise Unknown(f"there is no user {grantee.user}")
    granted = Granted(
        user=grantee.user,
        role=grantee.role,
        verbs=[str(each) for each in wanted],
        open_before=open_before,
        open_now=permissions.none_counts(connection),
    )
    return asdict(granted)


def revoke(
    connection: Connection, *, verbs: str, pattern: str, user: str | None = None, role: str | None = None
) -> Answer:
    """Take back what was granted with just this pattern. Links that need it are detached at once.

    :raises Malformed: one of these can be none.
    :raises Unknown: there is no such permission.
    """
    grantee, wanted = permission_of(verbs, pattern, user, role)
    found = permissions.revoke(connection, grantee, wanted, pattern)
    if not found:
        raise no_permission(grantee, pattern)
    return asdict(Revoked(revoked=found, open_before=False, open_now=permissions.none_counts(connection)))


def no_permission(grantee: Grantee, pattern: str) -> Unknown:
    """Return the error of a revocation that finds nothing."""
    who = f"the role {grantee.role}" if grantee.user is None else grantee.user
    return Unknown(f"{who} has no such permission with the pattern {pattern}")


def permission_of(verbs: str, pattern: str, user: str | None, role: str | None) -> tuple[Grantee, list[Verb]]:
    """Return whose permission it is, and its verbs.

    :raises Malformed: one of the arguments of :func:`grant` can be none.
    """
    grantee, wanted = _grantee(user, role), _verbs(verbs)
    _check_pattern(pattern)
    return grantee, wanted


def _grantee(user: str | None, role: str | None) -> Grantee:
    if (user is None) == (role is None):
        raise Malformed("give --user or --role")
    return Grantee(
        user=None if user is None else user_name(user), role=None if role is None else user_name(role, "role")
    )


def _verbs(text: str) -> list[Verb]:
    if text == "all":
        return list(Verb)
    try:
        return [Verb(each) for each in dict.fromkeys(text.split(","))]
    except ValueError:
        expected = f"expected some of {', '.join(Verb)} with commas between, or all"
        raise Malformed(f"VERBS: {expected}") from None


def _check_pattern(text: str) -> None:
    if not 0 < len(text) <= _LONGEST_PATTERN or not text.isprintable():
        raise Malformed(f"PATTERN: expected 1 to {_LONGEST_PATTERN} printable characters")
    if ANYTHING in text[:-1]:
        raise Malformed("PATTERN: a * can only be its last character")


def add_user(
    connection: Connection, *, name: str, password: SecretStr | None = None, without_password: bool = False
) -> Answer:
    """Make a user. Its password is not stored, but what it is compared by. ``without_password``: it logs in by its
    certificate alone (SASL EXTERNAL).

    :raises Malformed: the name or the password can be none, or it is not said which.
    :raises InTheWay: there is a user of that name.
    """
    if (password is None) != without_password:
        raise Malformed("give a password, or --without-password")
    name = new_name(name)
    made = {} if password is None else _verifiers(password)
    open_before = permissions.none_counts(connection)
    try:
        users.add(connection, name, made)
    except UserExists:
        raise InTheWay(f"there is a user {name} already") from None
    return asdict(ChangedUsers(name=name, open_before=open_before, open_now=permissions.none_counts(connection)))


def new_name(text: str) -> str:
    """Return the name of a new user, as it is stored.

    :raises Malformed: it can be none.
    """
    name = user_name(text)
    if name != name.strip():  # they are not seen, and another user may have the name without them
        raise Malformed("this can be no name of a user: it begins or ends with a space")
    return name


def _verifiers(password: SecretStr) -> Mapping[str, users.Verifier]:
    """Return what a new password is compared by."""
    try:
        return verifiers.new(verifiers.new_password(password.get_secret_value()))
    except verifiers.NotPrepared as error:
        raise Malformed(f"this can be no password: {error}", "password") from None


def set_user(
    connection: Connection,
    *,
    name: str,
    password: SecretStr | None = None,
    role: str | None = None,
    without_role: str | None = None,
    disable: bool = False,
    enable: bool = False,
) -> Answer:
    """Change one thing of a user: its password, after which connections stay; disable or enable it, give it a role or
    take one. It counts at once.

    :raises Malformed: it is not said what, or a name or the password can be none.
    :raises Unknown: there is no such user, or it has no such role.
    """
    if [password is not None, role is not None, without_role is not None, disable, enable].count(True) != 1:
        raise Malformed("give one of --password, --role, --without-role, --disable and --enable")
    name = user_name(name)
    if password is not None:
        done, said = users.set_verifiers(connection, name, _verifiers(password)), ""
        state = "has a new password"
    elif disable or enable:
        done, said = (users.disable if disable else users.enable)(connection, name), ""
        state = "disabled" if disable else "enabled"
    elif role is not None:
        having = _role(role)
        done, said, state = permissions.give_role(connection, name, having), "", f"has the role {having}"
    else:
        having = _role(without_role or "")
        done = permissions.take_role(connection, name, having)
        said, state = f" with the role {having}", f"without the role {having}"
    if not done:
        raise Unknown(f"there is no user {name}{said}")
    return asdict(ChangedUser(name=name, state=state))


def _role(text: str) -> str:
    """Return the name of a role that users can have."""
    name = user_name(text, "role")
    if name == ANONYMOUS:
        raise Malformed(f"the role {ANONYMOUS} is that of clients without a login; no user has it")
    return name


def remove_user(connection: Connection, *, name: str) -> Answer:
    """Remove a user with its password, roles and permissions, and close its connections.

    :raises Malformed: the name can be none.
    :raises Unknown: there is no such user.
    """
    name = user_name(name)
    if not users.remove(connection, name):
        raise Unknown(f"there is no user {name}")
    return asdict(ChangedUsers(name=name, open_before=False, open_now=permissions.none_counts(connection)))
