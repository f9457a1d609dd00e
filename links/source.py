"""Attaches of consumers and browsers: the source resolved to a queue or a subscription (rules D1, P8, P16)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from coordinator.address import groups
from coordinator.address.directory import Address
from coordinator.address.groups import Group
from coordinator.errors import Condition, Refusal
from coordinator.group.queues import Queue
from links import engine, filters, values
from links.browsing import Browsing
from links.consuming import Choosing, Consuming, Subscribing
from links.link import Attaching

if TYPE_CHECKING:
    from collections.abc import Callable

    from links.link import Carrier
    from store.errors import StoreError

_TOPICS = frozenset(("topic", "temporary-topic"))


def attach_source(connection: Carrier, pointer: engine.Pointer) -> None:
    """A client wants to consume or browse: find or make the address, then answer."""
    source = engine.link_remote_source(pointer)
    service, ask = connection.service, connection.parked.ask
    capabilities = values.symbols(engine.terminus_capabilities(source), "the capabilities of the source")
    topic = not _TOPICS.isdisjoint(capabilities)
    browse = engine.terminus_distribution_mode(source) == engine.DIST_MODE_COPY
    dynamic = bool(engine.terminus_is_dynamic(source))
    source_name = engine.address_of(source)
    name, group_name = (None, None) if source_name is None else groups.part(source_name)
    asked = filters.asked(source, service.instance.selectors.of)
    attaching = Attaching(connection, pointer)
    lasting = name is None or engine.terminus_expiry_policy(source) == engine.EXPIRE_NEVER
    shared, globally = "shared" in capabilities, "global" in capabilities
    subscription = groups.subscription(
        connection.container, engine.link_name(pointer), shared=shared, globally=globally
    )

    def found(address: Address | Refusal, subscription: str = subscription) -> None:
        if not attaching.open:
            if dynamic and isinstance(address, Address):
                service.directory.remove_dynamic(address)
        elif isinstance(address, Refusal):
            connection.refuse_attach(attaching, address)
        else:
            if dynamic:
                connection.dynamic[pointer] = address
            if group_name is not None:
                join(address, Group(name=group_name, lasting=True))
            elif address.queue is not None:
                attach(address, address.queue, None)
            elif lasting:
                join(address, Group(name=subscription, lasting=True, ends_with_close=True))
            else:
                own = f"shared/{service.instance.instance_id}" if shared else service.instance.uuids.next().hex()
                join(address, Group(name=f"{subscription}/{own}"[-1024:], lasting=False))

    def join(address: Address, group: Group) -> None:
        ask(attaching, partial(service.subscriptions.join, address, group), lambda queue: joined(address, group, queue))

    def joined(address: Address, group: Group, queue: Queue | Refusal) -> None:
        if isinstance(queue, Refusal):
            if attaching.open:
                connection.refuse_attach(attaching, queue)
        elif not attaching.open:
            if not group.lasting:
                service.subscriptions.remove(address, queue)
        else:
            attach(address, queue, group)

    def attach(address: Address, queue: Queue, group: Group | None) -> None:
        if browse and not address.topic:
            connection.attached(Browsing(connection, pointer, address, queue, asked.without_no_local()))
        elif group is not None and address.topic and group_name is None:
            known = asked if not shared else asked.without_no_local()
            if any(isinstance(other, Subscribing) and other.selects != known.text for other in queue.consumers):
                refusal = Refusal(Condition.NOT_ALLOWED, "the subscription is shared with another selector")
                connection.refuse_attach(attaching, refusal)
                return
            connection.attached(Subscribing(connection, pointer, address, queue, group, known))
        elif address.fifo and asked.selector is not None:
            refusal = Refusal(
                Condition.NOT_IMPLEMENTED,
                f"the address {address.name!r} is of kind fifo, whose consumers take what comes: no selector",
            )
            connection.refuse_attach(attaching, refusal)
        else:
            kind = Consuming if asked.selector is None else Choosing
            connection.attached(kind(connection, pointer, address, queue, group, asked.without_no_local()))

    if topic and shared and globally and not lasting and service.instance.peers:
        # its links may be at several instances, and no instance knows which is the last
        raise Refusal(
            Condition.NOT_IMPLEMENTED,
            "a shared subscription that does not last needs a client's id where several instances share the store",
        )

    if dynamic:
        connection.attached(attaching)
        ask(attaching, partial(service.directory.make_dynamic, topic=topic), found)
    elif name is None:
        connection.attached(attaching)
        anyones = groups.anyones(engine.link_name(pointer))
        others = [anyones] if anyones not in (None, subscription) else []
        _find_subscription(connection, attaching, [subscription, *others], found)
    else:
        connection.attached(attaching)
        ask(attaching, partial(service.directory.resolve, name, topic=topic), found)


def _find_subscription(connection: Carrier, attaching: Attaching, names: list[str], found: Callable[..., None]) -> None:
    """A null source names an existing subscription, which the client wants to end: the first of ``names`` there is.
    ``found`` is given its topic, and which it is.
    """
    service = connection.service
    name, *others = names

    def looked_up(topic_name: str | StoreError | None) -> None:
        if not attaching.open:
            return
        if isinstance(topic_name, str):
            connection.parked.ask(
                attaching, partial(service.directory.resolve, topic_name), partial(found, subscription=name)
            )
        elif others:
            _find_subscription(connection, attaching, others, found)
        else:
            text = f"there is no lasting subscription {name!r}"
            connection.refuse_attach(attaching, Refusal(Condition.NOT_FOUND, text))

    connection.parked.ask(attaching, partial(service.subscriptions.find, name), looked_up)
