"""Declare the tables of the store, schema ``coordinator``: what a row is, and which invariant each constraint holds.

``store/sql`` has the functions, triggers and views. The first migration creates what is declared here; a test compares
the two. One file because it is read, and compared, as a whole.
Times are ``timestamptz``; ids of halves and entries are those of :mod:`store.ids`.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Date,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    cast,
    event,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import UserDefinedType

from store.commit import terms
from store.schema import SCHEMA as SCHEMA

#: A session setting. When on, this SQL transaction belongs to retention, which truncates the days that it drops.
DROPPING = "coordinator.dropping"

#: Rows of the audit cannot be deleted for so many days (S10).
AUDIT_DAYS = 30

#: The role of clients without a login, which no user has (S3).
ANONYMOUS = "anonymous"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_name)s_key",
        "ix": "%(table_name)s_%(column_0_name)s_idx",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    },
)

_now = text("now()")

#: The hot path inserts and deletes. If vacuum went by the share of rows, it would never clean a short queue with a
#: long history.
_VACUUM_BY_COUNT = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "100000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "100000",
}


class Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction id."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def _written() -> Column[int]:
    """Return the column of the SQL transaction that wrote the row.

    A reader bounded by ``pg_snapshot_xmin`` misses no row that commits late.
    """
    return Column("written_xid", Xid8, nullable=False, server_default=text("pg_current_xact_id()"))


store_identity = Table(
    "store_identity",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    # Eight hexadecimal digits: the first part of every delivery tag, and the property "store-id" of our open frame.
    Column("id", Text, nullable=False, server_default=text("substr(md5(gen_random_uuid()::text), 1, 8)")),
    # The key of the check in every txn-id, by which the store recognizes its own.
    Column(
        "secret",
        LargeBinary,
        nullable=False,
        server_default=text("decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')"),
    ),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Counts the changes of users, roles and permissions: instances compare it (S3).
    Column("permission_changes", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("singleton", name="one_row"),
)

address = Table(
    "address",
    metadata,
    # After the last id the sequence begins again with the first: see free_id.
    Column("id", Integer, Identity(always=True, cycle=True), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    # queue: consumers share the default group. topic: every subscription is a group of its own.
    Column("routing", Text, nullable=False, server_default="queue"),
    Column("kind", Text, nullable=False, server_default="normal"),
    # A message whose ttl runs out is dropped with an op, or moved to the dead letters.
    Column("on_expiry", Text, nullable=False, server_default="drop"),
    Column("max_attempts", SmallInteger, nullable=False, server_default="16"),
    # How long messages are kept after they were consumed; null: the settings decide.
    Column("retention_hours", Integer),
    # What created it: administration, the first use by a client, or a dynamic terminus.
    Column("origin", Text, nullable=False, server_default="administration"),
    # The instance that owns a dynamic address, which is removed with the instance.
    Column("instance_id", Integer),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # How long a failed delivery waits before the next, as coordinator/group/policies.py reads it.
    Column("retry", Text, nullable=False, server_default="immediate"),
    # How a transaction is checked whose first message was posted to this address (H7); null: the settings decide.
    Column("check_immunity_ms", Integer),
    Column("check_interval_ms", Integer),
    Column("check_most", SmallInteger),
    CheckConstraint("length(name) between 1 and 1024", name="name"),
    CheckConstraint("routing in ('queue', 'topic')", name="routing"),
    CheckConstraint("kind in ('normal', 'transaction', 'fifo', 'delay', 'mixed')", name="kind"),
    CheckConstraint("on_expiry in ('drop', 'dead-letter')", name="on_expiry"),
    CheckConstraint("max_attempts >= 1", name="max_attempts"),
    CheckConstraint("retention_hours >= 1", name="retention_hours"),
    CheckConstraint("check_immunity_ms between 0 and 3600000", name="check_immunity"),
    CheckConstraint("check_interval_ms between 1 and 86400000", name="check_interval"),
    CheckConstraint("check_most between 1 and 1000", name="check_most"),
    CheckConstraint("origin in ('administration', 'use', 'dynamic', 'dead-letter')", name="origin"),
    CheckConstraint("(origin = 'dynamic') = (instance_id is not null)", name="dynamic_owner"),
)

address_use = Table(
    "address_use",
    metadata,
    # When an instance last recorded a use of an address that was created on use; no row: it was not used since.
    Column("address_id", Integer, ForeignKey(address.c.id, ondelete="CASCADE"), primary_key=True),
    Column("used_at", DateTime(timezone=True), nullable=False, server_default=_now),
)

consumer_group = Table(
    "consumer_group",
    metadata,
    # After the last id the sequence begins again with the first, as that of an address.
    Column("id", Integer, Identity(always=True, cycle=True), primary_key=True),
    Column("address_id", Integer, ForeignKey(address.c.id, ondelete="CASCADE"), nullable=False),
    # '' is the default group of a queue.
    Column("name", Text, nullable=False, server_default=""),
    # A volatile group is a subscription that ends with its link; the instance that holds the link owns it.
    Column("instance_id", Integer),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # The only instance with consumers takes entries by the range instead of leasing them one by one: all up to the
    # highest group_read.read_through are its own, whatever their lease says. 0: no instance holds the group.
    Column("holder", Integer, nullable=False, server_default="0"),
    # Policies of the group in place of the address's; null: the policy of the address applies.
    Column("on_expiry", Text),
    Column("max_attempts", SmallInteger),
    Column("retry", Text),
    # The id of the user who created it, where it is a subscription of that user's container: no other user may join it.
    Column("owner", Text),
    # Not null: an operator has paused it then, and its consumers get nothing new. By whom, and for which reason.
    Column("paused_at", DateTime(timezone=True)),
    Column("paused_by", Text),
    Column("paused_for", Text),
    UniqueConstraint("address_id", "name"),
    CheckConstraint("on_expiry in ('drop', 'dead-letter')", name="on_expiry"),
    CheckConstraint("max_attempts >= 1", name="max_attempts"),
)
#: Excludes the default groups of queues, which share a name. By hash: with a B-tree on the name, batches that search
#: the named groups of one address would read those of all addresses.
Index(
    "consumer_group_name_idx",
    consumer_group.c.name,
    postgresql_using="hash",
    postgresql_where=consumer_group.c.name != "",
)

seek = Table(
    "seek",
    metadata,
    # The last seek of a consumer group (H17), under way or ended.
    Column("group_id", Integer, ForeignKey(consumer_group.c.id, ondelete="CASCADE"), primary_key=True),
    # Back, to deliver again from the half to_id on; or forth, to skip what was posted before it.
    Column("back", Boolean, nullable=False),
    Column("to_id", BigInteger, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Null: the seek is under way, or was interrupted and continues when its command is run again.
    Column("ended_at", DateTime(timezone=True)),
    # Messages delivered again, or skipped; and those left unchanged because they have expired.
    Column("moved", BigInteger, nullable=False, server_default="0"),
    Column("expired", BigInteger, nullable=False, server_default="0"),
    # Of a seek back: halves up to this id are done.
    Column("position", BigInteger, nullable=False),
)

removed_address = Table(
    "removed_address",
    metadata,
    # Id and name of a removed address, to which halves and ops still refer. Written by a trigger.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("removed_at", DateTime(timezone=True), nullable=False, server_default=_now),
)

removed_group = Table(
    "removed_group",
    metadata,
    # Id and name of a removed consumer group. Written by a trigger.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("address_id", Integer, nullable=False),
    Column("name", Text, nullable=False),
    # True for a subscription that did not end with its link: clients may know its name.
    Column("lasting", Boolean, nullable=False),
    Column("removed_at", DateTime(timezone=True), nullable=False, server_default=_now),
)

group_read = Table(
    "group_read",
    metadata,
    # How far a holder has read a group: only the highest row counts; lower ones are removed from time to time. Rows of
    # an instance that is not the holder do not count. 0: the living instance has consumers of the group, held or not.
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("instance_id", Integer, primary_key=True, autoincrement=False),
    Column("read_through", BigInteger, primary_key=True, autoincrement=False),
)

half = Table(
    "half",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    # Null: posted outside any transaction, and therefore committed once stored.
    Column("txn_id", Uuid),
    Column("address_id", Integer, nullable=False),
    # The message as received: all its sections, the bare message byte for byte.
    Column("message", LargeBinary, nullable=False),
    Column("posted_at", DateTime(timezone=True), nullable=False, server_default=_now),
    _written(),
    postgresql_partition_by="RANGE (id)",
)

op = Table(
    "op",
    metadata,
    # commit and rollback: the txn-id, so that the primary key is "one decision a transaction". Others: a UUIDv7.
    Column("id", Uuid, primary_key=True),
    Column("decision", Text, nullable=False),
    # The transaction in which a delivery got another outcome than accepted. Commit and rollback have it as their id;
    # they repeat it here where someone other than the client has decided.
    Column("txn_id", Uuid),
    Column("reason", Text),
    # Halves the transaction posted (0 where it only retired); null on the ops of deliveries.
    Column("posted", Integer),
    # Deliveries the op covers, pairwise: the half and the consumer group. On commit: those accepted in it.
    Column("half_ids", ARRAY(BigInteger)),
    Column("group_ids", ARRAY(Integer)),
    # The instance that decided; null: an operator at the command line, or an application in SQL (X3).
    Column("instance_id", Integer),
    Column("decided_at", DateTime(timezone=True), nullable=False, server_default=_now),
    _written(),
    # One check, which null passes, with constant lists: PostgreSQL parses and plans a table's checks anew in each
    # statement.
    CheckConstraint(
        "case when posted is null "
        "then decision = any ('{accept,reject,release,modify,expire,dead-letter,purge,replay}') "
        "else decision = any ('{commit,rollback}') and txn_id = id end",
        name="decision",
    ),
    postgresql_partition_by="RANGE (id)",
)
#: ``op.written_xid`` as a bigint for the index: BRIN has no operator class for xid8.
WRITTEN = cast(cast(op.c.written_xid, Text), BigInteger)
# Finds the rows written last, by day: the metrics and coordinator watch continue from their last position. And the
# halves of a transaction that was undecided for long: its id has its time, as theirs have, and the operator class knows
# few that are far off apart from the others. BRIN, because the hot path then writes no index entries.
for _name, _columns in (
    ("op_written_xid_idx", (WRITTEN,)),
    ("half_written_xid_idx", (cast(cast(half.c.written_xid, Text), BigInteger), half.c.txn_id)),
):
    Index(
        _name,
        *_columns,
        postgresql_using="brin",
        postgresql_ops={"txn_id": "uuid_minmax_multi_ops"},
        postgresql_with={"pages_per_range": "64", "autosummarize": "on"},
    )

entry = Table(
    "entry",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    # In order of commit; deliveries of a group go out in this order.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("half_id", BigInteger, nullable=False),
    # The instance that has leased the entry for its consumers; 0: not leased; -1: an undecided checkable transaction
    # has retired it, and holds it (table pending_retirement).
    Column("lease", Integer, nullable=False, server_default="0"),
    # Deliveries so far that a client may have seen: the header's delivery-count.
    Column("attempts", SmallInteger, nullable=False, server_default="0"),
    # The header's priority; higher goes first.
    Column("priority", SmallInteger, nullable=False, server_default=str(terms.DEFAULT)),
    # True when it was delivered to a link before: the header's first-acquirer is false.
    Column("acquired", Boolean, nullable=False, server_default=text("false")),
    # On an address of kind fifo: the message group, as a number. Entries of a group go out one consumer at a time.
    Column("message_group", BigInteger),
    # Not null: it is not delivered before that time. Then it gets a new id, and with it a new place in the order, and
    # this column becomes null.
    Column("available_at", DateTime(timezone=True)),
    Column("expires_at", DateTime(timezone=True)),
    # Not null: never delivered again; on its way to the dead letters, for this reason.
    Column("failed", Text),
    # Message annotations merged by modified outcomes: an encoded AMQP map.
    Column("annotations", LargeBinary),
    # Of its attempts, those that failed: they lead to the dead letters, and to waits (D5).
    Column("failures", SmallInteger, nullable=False, server_default="0"),
    # Leaves room on each page for the row version that a lease writes: then a lease changes no index (HOT).
    postgresql_with={"fillfactor": "50", **_VACUUM_BY_COUNT},
)
Index("entry_available_at_idx", entry.c.available_at, postgresql_where=entry.c.available_at.is_not(None))
# Finds what a group is to get later, in its order, among all that waits in the group.
Index(
    "entry_schedule_idx",
    entry.c.group_id,
    entry.c.available_at,
    entry.c.id,
    postgresql_where=entry.c.available_at.is_not(None),
)
Index(
    "entry_priority_idx",
    entry.c.group_id,
    entry.c.priority.desc(),
    entry.c.id,
    postgresql_where=entry.c.priority != terms.DEFAULT,
)
Index(
    "entry_message_group_idx",
    entry.c.group_id,
    entry.c.message_group,
    entry.c.id,
    postgresql_where=entry.c.message_group.is_not(None),
)
Index("entry_expires_at_idx", entry.c.expires_at, postgresql_where=entry.c.expires_at.is_not(None))
Index("entry_failed_idx", entry.c.group_id, postgresql_where=entry.c.failed.is_not(None))
# Finds what a dead instance had leased. Only BRIN keeps a change of the lease HOT. The summary of a page where entries
# were leased stays after the leases end; a new page has no summary until vacuum, or a task that runs each minute, adds
# one. An index of leased entries alone would know of no new page, as PostgreSQL looks at those that it inserts into.
Index("entry_lease_idx", entry.c.lease, postgresql_using="brin", postgresql_with={"autosummarize": "on"}).ddl_if(
    callable_=lambda *_, dialect, **__: dialect.server_version_info >= (16,)
)

# The highest id that was given to an entry when it became due (D7).
Sequence("promoted", start=0, minvalue=0, metadata=metadata)

message_group = Table(
    "message_group",
    metadata,
    # A message group of a fifo address that an instance has claimed: no other instance takes entries of it.
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("instance_id", Integer, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    # An application has done the work of this message (X4): written by first_time, in the application's transaction.
    Column("consumer", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("taken_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Rows are inserted and deleted at the rate of the messages: a share of the table is no measure for vacuum.
    postgresql_with=_VACUUM_BY_COUNT,
)
Index("inbox_taken_at_idx", inbox.c.taken_at)

posted = Table(
    "posted",
    metadata,
    # A delivery-tag of a link whose client names a producer (P22), with the half that was posted under it: what comes
    # again under the tag at the address is not stored again. The owner is the id of the client's user, or empty.
    Column("address_id", Integer, primary_key=True, autoincrement=False),
    Column("owner", Text, primary_key=True),
    Column("producer", Text, primary_key=True),
    Column("tag", LargeBinary, primary_key=True),
    Column("half_id", BigInteger, nullable=False),
    Column("posted_at", DateTime(timezone=True), nullable=False, server_default=_now),
    postgresql_with=_VACUUM_BY_COUNT,
)
Index("posted_at_idx", posted.c.posted_at)

inbox_owner = Table(
    "inbox_owner",
    metadata,
    # The database role that owns this consumer name in the inbox: the first role that used it, or the one it was
    # granted to. Members of the role may use the name, too. The role is stored by name, which a dump keeps.
    Column("consumer", Text, primary_key=True),
    Column("owner", Text, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    # What an application posts in an SQL transaction (X2), until its commit, which makes a half and entries of it and
    # deletes the row: no other transaction ever sees one.
    Column("xid", Xid8, primary_key=True, server_default=text("pg_current_xact_id()")),
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    # How often the commit of its transaction was put off. Only the first row of the transaction has it.
    Column("put_off", SmallInteger),
    Column("address_id", Integer, nullable=False),
    Column("message", LargeBinary, nullable=False),
    Column("available_at", DateTime(timezone=True)),
    Column("expires_at", DateTime(timezone=True)),
    Column("priority", SmallInteger, nullable=False),
    # As in the table pending.
    Column("message_group", BigInteger),
    prefixes=["UNLOGGED"],
    postgresql_with=_VACUUM_BY_COUNT,
)

enlistment = Table(
    "enlistment",
    metadata,
    # A checkable transaction that the commit of an SQL transaction decides (X3). The commit deletes the row, as it
    # does those of outbox.
    Column("xid", Xid8, primary_key=True, server_default=text("pg_current_xact_id()")),
    Column("txn_id", Uuid, primary_key=True),
    # As in the table outbox.
    Column("put_off", SmallInteger),
    Column("decision", Text, nullable=False),
    CheckConstraint("decision in ('commit', 'rollback')", name="decision"),
    prefixes=["UNLOGGED"],
    postgresql_with=_VACUUM_BY_COUNT,
)

txn = Table(
    "txn",
    metadata,
    # An undecided transaction that is older than a second (short ones have no row); the decision deletes the row.
    Column("id", Uuid, primary_key=True),
    Column("instance_id", Integer, nullable=False),
    # container-id and remote address of the connection that declared it
    Column("owner", Text, nullable=False),
    Column("declared_at", DateTime(timezone=True), nullable=False),
    Column("timeout_at", DateTime(timezone=True), nullable=False),
    # Messages posted and deliveries retired when the row was written.
    Column("posted", Integer, nullable=False),
    Column("retired", Integer, nullable=False),
    # Check-back: null for a plain transaction, whose messages are not in the store before the commit. The row of a
    # checkable one is written with its first half, and locked by each post and each decision.
    Column("producer_group", Text),
    # Checks sent so far, and when the next is due, or after the last check when the transaction is ended: not before
    # it is older than its immunity time. Null while its control link is attached and its timeout is not over: then the
    # row is in no index of due checks.
    Column("checks", SmallInteger, nullable=False, server_default="0"),
    Column("next_check_at", DateTime(timezone=True)),
    Column("check_immunity_ms", Integer),
    Column("check_interval_ms", Integer),
    Column("most_checks", SmallInteger),
    # The number, at its instance, of the connection that declared it; negative: its control link is detached; null:
    # the connection is closed, too.
    Column("connection", BigInteger),
    # The first halves of a checkable transaction, in their order, if they are posted to one queue with one group and
    # with default terms; all others have rows in pending. Written with the row; most such transactions need no others.
    Column("half_ids", ARRAY(BigInteger)),
    Column("address_id", Integer),
    postgresql_with=_VACUUM_BY_COUNT,
)
Index("txn_address_id_idx", txn.c.address_id, postgresql_where=txn.c.address_id.is_not(None))
Index(
    "txn_next_check_at_idx",
    txn.c.producer_group,
    txn.c.next_check_at,
    postgresql_where=txn.c.next_check_at.is_not(None),
)
Index("txn_exhausted_idx", txn.c.next_check_at, postgresql_where=txn.c.checks >= txn.c.most_checks)

pending = Table(
    "pending",
    metadata,
    # A half of an undecided checkable transaction that is not in the transaction's row, with the terms of its future
    # entries; the decision deletes it. The view pending_half has all such halves.
    Column("txn_id", Uuid, primary_key=True),
    Column("half_id", BigInteger, primary_key=True, autoincrement=False),
    Column("address_id", Integer, nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("available_at", DateTime(timezone=True)),
    Column("priority", SmallInteger, nullable=False, server_default=str(terms.DEFAULT)),
    # The message group as in the entry; 1: the message is a group of its own.
    Column("message_group", BigInteger),
    # Groups that do not get it: subscriptions with no-local of the connection that posted it.
    Column("left_out", ARRAY(Integer)),
    postgresql_with=_VACUUM_BY_COUNT,
)
Index("pending_address_id_idx", pending.c.address_id)

#: In ``entry.lease``: held by a transaction (:data:`pending_retirement`).
HELD = -1

pending_retirement = Table(
    "pending_retirement",
    metadata,
    # A delivery that an undecided checkable transaction has retired, and how the decision changes its entry, whose
    # lease is -1. The decision deletes the row.
    Column("txn_id", Uuid, primary_key=True),
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("entry_id", BigInteger, primary_key=True, autoincrement=False),
    Column("half_id", BigInteger, nullable=False),
    # On an address of kind fifo: the message group, which waits for the decision.
    Column("message_group", BigInteger),
    # On commit: the decision of the op (release writes no op), and the new columns of the entry. wait_ms: the pause
    # before the next delivery.
    Column("decision", Text, nullable=False),
    Column("reason", Text),
    Column("attempts", SmallInteger, nullable=False),
    Column("failed", Text),
    Column("annotations", LargeBinary),
    Column("wait_ms", BigInteger, nullable=False),
    # On rollback one more failed delivery is counted; not null: that was the last attempt, for this reason.
    Column("undo_failed", Text),
    # The instance that has the delivery in memory, with the transaction open; null: no instance has.
    Column("holder", Integer),
    # True when another process has rolled back: the holder settles the delivery, as its consumer may still have it.
    Column("rolled_back", Boolean, nullable=False, server_default=text("false")),
    # On commit: the new failures of the entry.
    Column("failures", SmallInteger, nullable=False, server_default="0"),
    CheckConstraint("decision in ('accept', 'reject', 'release', 'modify')", name="decision"),
    postgresql_with=_VACUUM_BY_COUNT,
)
# Message groups that wait for a decision.
Index(
    "pending_retirement_message_group_idx",
    pending_retirement.c.group_id,
    pending_retirement.c.message_group,
    postgresql_where=pending_retirement.c.message_group.is_not(None),
)

instance = Table(
    "instance",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    # Part of its ids: no two living instances share a slot.
    Column("slot", SmallInteger, nullable=False),
    # Host name and boot id: with pid and start they identify the process, so that its machine can tell if it lives.
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_start", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    # Where clients reach its service, if consumers of a group that it holds are to be sent there; null: they are not.
    Column("place", Text),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Set when the instance stopped, or when another found it dead and gave up its leases and plain transactions.
    Column("ended_at", DateTime(timezone=True)),
)

heartbeat = Table(
    "heartbeat",
    metadata,
    # A table of its own, as every batch reads the row of the instance: while a snapshot is held, a batch would have to
    # skip all row versions that the heartbeats leave.
    Column("instance_id", Integer, ForeignKey(instance.c.id, ondelete="CASCADE"), primary_key=True),
    Column("beaten_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # How long the batch under way had waited, over all its attempts; 0: no batch was. Null: no heartbeat yet.
    Column("commit_waits_seconds", REAL),
    # The SQLSTATE with which the database last refused that batch; empty: it did not. Null as above.
    Column("commit_refused_with", Text),
    # How far the instance's clock is ahead of the database's; negative: behind. Null as above, and in the first beat.
    Column("clock_ahead_seconds", REAL),
)

lock = Table(
    "lock",
    metadata,
    # The session that has locked a row is the only one that performs the task it names (store/locks.py).
    Column("name", Text, primary_key=True),
)

batch_mark = Table(
    "batch_mark",
    metadata,
    # Marks a committed batch that wrote no other row for its instance to find when the batch is in doubt. Only the
    # highest number of an instance counts; lower ones are removed from time to time.
    Column("instance_id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
)

retention = Table(
    "retention",
    metadata,
    # half or op: retention has dropped its days before kept_from, except for halves that were not delivered yet.
    Column("table_name", Text, primary_key=True),
    Column("kept_from", Date, nullable=False),
    # When the days before were last checked for halves that may be dropped by now.
    Column("looked_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # The archive has all dropped days from this one on; null: it has every day that was ever dropped.
    Column("archived_from", Date),
    CheckConstraint("table_name in ('half', 'op')", name="table_name"),
)

archive = Table(
    "archive",
    metadata,
    # While there is a row, retention drops no day that is not archived.
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("folder", Text, nullable=False),
    Column("since", DateTime(timezone=True), nullable=False, server_default=_now),
    CheckConstraint("singleton", name="one_row"),
)

archived_day = Table(
    "archived_day",
    metadata,
    # The archive has a copy of all rows of this day of half or op (R35).
    Column("table_name", Text, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("rows", BigInteger, nullable=False),
    # SHA-256 of the manifest of the copy, hexadecimal; the manifest has those of its files.
    Column("manifest", Text, nullable=False),
    Column("archived_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Number and key sum (store/archive/days.py) of the partition's rows that are in the copy. Other rows were added
    # later; retention does not drop a day that has any.
    Column("live_rows", BigInteger, nullable=False),
    Column("live_keys", BigInteger, nullable=False),
    # Retention has dropped the rows that are not among these.
    Column("dropped", Boolean, nullable=False, server_default=text("false")),
    # Set when the day was restored: retention does not drop it before that time.
    Column("held_until", DateTime(timezone=True)),
    CheckConstraint("table_name in ('half', 'op')", name="table_name"),
)
Index("instance_slot_idx", instance.c.slot, unique=True, postgresql_where=instance.c.ended_at.is_(None))

sole_connection = Table(
    "sole_connection",
    metadata,
    # SHA-256 of user and container-id, which may be longer than a key.
    Column("digest", LargeBinary, primary_key=True),
    # A container that asked to have one connection only (P15).
    Column("container_id", Text, nullable=False),
    # The instance of the connection, and its number there.
    Column("instance_id", Integer, nullable=False),
    Column("connection", BigInteger, nullable=False),
    # The policy it asked for: the container's next connection closes this one (true), or is refused.
    Column("close_existing", Boolean, nullable=False),
    Column("claimed_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # When the connection last showed that it is alive, after another one had claimed its place.
    Column("seen_at", DateTime(timezone=True)),
)

connection = Table(
    "connection",
    metadata,
    # An open connection of a client, or one of the last that have ended. Its instance writes it each few seconds, if it
    # has changed; a crash of the server empties the table, and the instances write it again.
    Column("instance_id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # Null: without a login.
    Column("user_name", Text),
    Column("host", Text, nullable=False),
    Column("port", Integer),
    # Texts of the client are cut, and their control characters escaped.
    Column("container_id", Text, nullable=False),
    Column("product", Text),
    Column("version", Text),
    # Null: without TLS.
    Column("tls", Text),
    # Null: it has ended before it was open.
    Column("opened_at", DateTime(timezone=True)),
    Column("sessions", Integer, nullable=False),
    Column("links", Integer, nullable=False),
    # The first hundred of them: name, role, address, credit, unsettled, deliveries.
    Column("link_list", JSONB, nullable=False),
    Column("unsettled", Integer, nullable=False),
    # Messages that the client has posted, and that it was sent.
    Column("posted", BigInteger, nullable=False),
    Column("delivered", BigInteger, nullable=False),
    Column("posted_per_second", REAL, nullable=False),
    Column("delivered_per_second", REAL, nullable=False),
    Column("last_error", Text),
    # Null: it is open.
    Column("closed_at", DateTime(timezone=True)),
    # As links/close_reason.py has it.
    Column("close_reason", Text),
    Column("written_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Set when an operator wants it closed: the reason that was given, or an empty text.
    Column("close_asked", Text),
    prefixes=["UNLOGGED"],
    postgresql_with={"fillfactor": "50"},
)

user_account = Table(
    "user_account",
    metadata,
    # A user that clients log in as (S1), prepared with SASLprep.
    Column("name", Text, primary_key=True),
    # Since when the user may not log in; null: the user may.
    Column("disabled_at", DateTime(timezone=True)),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Never reused, not even for a user of the same name: txn-ids are checked against it, and subscriptions belong to
    # it.
    Column("id", Text, nullable=False, unique=True, server_default=text("gen_random_uuid()::text")),
)

user_verifier = Table(
    "user_verifier",
    metadata,
    # The verifier stored in place of a password, by SASL mechanism (RFC 5802, section 3). A user may have none.
    Column("user_name", Text, ForeignKey(user_account.c.name, ondelete="CASCADE"), primary_key=True),
    Column("mechanism", Text, primary_key=True),
    Column("salt", LargeBinary, nullable=False),
    Column("iterations", Integer, nullable=False),
    Column("stored_key", LargeBinary, nullable=False),
    Column("server_key", LargeBinary, nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=_now),
    CheckConstraint("mechanism in ('SCRAM-SHA-256', 'SCRAM-SHA-512')", name="mechanism"),
    # for PLAIN a worker computes them itself, 1 ms for each 4,096
    CheckConstraint("iterations between 4096 and 65536", name="iterations"),
)

token_keys = Table(
    "token_keys",
    metadata,
    # The public keys of an issuer of tokens as they were read last, for starts at which it does not answer (S13).
    Column("issuer", Text, primary_key=True),
    Column("keys", JSONB, nullable=False),
    Column("read_at", DateTime(timezone=True), nullable=False, server_default=_now),
)

run = Table(
    "run",
    metadata,
    # A run of coordinator reconcile whose findings were stored (R32). A later run over the same period with the same
    # books replaces it.
    Column("id", Integer, Identity(always=True), primary_key=True),
    # The requested period; null: without a bound.
    Column("since", DateTime(timezone=True)),
    Column("until", DateTime(timezone=True)),
    Column("books", ARRAY(Text), nullable=False),
    # When the run read the store.
    Column("seen_at", DateTime(timezone=True), nullable=False),
    Column("stored_at", DateTime(timezone=True), nullable=False, server_default=_now),
    Column("version", Text, nullable=False),
    # [{"kind": ..., "severity": ..., "findings": ...}]: the counts that the metrics show.
    Column("counts", JSONB, nullable=False),
    # Not null: the run has the findings of coordinator watch so far (table watch), which are only added to.
    Column("watch_id", Uuid),
    # Its report, HTML packed by gzip; null: it has none, as that of coordinator watch.
    Column("report", LargeBinary),
    UniqueConstraint("since", "until", "books", "watch_id", name="run_period_key", postgresql_nulls_not_distinct=True),
)

finding = Table(
    "finding",
    metadata,
    Column("run_id", Integer, ForeignKey(run.c.id, ondelete="CASCADE"), primary_key=True),
    # Its place in the report, from 1 on.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("txn_id", Uuid),
    Column("half_id", BigInteger),
    Column("address", Text),
    Column("consumer_group", Text),
    Column("detail", Text, nullable=False),
    Column("suggested_repair", Text, nullable=False),
    # When coordinator watch found it; null: when its run read the store.
    Column("seen_at", DateTime(timezone=True)),
    CheckConstraint("severity in ('note', 'warning', 'error')", name="severity"),
)

watch = Table(
    "watch",
    metadata,
    # How far coordinator watch has counted (R33): written with the counts, in one SQL transaction.
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    # The id of the checkpoint, which Spark has generated.
    Column("id", Uuid, nullable=False),
    Column("began_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # The last of Spark's batches that was counted; -1: no batch was.
    Column("batch", BigInteger, nullable=False, server_default="-1"),
    # Halves and ops of the SQL transactions below it are counted.
    Column("position", BigInteger, nullable=False, server_default="0"),
    # Counts of halves, of ops by their decision, and of the deliveries that ops cover, by that decision.
    Column("counts", JSONB, nullable=False, server_default=text("'{}'")),
    # When everything in the store was last counted.
    Column("up_to_date_at", DateTime(timezone=True)),
    # Retention had dropped the days before this one at the last check; null: it had dropped no day.
    Column("kept_from", Date),
    # Some days before this one were dropped before they were counted in full; null: no day was.
    Column("missed_before", Date),
    CheckConstraint("singleton", name="one_row"),
)


user_role = Table(
    "user_role",
    metadata,
    # A user's membership in a role, through which users share permissions (S3).
    Column("user_name", Text, ForeignKey(user_account.c.name, ondelete="CASCADE"), primary_key=True),
    Column("role", Text, primary_key=True),
    CheckConstraint(f"role <> '{ANONYMOUS}'", name="role"),
)

permission = Table(
    "permission",
    metadata,
    # What a user, or each user with a role, may do (S3). No index makes permissions unique: a pattern may be too long.
    # The id exists for replication, which cannot delete rows of a table without a key.
    Column("user_name", Text, ForeignKey(user_account.c.name, ondelete="CASCADE")),
    Column("role", Text),
    Column("verb", Text, nullable=False),
    # A name, or its beginning and a *.
    Column("pattern", Text, nullable=False),
    Column("granted_at", DateTime(timezone=True), nullable=False, server_default=_now),
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    CheckConstraint("num_nonnulls(user_name, role) = 1", name="grantee"),
    CheckConstraint("verb in ('send', 'receive', 'browse', 'create', 'check', 'manage')", name="verb"),
    # an address, :: and a group
    CheckConstraint("length(pattern) between 1 and 2050", name="pattern"),
)
Index("permission_user_name_idx", permission.c.user_name)
Index("permission_role_idx", permission.c.role)

audit = Table(
    "audit",
    metadata,
    # An action of a person, or failed logins (S10). Rows are only added: see the trigger.
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=_now),
    # store/audit.py lists all actions.
    Column("action", Text, nullable=False),
    # The object of the action: a txn-id, an address, a user.
    Column("subject", Text),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'")),
    Column("reason", Text),
    # The server fills this column from its session; the program supplies the others.
    Column("database_role", Text, nullable=False, server_default=text("session_user")),
    # Of a command: the user of the operating system who runs it; by HTTP the name of the operator.
    Column("os_user", Text),
    # Of a client: the user as whom it tried to log in, if that user exists.
    Column("client_user", Text),
    # The host of the command, or the remote address of the client; by HTTP "api" or "console", and the address.
    Column("place", Text),
    # Failed logins that are alike within a minute share one row.
    Column("times", Integer, nullable=False, server_default="1"),
    CheckConstraint("length(reason) <= 1000", name="reason"),
)
Index("audit_at_idx", audit.c.at)


#: The reason of the op for entries that the selector of a subscription has not matched (P16).
PASSED_OVER = "selector"

_SQL = Path(__file__).parent / "sql"
#: The files of what SQLAlchemy's metadata cannot express, in order of creation: how bodies are stored, append-only
#: tables, functions, views.
_FILES = ("functions", "views", "messages", "application")


def _run_files(_: MetaData, connection: Connection, **__: object) -> None:
    for name in _FILES:
        # without parameters, of which a colon would be one, the driver sends the statements of a file together
        connection.execute(text((_SQL / f"{name}.sql").read_text("utf-8").replace(":", r"\:")))


event.listen(metadata, "after_create", _run_files)
