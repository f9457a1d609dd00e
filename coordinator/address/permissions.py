"""Permissions loads the rights of the users with connections here (rule S3), and applies changes to these.

A user's permissions are queried when its first connection opens, and kept while it has one. They are queried again
after each change, which a NOTIFY reports, and a poll each second, as a NOTIFY may be lost.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from coordinator.address.addresses import GROUP_SEPARATOR, shown
from coordinator.errors import Condition, Refusal
from store.errors import StoreError
from store.permissions import Verb
from store.questions import permissions as questions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.instance import Instance
    from store.questions.permissions import Granted

#: At the end of a pattern: any characters. Only there: a name may have this character elsewhere.
ANYTHING = "*"
#: In place of an address, for querying the decisions of others' transactions.
TRANSACTIONS = "$transactions"

_EVERYTHING = frozenset((verb.value, ANYTHING) for verb in Verb)
_LOOK_SECONDS = 1.0
#: how many users one query names
_ASKED_AT_ONCE = 500


class Rights:
    """The rights of one user. ``granted``: verbs, each with a pattern; verbs of a later version, which may run beside
    this one, allow nothing here.
    """

    __slots__ = ("_names", "_prefixes", "granted")

    def __init__(self, granted: Granted) -> None:
        self.granted = granted
        names: dict[str, set[str]] = {verb: set() for verb in Verb}
        prefixes: dict[str, set[str]] = {verb: set() for verb in Verb}
        for verb, pattern in granted:
            if verb not in names:
                continue
            if pattern.endswith(ANYTHING):
                prefixes[verb].add(pattern.removesuffix(ANYTHING))
            else:
                names[verb].add(pattern)
        self._names = names
        self._prefixes = {verb: tuple(each) for verb, each in prefixes.items()}

    def may(self, verb: Verb, name: str) -> bool:
        """Whether the user may use the address ``name``; for ``check``, the producer group. To receive and to browse,
        the name may be a consumer group's in a source (``orders::billing``): a right on the address covers all its
        groups.
        """
        names = self._names[verb]
        if name in names or name.startswith(self._prefixes[verb]):
            return True
        return verb in _OF_GROUPS and GROUP_SEPARATOR in name and name.partition(GROUP_SEPARATOR)[0] in names

    def ever(self, verb: Verb) -> bool:
        """Whether the user has the verb for any name."""
        return bool(self._names[verb] or self._prefixes[verb])


_OF_GROUPS = (Verb.RECEIVE, Verb.BROWSE)


def unauthorized(verb: Verb, name: str) -> Refusal:
    """Return the refusal of a verb, which does not depend on whether the address exists."""
    return Refusal(Condition.UNAUTHORIZED_ACCESS, f"no permission to {verb}: {shown(name)}")


class Grantee(Protocol):
    """A connection, which is granted the rights of its user."""

    @property
    def user(self) -> str | None:
        """The user's name; None: the connection has no login."""

    def granted(self, rights: Rights) -> None:
        """Apply the user's rights: at first to open, then after each change."""


class Permissions:
    """Knows the rights of each connected user, and calls its connections (``Grantee``) when they change."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._holders: dict[str | None, dict[Grantee, None]] = {}
        #: the rights of users with connections, once known; and of clients without a login
        self._rights: dict[str | None, Rights] = {}
        #: users whose rights are to be queried
        self._wanted: dict[str, None] = {}
        #: the number of changes as of which the known rights were queried
        self._changes = -1
        self._refreshing = False
        self._again = False

    def start(self) -> None:
        self._instance.loop.call_later(_LOOK_SECONDS, self.start)
        self.refresh()

    def enter(self, holder: Grantee) -> None:
        """Add a connection, which gets its rights at once, or when the store has answered."""
        self._holders.setdefault(holder.user, {})[holder] = None
        rights = self._rights.get(holder.user)
        if rights is not None:
            holder.granted(rights)
        elif holder.user is not None:
            self._wanted[holder.user] = None
            self.refresh()

    def leave(self, holder: Grantee) -> None:
        holders = self._holders.get(holder.user, {})
        holders.pop(holder, None)
        if not holders:
            self._holders.pop(holder.user, None)
            if holder.user is not None:
                self._rights.pop(holder.user, None)
                self._wanted.pop(holder.user, None)

    def refresh(self) -> None:
        """Query the number of changes, and the rights that are wanted."""
        if self._refreshing:
            self._again = True
            return
        self._refreshing, self._again = True, False
        names = list(islice(self._wanted, _ASKED_AT_ONCE))
        for name in names:
            del self._wanted[name]
        questions.find(self._instance.queries, names, lambda found: self._found(names, found))

    def _found(self, names: Sequence[str], found: questions.Found | StoreError) -> None:
        self._refreshing = False
        if isinstance(found, StoreError):  # the next poll queries again
            self._want(names)
            return
        if found.changes != self._changes:
            self._changes = found.changes
            self._want([user for user in self._holders if user is not None and user not in names])
        self._learn(None, _EVERYTHING if found.none_counts else found.anonymous)
        for name in names:
            self._learn(name, found.users.get(name, frozenset()))
        if self._wanted or self._again:
            self.refresh()

    def _want(self, names: Sequence[str]) -> None:
        self._wanted.update(dict.fromkeys(name for name in names if name in self._holders))

    def _learn(self, user: str | None, granted: Granted) -> None:
        known = self._rights.get(user)
        if (known is not None and known.granted == granted) or (user is not None and user not in self._holders):
            return
        rights = self._rights[user] = Rights(granted)
        for holder in list(self._holders.get(user, ())):
            try:
                if holder in self._holders.get(user, ()):  # else granting an earlier connection has ended this one
                    holder.granted(rights)
            except Exception:  # noqa: BLE001 - a defect costs its connection only
                self._instance.loop.contain(holder)
