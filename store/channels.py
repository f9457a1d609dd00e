"""The channels of PostgreSQL on which instances notify each other."""

#: Entries can be delivered; the payload names their groups.
READY = "coordinator_ready"
#: Payload of :data:`READY` in place of groups: an instance has started, and the others query which instances live.
ARRIVED = "arrived"
#: An address was made, changed or removed; the payload is its name.
ADDRESS = "coordinator_address"
#: To the holder of a claim: another connection claims its place; the payload is the holder's instance and number.
SOLE = "coordinator_sole"
#: A link of a lasting subscription is attached.
LINK = "coordinator_link"
#: To the instance that holds a consumer group whole: another has consumers of it; the payload is the group's id.
SHARE = "coordinator_share"
#: Scheduled messages are due.
DUE = "coordinator_due"
#: Another process than its instance has decided a transaction with deliveries that the instance holds in memory: the
#: payload is its id, in hexadecimal. Empty: messages may be on their way to the dead letters.
DECIDED = "coordinator_decided"
#: A user was disabled or removed; the payload is the name.
USER = "coordinator_user"
#: To an instance, whose id is the payload: an operator wants connections of it closed.
CONNECTION = "coordinator_connection"
#: Users, roles or permissions were changed; the payload is empty.
PERMISSION = "coordinator_permission"
