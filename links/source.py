"""This module attaches consumers and browsers: it resolves a source to a queue or a subscription (rules D1, P8,
P16).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from coordinator.address import addresses
from coordinator.address.addresses import Group, shown
from coordinator.address.nodes import Address
from coordinator.address.permissions import unauthorized
from coordinator.errors import Condition, Refusal
from coordinator.group.queues import Queue
from links import checking, engine, outgoing
from links.browsing import Browsing
from links.consuming import Broadcasting, Choosing, Consuming, Subscribing
from links.link import Attaching, check_node
from store.permissions import Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from links.connection import Connection
    from store.errors import StoreError

T = TypeVar("T")

_TOPICS = frozenset(("topic", "temporary-topic"))


def attach_source(connection: Connection, pointer: engine.Pointer) -> None:
    """Attach a consumer or browser: find or create the address, then answer."""
    source = engine.link_remote_source(pointer)
    name = engine.address_of(source) or ""
    if name.startswith(checking.PREFIX):
        checking.attach_checker(
            connection, pointer, name, outgoing.decode_filters(source, connection.service.instance.selectors.of)
        )
        return
    wanted = _Wanted(connection, pointer)
    if wanted.is_shared_by_instances and connection.service.instance.peers:
        # its links may be at several instances, and no instance knows when the last is detached
        raise Refusal(
            Condition.NOT_IMPLEMENTED,
            "a shared subscription that does not last needs a client's id where several instances share the store",
        )
    wanted.look_up()


def _parted(name: str | None) -> tuple[str | None, str | None]:
    return (None, None) if name is None else addresses.part(name)


class _Wanted:
    """Resolves one attach until it is answered: looks up the address, joins the subscription, and replaces
    ``_attaching`` by the link.
    """

    def __init__(self, connection: Connection, pointer: engine.Pointer) -> None:
        self.connection = connection
        self._service = connection.service
        self._pointer = pointer
        source = engine.link_remote_source(pointer)
        capabilities = engine.symbols(engine.terminus_capabilities(source), "the capabilities of the source")
        self._topic = not _TOPICS.isdisjoint(capabilities)
        self._browse = engine.terminus_distribution_mode(source) == engine.DIST_MODE_COPY
        self._dynamic = bool(engine.terminus_is_dynamic(source))
        # a dynamic source has no address yet, whatever the client sends
        self._name, self._group_name = _parted(None if self._dynamic else engine.address_of(source))
        self._broadcast = self._group_name == addresses.EVERYTHING
        self._attaching = Attaching(connection, pointer)
        if self._dynamic:
            check_node(source)
        if self._name is not None:
            self._service.elsewhere.check_link(self._name, engine.address_of(source) or "")
            self._need(Verb.BROWSE if self._browse and not self._broadcast else Verb.RECEIVE)
        if self._broadcast:
            self._group_name = None
        self._filters = outgoing.decode_filters(source, self._service.instance.selectors.of)
        self._lasting = self._name is None or engine.terminus_expiry_policy(source) == engine.EXPIRE_NEVER
        self._shared, self._global = "shared" in capabilities, "global" in capabilities
        self._subscription = addresses.subscription(
            connection.container, engine.link_name(pointer), shared=self._shared, globally=self._global
        )
        if self._broadcast and self._shared:
            raise Refusal(Condition.INVALID_FIELD, "a broadcast is for one link: expected no capability 'shared'")

    def _need(self, verb: Verb) -> None:
        """Require the client's permission.

        :raises Refusal: the user does not have it.
        """
        right = verb, engine.address_of(engine.link_remote_source(self._pointer)) or ""
        self.connection.need(*right)
        self._attaching.right = right

    @property
    def is_shared_by_instances(self) -> bool:
        """Whether the subscription is shared by links at any instance, and ends with the last of them."""
        return self._topic and self._shared and self._global and not self._lasting

    def look_up(self) -> None:
        directory = self._service.directory
        self.connection.endpoints.attached(self._attaching)
        if self._dynamic:
            self._query(partial(directory.make_dynamic, maker=self.connection, topic=self._topic), self._found)
        elif self._name is None:
            anyones = addresses.anyones(engine.link_name(self._pointer))
            others = [anyones] if anyones not in (None, self._subscription) else []
            self._find_subscription([self._subscription, *others])
        else:
            question = partial(directory.resolve, self._name, maker=self.connection, topic=self._topic)
            self._query(question, self._found)

    def _query(self, question: Callable[[Callable[[T], None]], None], answered: Callable[[T], None]) -> None:
        self.connection.parked.ask(self._attaching, question, answered)

    def _refuse(self, refusal: Refusal) -> None:
        self.connection.endpoints.refuse_attach(self._attaching, refusal)

    def _find_subscription(self, names: list[str], after: int = 0) -> None:
        """Find the subscription that the client wants to end by a null source: the first of ``names`` that exists at a
        topic that the client may receive from. Others may have subscriptions of that name at topics of their own (S3).
        ``after``: the group that was found before.
        """
        name, *others = names

        def looked_up(found: tuple[int, str] | StoreError | None) -> None:
            if not self._attaching.open:
                return
            if isinstance(found, tuple):
                group, topic = found
                if not self.connection.may(Verb.RECEIVE, topic):
                    self._find_subscription(names, group)
                    return
                self._attaching.right = Verb.RECEIVE, topic
                self._subscription = name
                self._query(partial(self._service.directory.resolve, topic, maker=self.connection), self._found)
            elif others:
                self._find_subscription(others)
            else:
                self._refuse(Refusal(Condition.NOT_FOUND, f"there is no lasting subscription {name!r}"))

        self._query(partial(self._service.subscriptions.find, name, after, self.connection.user_id), looked_up)

    def _found(self, address: Address | Refusal) -> None:
        if not self._attaching.open:
            if self._dynamic and isinstance(address, Address):
                self._service.directory.remove_dynamic(address, self.connection)
        elif isinstance(address, Refusal):
            self._refuse(address)
        elif address.dynamic and not self._dynamic and not self.connection.endpoints.made(address.name):
            text = f"{shown(address.name)} is a dynamic node of another connection, which alone may consume from it"
            self._refuse(Refusal(Condition.RESOURCE_LOCKED, text))
        else:
            if self._dynamic:
                self.connection.endpoints.dynamic[self._pointer] = address
            elif self._browse and address.topic and not self._broadcast:
                try:  # a subscription consumes its messages
                    self._need(Verb.RECEIVE)
                except Refusal as refusal:
                    self._refuse(refusal)
                    return
            if self._group_name is None and address.queue is not None and not self._broadcast:
                self._attach(address, address.queue, None)
            else:
                self._join(address, self._group())

    def _group(self) -> Group:
        if self._group_name is not None:
            return Group(name=self._group_name, lasting=True)
        if self._lasting:
            return Group(name=self._subscription, lasting=True, ends_with_close=True, owned=not self._global)
        instance = self._service.instance
        own = f"shared/{instance.instance_id}" if self._shared else instance.uuids.next().hex()
        return Group(name=addresses.passing(self._subscription, own), lasting=False, owned=not self._global)

    def _join(self, address: Address, group: Group) -> None:
        subscriptions = self._service.subscriptions

        def joined(queue: Queue | Refusal) -> None:
            if isinstance(queue, Refusal):
                if self._attaching.open:
                    self._refuse(queue)
            elif self._attaching.open:
                self._attach(address, queue, group)
            elif not group.lasting:
                subscriptions.remove(address, queue)

        absent = None
        if self._browse and not address.topic and not self._broadcast:  # browsing changes nothing
            source = engine.address_of(engine.link_remote_source(self._pointer)) or ""
            absent = None if self.connection.may(Verb.RECEIVE, source) else unauthorized(Verb.RECEIVE, source)
        self._query(partial(subscriptions.join, address, group, absent=absent, user=self.connection.user_id), joined)

    def _attach(self, address: Address, queue: Queue, group: Group | None) -> None:
        connection, pointer, asked = self.connection, self._pointer, self._filters
        if self._browse and not address.topic and not self._broadcast:
            connection.endpoints.attached(Browsing(connection, pointer, address, queue, asked.without_no_local()))
        elif group is not None and (address.topic or self._broadcast) and self._group_name is None:
            known = asked if not self._shared else asked.without_no_local()
            if any(isinstance(other, Subscribing) and other.selects != known.text for other in queue.consumers):
                self._refuse(Refusal(Condition.NOT_ALLOWED, "the subscription is shared with another selector"))
            else:
                subscribing = Broadcasting if self._broadcast else Subscribing
                link = subscribing(connection, pointer, address, queue, group, known)
                link.by_name = self._name is None and not self._dynamic
                connection.endpoints.attached(link)
        elif address.fifo and asked.selector is not None:
            text = f"the address {address.name!r} is of kind fifo, whose consumers take what comes: no selector"
            self._refuse(Refusal(Condition.NOT_IMPLEMENTED, text))
        else:
            kind = Consuming if asked.selector is None else Choosing
            connection.endpoints.attached(kind(connection, pointer, address, queue, group, asked.without_no_local()))
