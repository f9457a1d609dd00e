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
from store.tables import ANONYMOUS

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

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that the user has besides those in the store."""

    def granted(self, rights: Rights) -> None:
        """Apply the user's rights: at first to open, then after each change."""


#: A user, with roles that it has besides those in the store. The same user may have others on another connection.
Whom = tuple[str, tuple[str, ...]]


def _whom(holder: Grantee) -> Whom | None:
    return None if holder.user is None else (holder.user, holder.roles)


class Permissions:
    """Knows the rights of each connected user, and calls its connections (``Grantee``) when they change."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._holders: dict[Whom | None, dict[Grantee, None]] = {}
        #: the rights of users with connections, once known; and of clients without a login
        self._rights: dict[Whom | None, Rights] = {}
        #: users whose rights are to be queried
        self._wanted: dict[Whom, None] = {}
        #: the number of changes as of which the known rights were queried
        self._changes = -1
        self._refreshing = False
        self._again = False

    def start(self) -> None:
        self._instance.loop.call_later(_LOOK_SECONDS, self.start)
        self.refresh()

    def enter(self, holder: Grantee) -> None:
        """Add a connection, which gets its rights at once, or when the store has answered."""
        whom = _whom(holder)
        self._holders.setdefault(whom, {})[holder] = None
        rights = self._rights.get(whom)
        if rights is not None:
            holder.granted(rights)
        elif whom is not None:
            self._wanted[whom] = None
            self.refresh()

    def leave(self, holder: Grantee) -> None:
        whom = _whom(holder)
        holders = self._holders.get(whom, {})
        holders.pop(holder, None)
        if not holders:
            self._holders.pop(whom, None)
            if whom is not None:
                self._rights.pop(whom, None)
                self._wanted.pop(whom, None)

    def refresh(self) -> None:
        """Query the number of changes, and the rights that are wanted."""
        if self._refreshing:
            self._again = True
            return
        self._refreshing, self._again = True, False
        asked = list(islice(self._wanted, _ASKED_AT_ONCE))
        for whom in asked:
            del self._wanted[whom]
        names = list(dict.fromkeys([user for user, _ in asked]))
        roles = list(dict.fromkeys([role for _, each in asked for role in each]))
        questions.find(self._instance.queries, names, roles, lambda found: self._found(asked, found))

    def _found(self, asked: Sequence[Whom], found: questions.Found | StoreError) -> None:
        self._refreshing = False
        if isinstance(found, StoreError):  # the next poll queries again
            self._want(asked)
            return
        if found.changes != self._changes:
            self._changes = found.changes
            self._want([whom for whom in self._holders if whom is not None and whom not in asked])
        nothing: questions.Granted = frozenset()
        self._learn(None, _EVERYTHING if found.none_counts else found.roles.get(ANONYMOUS, nothing))
        for user, roles in asked:
            granted = [found.users.get(user, nothing), *(found.roles.get(role, nothing) for role in roles)]
            self._learn((user, roles), nothing.union(*granted))
        if self._wanted or self._again:
            self.refresh()

    def _want(self, users: Sequence[Whom]) -> None:
        self._wanted.update(dict.fromkeys(whom for whom in users if whom in self._holders))

    def _learn(self, whom: Whom | None, granted: Granted) -> None:
        known = self._rights.get(whom)
        if (known is not None and known.granted == granted) or (whom is not None and whom not in self._holders):
            return
        rights = self._rights[whom] = Rights(granted)
        for holder in list(self._holders.get(whom, ())):
            try:
                if holder in self._holders.get(whom, ()):  # else granting an earlier connection has ended this one
                    holder.granted(rights)
            except Exception:  # noqa: BLE001 - a defect costs its connection only
                self._instance.loop.contain(holder)
