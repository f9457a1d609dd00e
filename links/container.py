"""The container of the service (part 2, section 2.7.1) announces its capabilities, and those of its termini."""

from __future__ import annotations

from proton import UNDESCRIBED, Array, Data, Described, int32, symbol, ulong

from coordinator.errors import Redirect
from coordinator.version import DISTRIBUTION, VERSION

#: the capabilities of the coordinator, whatever a peer desires (T1)
TXN_CAPABILITIES = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
#: offered capabilities (T2); from the JMS mapping: shared subscriptions of topics (D1), delayed delivery (D7)
OFFERED = (*TXN_CAPABILITIES, "ANONYMOUS-RELAY", "SHARED-SUBS", "DELAYED_DELIVERY")

#: the capability of P15, offered only to a peer that desires it
SOLE_CONNECTION = "sole-connection-for-container"
#: property of our open frame: a close with the reason follows
ESTABLISHMENT_FAILED = "amqp:connection-establishment-failed"

OUTCOMES = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")

#: lifetime of a dynamic node (part 3, section 3.5.10): it is removed with the link that created it
LIFETIME_POLICY = symbol("lifetime-policy")
DELETE_ON_CLOSE = Described(ulong(0x2B), [])
#: Descriptors of all lifetime policies, any of which a client may name.
LIFETIME_POLICIES = (
    *range(0x2B, 0x2F),
    "amqp:delete-on-close:list",
    "amqp:delete-on-no-links:list",
    "amqp:delete-on-no-messages:list",
    "amqp:delete-on-no-links-or-messages:list",
)

#: The prefix of link properties that this service defines; those of checks are in :mod:`coordinator.checkable`.
OURS = "coordinator:"
TIMEOUT_MS = "coordinator:timeout-ms"
#: On a control link, or in the open (H2).
PRODUCER_GROUP = "coordinator:producer-group"
ON_REFUSED_POST = "coordinator:on-refused-post"
#: On a link for posts: the producer, whose delivery-tags name its messages (P22).
PRODUCER = "coordinator:producer"


def symbols(names: tuple[str, ...]) -> Array:
    return Array(UNDESCRIBED, Data.SYMBOL, *(symbol(name) for name in names))  # type: ignore[arg-type]


def redirect(refusal: Redirect) -> dict[object, object]:
    """Return the info of ``amqp:link:redirect`` (part 2, section 2.8.18)."""
    return {
        symbol("hostname"): refusal.host,
        symbol("network-host"): refusal.host,
        symbol("port"): int32(refusal.port),
        symbol("address"): refusal.address,
    }


def properties(store_id: str) -> dict[object, object]:
    return {symbol("product"): DISTRIBUTION, symbol("version"): VERSION, symbol("store-id"): store_id}
