"""The directory keeps the addresses that this instance knows: it finds them in the store, creates them on first use
where the settings allow it, and loads them anew after changes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import structlog

from coordinator.address import addresses
from coordinator.address.addresses import DEAD_LETTER_PREFIX as DEAD_LETTERS
from coordinator.address.addresses import AddressInvalid, AddressPolicy, shown
from coordinator.address.nodes import Address, resource_deleted
from coordinator.address.permissions import unauthorized
from coordinator.checkable import OwnCheckTerms
from coordinator.errors import Condition, Refusal
from coordinator.group.policies import IMMEDIATE, OwnPolicies, Policies, Retry, RetryInvalid, parse_retry
from store.errors import StoreError
from store.permissions import Verb
from store.questions import addresses as questions
from store.questions import consumer_groups

if TYPE_CHECKING:
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance
    from store.commit.batch import Batch


# The entries of removed groups are deleted behind earlier units.


class Before:
    """Unit without rows: calls back when all earlier units are durable. Outcomes of a removed address or group are
    written before it is removed: a batch that misses an entry would be refused, with the units of others in it.
    """

    __slots__ = ("_then", "owner")

    def __init__(self, then: Callable[[], None], owner: object = None) -> None:
        """``owner``: the connection whose outcomes are awaited."""
        self._then = then
        self.owner = owner

    def write(self, batch: Batch) -> None:
        pass

    def durable(self) -> None:
        self._then()

    def refused(self, error: StoreError) -> None:
        self._then()


def remove_behind(instance: Instance, remove: Callable[[], None], owner: object = None) -> None:
    """Call ``remove`` once the outcomes decided before, also in this turn, are durable."""
    instance.loop.call_later(0, lambda: instance.commit.add(Before(remove, owner)))


#: seconds between attempts, while a batch that returns deliveries to the group has locked them
_LOCKED_SECONDS = 0.2


def drop_entries(instance: Instance, groups: list[int]) -> None:
    """Delete the entries of removed groups, piece by piece. If the store fails, its maintenance deletes the rest."""
    if not groups:
        return

    def dropped(answer: tuple[int, bool] | StoreError) -> None:
        if isinstance(answer, StoreError):
            return
        count, left = answer
        instance.loop.call_later(
            _LOCKED_SECONDS if left and not count else 0,
            lambda: drop_entries(instance, groups if left else groups[1:]),
        )

    op = instance.uuids.next()
    consumer_groups.drop_entries(instance.queries, op, groups[0], instance.instance_id, dropped)


log = structlog.get_logger(__name__)

Found = Callable[[Address | Refusal], None]
_Answer = questions.Stored | None | StoreError

#: How many addresses without links are kept in memory; the least used is forgotten first.
MOST_KNOWN = 100_000
_ASKED_AT_ONCE = 1000
#: seconds between attempts to remove a dynamic address that an application's commit has locked
_HELD_SECONDS = 0.2


class Maker(Protocol):
    """A connection, whose client creates addresses by naming them."""

    #: how many addresses it has created; of dynamic ones, those that still exist
    addresses_made: int

    @property
    def user_id(self) -> str | None:
        """The id of the user that its client has logged in as; None: the client has no login."""

    def may(self, verb: Verb, name: str) -> bool:
        """Whether the user has the permission (S3)."""


class Directory:
    """Resolves names to addresses for links, the relay and dead letters. Beyond a bound it forgets the least used."""

    def __init__(self, instance: Instance, queues: Queues, policy: AddressPolicy) -> None:
        self._instance = instance
        self._queues = queues
        self._policy = policy
        self._known: OrderedDict[str, Address] = OrderedDict()
        #: callbacks by name and origin: the service may create addresses for itself that clients may not
        self._waiting: dict[tuple[str, str], list[tuple[Found, Maker | None]]] = {}
        #: seconds between notes in the store that an address is in use; after four such times without one it is removed
        self._note_seconds = addresses.UNUSED.total_seconds() / 4
        self._notes = False
        #: names of dynamic addresses that have ended, and may still be in the store
        self._ended: set[str] = set()

    def known(self, name: str) -> Address | None:
        """Return the known address; None also if the store must be queried first: an address long unused may be
        removed.
        """
        address = self._known.get(name)
        if address is None or time.monotonic() - address.noted > self._note_seconds:
            return None
        self._known.move_to_end(name)
        return address

    def _note(self) -> None:
        """Note the addresses with links in the store as used."""
        self._instance.loop.call_later(self._note_seconds / 2, self._note)
        used = [address for address in self._known.values() if address.users]
        for start in range(0, len(used), _ASKED_AT_ONCE):
            some = used[start : start + _ASKED_AT_ONCE]
            noted = partial(self._noted, some, time.monotonic())
            questions.note_uses(self._instance.queries, [each.id for each in some], noted)

    @staticmethod
    def _noted(some: list[Address], at: float, error: StoreError | None) -> None:
        if error is None:
            for address in some:
                address.noted = at

    def changed(self, name: str) -> None:
        """Load an address anew that some instance has changed or removed. Links that use it keep the same object."""
        if name in self._known:
            self._query_again([name])

    def all_changed(self) -> None:
        """Load all addresses anew, many at once, as any may have changed."""
        names = list(self._known)
        for start in range(0, len(names), _ASKED_AT_ONCE):
            self._query_again(names[start : start + _ASKED_AT_ONCE])

    def _query_again(self, names: list[str]) -> None:
        def refreshed(there: dict[str, questions.Stored] | StoreError) -> None:
            if not isinstance(there, StoreError):
                for name in names:
                    self._refresh(name, there.get(name))

        questions.find_all(self._instance.queries, names, refreshed)

    def _refresh(self, name: str, stored: questions.Stored | None) -> None:
        if stored is not None:
            self._remember(name, stored)
        elif name in self._known:
            self.removed(self._known[name])

    def removed(self, address: Address) -> None:
        """Forget an address that was removed from the store, and end its links. A later use of its name queries the
        store.
        """
        if self._known.get(address.name) is address:
            del self._known[address.name]
        address.gone = True
        for queue in address.queues:
            queue.gone = True
            self._queues.by_group.remove(queue)
        users, address.users = address.users, set()
        for user in users:
            user.refuse(resource_deleted(address))

    def resolve(
        self, name: str, found: Found, *, maker: Maker | None = None, origin: str = "use", topic: bool = False
    ) -> None:
        """Find the address, or create it where the settings allow; ``found`` is called with it, now or later.

        ``maker``: the connection whose client names it; None: the service. ``topic``: the client wants a topic (a
        capability of its terminus); a matching pattern overrides it.
        """
        address = self.known(name)
        if address is not None:
            found(address)
            return
        if origin == "use":
            try:
                addresses.check_name(name)
            except AddressInvalid as invalid:
                found(Refusal(Condition.INVALID_FIELD, str(invalid)))
                return
        waiting = self._waiting.get((name, origin))
        if waiting is not None:
            waiting.append((found, maker))
            return
        self._waiting[name, origin] = [(found, maker)]
        self._look_up(name, origin, topic, made=False)

    def make_dynamic(self, found: Found, *, maker: Maker, topic: bool = False) -> None:
        """Create a temporary queue or topic, owned by this instance."""
        name = f"$dynamic/{self._instance.uuids.next().hex()}"
        self.resolve(name, found, maker=maker, origin="dynamic", topic=topic)

    def _look_up(self, name: str, origin: str, topic: bool, *, made: bool) -> None:
        at = time.monotonic()

        def looked_up(answer: _Answer) -> None:
            stored = None if name in self._ended else answer
            if stored is None and name in self._known:
                self.removed(self._known[name])
            self._looked_up(name, origin, topic, stored, made=made)
            if not isinstance(stored, StoreError) and name in self._known:
                self._known[name].noted = at

        questions.find(self._instance.queries, name, int(self._note_seconds), looked_up)

    def _looked_up(self, name: str, origin: str, topic: bool, stored: _Answer, *, made: bool) -> None:
        try:
            self._resolved(name, origin, topic, stored, made=made)
        except Exception:  # noqa: BLE001 - after a defect, too, the links that wait must be answered
            self._instance.loop.contain(self._looked_up)
            self._answer(name, origin, Refusal(Condition.INTERNAL_ERROR, "the service failed; its log says more"))

    def _resolved(self, name: str, origin: str, topic: bool, stored: _Answer, *, made: bool) -> None:
        if isinstance(stored, StoreError):
            if made and origin == "dynamic":  # no other instance knows of it
                self._drop_dynamic(name, self._waiting[name, origin][0][1])
            refusal = Refusal(Condition.INTERNAL_ERROR, "the store cannot say whether the address exists")
            self._answer(name, origin, refusal)
        elif stored is not None:
            self._answer(name, origin, self._remember(name, stored))
        elif made:
            refusal = Refusal(Condition.NOT_FOUND, f"the address {name!r} was removed while it was made")
            self._answer(name, origin, refusal)
        elif origin == "use" and name == addresses.UNANSWERED:
            self._make_for_letters(name)
        elif origin == "use" and name.startswith(DEAD_LETTERS):
            self._make_dead_letters(name)
        else:
            self._make(name, origin, topic)

    def _make_dead_letters(self, name: str) -> None:
        """Create the address of a group's dead letters, to which a client may attach before there are any."""

        def answered(there: bool | StoreError) -> None:
            if there is True:
                self._make_for_letters(name)
            else:
                self._make(name, "use", topic=False)

        questions.has_consumers(self._instance.queries, name.removeprefix(DEAD_LETTERS), answered)

    def _make_for_letters(self, name: str) -> None:
        """Create a queue for dead letters, whatever the client wants: in a topic they would be lost without
        subscriptions.
        """
        try:
            maker = self._named_by(name, "use")
        except Refusal as refusal:
            self._answer(name, "use", refusal)
            return
        self.resolve(name, lambda found: self._answer(name, "use", found), maker=maker, origin="dead-letter")

    def _make(self, name: str, origin: str, topic: bool) -> None:
        new = self._policy.decide(name, topic=topic) if origin == "use" else addresses.own(name, topic=topic)
        if isinstance(new, addresses.NotMade):
            condition = Condition.INVALID_FIELD if new.condition == "invalid" else Condition.NOT_FOUND
            self._answer(name, origin, Refusal(condition, new.message))
            return
        most = self._instance.bounds.addresses_per_connection
        try:
            maker = self._named_by(name, origin)
        except Refusal as refusal:
            self._answer(name, origin, refusal)
            return
        if maker is not None and maker.addresses_made >= most:
            self._answer(name, origin, _too_many(most))
            return
        if maker is not None:
            maker.addresses_made += 1

        def made(answer: bool | StoreError) -> None:
            # an existing dynamic address is its own: the first answer was lost, and the query repeated
            its_own = answer is True or (answer is False and origin == "dynamic")
            if maker is not None and not its_own:
                maker.addresses_made -= 1
            if isinstance(answer, StoreError):
                self._answer(name, origin, Refusal(Condition.INTERNAL_ERROR, "the store could not make the address"))
                return
            self._look_up(name, origin, topic, made=True)

        questions.make(
            self._instance.queries,
            name,
            routing=new.routing,
            kind=new.kind,
            on_expiry=new.on_expiry,
            max_attempts=new.max_attempts,
            retry=new.retry,
            retention_hours=new.retention_hours,
            origin=origin,
            instance=self._instance.instance_id if origin == "dynamic" else 0,
            made=made,
        )

    def _named_by(self, name: str, origin: str) -> Maker | None:
        """Return the waiting connection that may create the address and has created the fewest; None: the service.

        :raises Refusal: no waiting connection may create it.
        """
        makers = [maker for _, maker in self._waiting[name, origin]]
        able = [maker for maker in makers if maker is None or maker.may(Verb.CREATE, name)]
        if not able:
            raise unauthorized(Verb.CREATE, name)
        return min(able, key=lambda maker: -1 if maker is None else maker.addresses_made)

    def _remember(self, name: str, stored: questions.Stored) -> Address:
        policies, own = _policies(name, stored)
        address = self._known.get(name)
        if address is not None and address.id == stored.id:
            address.set_policies(policies, own)
            address.set_kind(stored.kind)
        else:
            if address is not None:
                self.removed(address)
            address = self._add(name, stored, policies, own)
        address.check_terms = OwnCheckTerms(stored.check_immunity_ms, stored.check_interval_ms, stored.check_most)
        address.fans = address.topic or stored.groups > 0
        address.groups = stored.groups + (not address.topic)
        return address

    def _add(self, name: str, stored: questions.Stored, policies: Policies, own: dict[int, OwnPolicies]) -> Address:
        address = Address(
            stored.id,
            name,
            topic=stored.routing == "topic",
            dynamic=stored.origin == "dynamic",
            policies=policies,
            own_policies=own,
            kind=stored.kind,
        )
        group = stored.group
        if group is not None and not address.topic:
            address.queue = self._queues.queue(group, stored.id, name, address.policies_of(group))
        self._known[name] = address
        if not self._notes:
            self._notes = True
            self._instance.loop.call_later(self._note_seconds / 2, self._note)
        self._forget_least_used()
        return address

    def _forget_least_used(self) -> None:
        """Forget the least used addresses beyond the bound, except those with links: another look-up would create a
        second object. A queue whose whole group is held stays in memory until it is shared.
        """
        most = min(MOST_KNOWN, self._instance.memory.most_addresses)
        for name, address in list(islice(self._known.items(), max(0, len(self._known) - most))):
            if address.users:
                self._known.move_to_end(name)
                continue
            del self._known[name]
            for queue in address.queues:
                if queue.idle:
                    queue.share()

    def _answer(self, name: str, origin: str, found: Address | Refusal) -> None:
        for callback, _ in self._waiting.pop((name, origin), ()):
            try:
                callback(found)
            except Exception:  # noqa: BLE001 - a defect costs that link only
                self._instance.loop.contain(callback)

    def remove_dynamic(self, address: Address, maker: Maker) -> None:
        """Remove a dynamic address with its messages, as its link (or connection) has ended."""
        self.removed(address)
        self._drop_dynamic(address.name, maker)

    def _drop_dynamic(self, name: str, maker: Maker | None) -> None:
        if maker is not None:
            maker.addresses_made -= 1
        self._ended.add(name)
        remove_behind(self._instance, lambda: self._remove_dynamic(name), maker)

    def _remove_dynamic(self, name: str) -> None:
        """Remove a dynamic address from the store, and retry for as long as an application's commit has it locked."""

        def removed(groups: list[int] | StoreError | None) -> None:
            if groups is None:
                self._instance.loop.call_later(_HELD_SECONDS, lambda: self._remove_dynamic(name))
                return
            self._ended.discard(name)
            if not isinstance(groups, StoreError):
                drop_entries(self._instance, groups)

        questions.remove_dynamic(self._instance.queries, name, removed)


def _policies(name: str, stored: questions.Stored) -> tuple[Policies, dict[int, OwnPolicies]]:
    """Return the policies of the address, and the own policies of its groups."""
    policies = Policies(
        max_attempts=stored.max_attempts,
        on_expiry=stored.on_expiry,
        fifo=stored.kind == "fifo",
        dead_letters=name.startswith(DEAD_LETTERS),
        retry=_retry(name, stored.retry),
    )
    own = {
        group: OwnPolicies(
            max_attempts=each.max_attempts,
            on_expiry=each.on_expiry,
            retry=None if each.retry is None else _retry(name, each.retry),
            paused=each.paused,
        )
        for group, each in stored.own.items()
    }
    return policies, own


def _retry(name: str, text: str) -> Retry:
    try:
        return parse_retry(text)
    except RetryInvalid as error:  # another version has written it
        log.error("retried at once", address=shown(name), error=str(error))
        return IMMEDIATE


def _too_many(most: int) -> Refusal:
    text = f"a connection makes at most {most} addresses: expected an address that exists, or another connection"
    return Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text)
