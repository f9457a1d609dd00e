"""The tables of the store, schema ``coordinator``: what a row is, and which invariant each constraint holds.

``store/sql`` has the functions, triggers and views. The first migration makes what is declared here; a test compares
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

#: On: this SQL transaction is retention's, which truncates days that are dropped. A setting of the session.
DROPPING = "coordinator.dropping"

#: For so long no row of the audit can be deleted (S10).
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

#: The hot path inserts and deletes: by share of the rows, a short queue with a long history is never cleaned.
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
    """The transaction that wrote the row: a reader bounded by ``pg_snapshot_xmin`` loses no row that commits late."""
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
    # From the first again after the last: see free_id.
    Column("id", Integer, Identity(always=True, cycle=True), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    # queue: consumers share the default group. topic: every subscription is a group of its own.
    Column("routing", Text, nullable=False, server_default="queue"),
    Column("kind", Text, nullable=False, server_default="normal"),
    # A message whose ttl runs out is dropped with an op, or moved to the dead letters.
    Column("on_expiry", Text, nullable=False, server_default="drop"),
    Column("max_attempts", SmallInteger, nullable=False, server_default="16"),
    # How long its messages are kept after they were consumed; null: as the settings say.
    Column("retention_hours", Integer),
    # What made it: administration, the first use by a client, or a dynamic terminus.
    Column("origin", Text, nullable=False, server_default="administration"),
    # The instance that owns a dynamic address, which is removed with the instance.
    Column("instance_id", Integer),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # How long a failed delivery waits before the next, as coordinator/group/policies.py reads it.
    Column("retry", Text, nullable=False, server_default="immediate"),
    # How a transaction is checked whose first message goes to it (H7); null: as the settings say.
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
    # When an instance last noted a use of an address that was made on use; no row: never since it was made.
    Column("address_id", Integer, ForeignKey(address.c.id, ondelete="CASCADE"), primary_key=True),
    Column("used_at", DateTime(timezone=True), nullable=False, server_default=_now),
)

consumer_group = Table(
    "consumer_group",
    metadata,
    # As that of an address.
    Column("id", Integer, Identity(always=True, cycle=True), primary_key=True),
    Column("address_id", Integer, ForeignKey(address.c.id, ondelete="CASCADE"), nullable=False),
    # '' is the default group of a queue.
    Column("name", Text, nullable=False, server_default=""),
    # A volatile group is a subscription that ends with its link; the instance that holds the link owns it.
    Column("instance_id", Integer),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # The only live instance takes entries by the range instead of leasing them one by one: all up to the highest
    # group_read.read_through are its own, whatever their lease says. 0: no instance holds the group.
    Column("holder", Integer, nullable=False, server_default="0"),
    # Policies of its own, each as of the address; null: as the address has it.
    Column("on_expiry", Text),
    Column("max_attempts", SmallInteger),
    Column("retry", Text),
    # The id of the user that made it, where it is a subscription of that user's container: no one else joins it.
    Column("owner", Text),
    UniqueConstraint("address_id", "name"),
    CheckConstraint("on_expiry in ('drop', 'dead-letter')", name="on_expiry"),
    CheckConstraint("max_attempts >= 1", name="max_attempts"),
)
#: All but the default groups of queues, which share a name. By hash: batches, which look for the named groups of one
#: address, would go through those of all.
Index(
    "consumer_group_name_idx",
    consumer_group.c.name,
    postgresql_using="hash",
    postgresql_where=consumer_group.c.name != "",
)

seek = Table(
    "seek",
    metadata,
    # A consumer group is being moved to another place (H17), or was: the last time.
    Column("group_id", Integer, ForeignKey(consumer_group.c.id, ondelete="CASCADE"), primary_key=True),
    # Back, to deliver again from the half to_id on; or forth, to skip what was posted before it.
    Column("back", Boolean, nullable=False),
    Column("to_id", BigInteger, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Null: it is under way, or was interrupted, and goes on when its command is run again.
    Column("ended_at", DateTime(timezone=True)),
    # Messages delivered again, or skipped; and those left as they were, as their time was over.
    Column("moved", BigInteger, nullable=False, server_default="0"),
    Column("expired", BigInteger, nullable=False, server_default="0"),
    # Back: halves up to this id are done.
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
    # The same for consumer groups.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("address_id", Integer, nullable=False),
    Column("name", Text, nullable=False),
    # A subscription that did not end with its link: clients may know its name.
    Column("lasting", Boolean, nullable=False),
    Column("removed_at", DateTime(timezone=True), nullable=False, server_default=_now),
)

group_read = Table(
    "group_read",
    metadata,
    # How far a holder has read a group: the highest counts, lower ones are removed now and then. Rows of an instance
    # that is not the holder do not count.
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("instance_id", Integer, primary_key=True, autoincrement=False),
    Column("read_through", BigInteger, primary_key=True, autoincrement=False),
)

half = Table(
    "half",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    # Null: posted outside any transaction, and so committed by being stored.
    Column("txn_id", Uuid),
    Column("address_id", Integer, nullable=False),
    # The message as it came: all its sections, the bare message byte for byte.
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
    # The transaction in which a delivery got another outcome than accepted. Commit and rollback have it as their id: it
    # is here again where another than its client has decided.
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
    # One check, which a null passes, and its lists are constants: PostgreSQL makes the checks of a table anew, of their
    # text, in each statement.
    CheckConstraint(
        "case when posted is null "
        "then decision = any ('{accept,reject,release,modify,expire,dead-letter,purge,replay}') "
        "else decision = any ('{commit,rollback}') and txn_id = id end",
        name="decision",
    ),
    postgresql_partition_by="RANGE (id)",
)
#: ``op.written_xid`` as an index can have it: BRIN knows no xid8.
WRITTEN = cast(cast(op.c.written_xid, Text), BigInteger)
# What was written last, by day: the metrics and coordinator watch go on from where they were. BRIN, as the hot path
# writes none of it.
for _name, _expression in (
    ("op_written_xid_idx", WRITTEN),
    ("half_written_xid_idx", cast(cast(half.c.written_xid, Text), BigInteger)),
):
    Index(
        _name,
        _expression,
        postgresql_using="brin",
        postgresql_with={"pages_per_range": "64", "autosummarize": "on"},
    )

entry = Table(
    "entry",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    # In order of commit; deliveries of a group go out in this order.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("half_id", BigInteger, nullable=False),
    # The instance that holds the message for its consumers; 0: none; -1: an undecided checkable transaction has retired
    # it, and holds it (table pending_retirement).
    Column("lease", Integer, nullable=False, server_default="0"),
    # Deliveries so far that a client may have seen: the header's delivery-count.
    Column("attempts", SmallInteger, nullable=False, server_default="0"),
    # The header's priority; higher goes first.
    Column("priority", SmallInteger, nullable=False, server_default=str(terms.DEFAULT)),
    # A link had it before: the header's first-acquirer is false.
    Column("acquired", Boolean, nullable=False, server_default=text("false")),
    # On an address of kind fifo: the message group, as a number. Entries of a group go out one consumer at a time.
    Column("message_group", BigInteger),
    # Not null: not delivered before that time. Then it gets a new id, and with it its place, and this becomes null.
    Column("available_at", DateTime(timezone=True)),
    Column("expires_at", DateTime(timezone=True)),
    # Not null: never delivered again; on its way to the dead letters, for this reason.
    Column("failed", Text),
    # Message annotations merged by modified outcomes: an encoded AMQP map.
    Column("annotations", LargeBinary),
    # Of its attempts, those that failed: they lead to the dead letters, and to waits (D5).
    Column("failures", SmallInteger, nullable=False, server_default="0"),
    # Room on each page for the version that a lease leaves: a lease touches no index then (HOT).
    postgresql_with={"fillfactor": "50", **_VACUUM_BY_COUNT},
)
Index("entry_available_at_idx", entry.c.available_at, postgresql_where=entry.c.available_at.is_not(None))
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
# What a dead instance had leased. BRIN alone leaves a change of the lease HOT. What it says of pages where some were
# leased stays when the leases end; of pages that are new it says nothing until vacuum, or a look each minute, has come:
# an index of leased entries alone would know of no new page, as PostgreSQL looks at those that it inserts into.
Index("entry_lease_idx", entry.c.lease, postgresql_using="brin", postgresql_with={"autosummarize": "on"}).ddl_if(
    callable_=lambda *_, dialect, **__: dialect.server_version_info >= (16,)
)

# The highest id that an entry which was due has got as its place (D7).
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
    # Rows come and go at the pace of the messages, and their share of the table says nothing.
    postgresql_with=_VACUUM_BY_COUNT,
)
Index("inbox_taken_at_idx", inbox.c.taken_at)

inbox_owner = Table(
    "inbox_owner",
    metadata,
    # The role of the database that has this name of a consumer in the inbox: the first that used it, or the one that it
    # was granted to. Its members have the name, too. By name, which a dump keeps.
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
    # Of the first of its transaction, which stands for all of them at the commit: how often that was put off.
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
    # A checkable transaction that the commit of an SQL transaction decides (X3); deleted by it, as the rows of outbox.
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
    # An undecided transaction that lives longer than a moment (short ones are never seen here); deleted with its
    # decision.
    Column("id", Uuid, primary_key=True),
    Column("instance_id", Integer, nullable=False),
    # container-id and remote address of the connection that declared it
    Column("owner", Text, nullable=False),
    Column("declared_at", DateTime(timezone=True), nullable=False),
    Column("timeout_at", DateTime(timezone=True), nullable=False),
    # As last seen: messages posted and deliveries retired so far.
    Column("posted", Integer, nullable=False),
    Column("retired", Integer, nullable=False),
    # Check-back: null for a plain transaction, whose messages are not in the store before the commit. The row of a
    # checkable one is written with its first half, and locked by each post and each decision.
    Column("producer_group", Text),
    # Checks sent so far, and when the next is due, or after the last its end: not before the transaction is older than
    # its immunity time. Null while its control link is there and its time is not over: it costs no index then.
    Column("checks", SmallInteger, nullable=False, server_default="0"),
    Column("next_check_at", DateTime(timezone=True)),
    Column("check_immunity_ms", Integer),
    Column("check_interval_ms", Integer),
    Column("most_checks", SmallInteger),
    # The number, at its instance, of the connection that declared it; below 0: its control link is gone; null: so is
    # the connection.
    Column("connection", BigInteger),
    # The first halves of a checkable one, in their order, that go to one queue with one group, without terms of
    # their own; all others have rows in pending. Written with the row; most such transactions need no other.
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
    # A half of an undecided checkable transaction, with the terms of its entries to be, unless it is in the
    # transaction's row; deleted with the decision. The view pending_half has all.
    Column("txn_id", Uuid, primary_key=True),
    Column("half_id", BigInteger, primary_key=True, autoincrement=False),
    Column("address_id", Integer, nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("available_at", DateTime(timezone=True)),
    Column("priority", SmallInteger, nullable=False, server_default=str(terms.DEFAULT)),
    # As in the entry; 1: the message is a group of its own.
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
    # A delivery that an undecided checkable transaction has retired, and what the decision makes of its entry, whose
    # lease is -1; deleted with the decision.
    Column("txn_id", Uuid, primary_key=True),
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("entry_id", BigInteger, primary_key=True, autoincrement=False),
    Column("half_id", BigInteger, nullable=False),
    # On an address of kind fifo: the message group, which waits for the decision.
    Column("message_group", BigInteger),
    # A commit: the op (release: it has none), and the entry's columns from then on. wait_ms: before the next delivery.
    Column("decision", Text, nullable=False),
    Column("reason", Text),
    Column("attempts", SmallInteger, nullable=False),
    Column("failed", Text),
    Column("annotations", LargeBinary),
    Column("wait_ms", BigInteger, nullable=False),
    # A rollback counts one failed delivery more; not null: with that, its attempts are used up.
    Column("undo_failed", Text),
    # The instance that has the delivery in memory, with the transaction open; null: it is the store's alone.
    Column("holder", Integer),
    # Decided, and not by its holder, which says what becomes of the delivery: its consumer may have it still.
    Column("rolled_back", Boolean, nullable=False, server_default=text("false")),
    # Of the entry from then on, as ``attempts``.
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
    # Part of its ids: no two living instances have the same.
    Column("slot", SmallInteger, nullable=False),
    # Host name and boot id: with pid and start they tell, on the same machine, whether the process still lives.
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_start", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Set when it stopped, or when another instance found it dead and gave up its leases and plain transactions.
    Column("ended_at", DateTime(timezone=True)),
)

heartbeat = Table(
    "heartbeat",
    metadata,
    # Not in the row of the instance, which every batch looks for: while a snapshot is held, a batch would walk through
    # all versions that the beats have left.
    Column("instance_id", Integer, ForeignKey(instance.c.id, ondelete="CASCADE"), primary_key=True),
    Column("beaten_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Of the batch that was under way then, over all its attempts; 0: none was. Null: it has not beaten yet.
    Column("commit_waits_seconds", REAL),
    # The SQLSTATE with which the database refused that batch last; empty: it has not. Null as above.
    Column("commit_refused_with", Text),
    # How far the instance's clock is ahead of the database's; below 0: behind. Null as above, and in the first beat.
    Column("clock_ahead_seconds", REAL),
)

lock = Table(
    "lock",
    metadata,
    # Who has locked a row does what its name says, alone (store/locks.py).
    Column("name", Text, primary_key=True),
)

batch_mark = Table(
    "batch_mark",
    metadata,
    # A batch that left no other trace: it tells its instance whether a batch in doubt was committed. The highest number
    # of an instance counts, lower ones are removed now and then.
    Column("instance_id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
)

retention = Table(
    "retention",
    metadata,
    # half or op: its days before kept_from are dropped, except for halves that were not delivered yet.
    Column("table_name", Text, primary_key=True),
    Column("kept_from", Date, nullable=False),
    # When the days before were last checked for halves that may be dropped by now.
    Column("looked_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # Of the days that were dropped, the archive has all from then on; null: it has all that ever were.
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
    # The rows of the partition that are in the copy: how many, and a sum of their keys (store/archive/days.py). Others
    # came later, and retention does not drop a day that has any.
    Column("live_rows", BigInteger, nullable=False),
    Column("live_keys", BigInteger, nullable=False),
    # Retention has dropped the rows that are not among these.
    Column("dropped", Boolean, nullable=False, server_default=text("false")),
    # It was restored: retention leaves it alone until then.
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
    # The policy it asked for: the container's next connection closes it, or is refused.
    Column("close_existing", Boolean, nullable=False),
    Column("claimed_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # When it last showed that it is alive, after another connection had claimed its place.
    Column("seen_at", DateTime(timezone=True)),
)

user_account = Table(
    "user_account",
    metadata,
    # A user that clients log in as (S1), prepared with SASLprep.
    Column("name", Text, primary_key=True),
    # Since when it may not log in; null: it may.
    Column("disabled_at", DateTime(timezone=True)),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # No other user ever has it, none of the same name either: txn-ids are checked with it, and subscriptions belong to
    # it.
    Column("id", Text, nullable=False, unique=True, server_default=text("gen_random_uuid()::text")),
)

user_verifier = Table(
    "user_verifier",
    metadata,
    # What is kept in place of a password, by SASL mechanism (RFC 5802, section 3). A user may have none.
    Column("user_name", Text, ForeignKey(user_account.c.name, ondelete="CASCADE"), primary_key=True),
    Column("mechanism", Text, primary_key=True),
    Column("salt", LargeBinary, nullable=False),
    Column("iterations", Integer, nullable=False),
    Column("stored_key", LargeBinary, nullable=False),
    Column("server_key", LargeBinary, nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=_now),
    CheckConstraint("mechanism in ('SCRAM-SHA-256', 'SCRAM-SHA-512')", name="mechanism"),
    # a worker does them itself for PLAIN, 1 ms for each 4,096
    CheckConstraint("iterations between 4096 and 65536", name="iterations"),
)

run = Table(
    "run",
    metadata,
    # A run of coordinator reconcile whose findings were stored (R32). One over the same period with the same books
    # takes its place.
    Column("id", Integer, Identity(always=True), primary_key=True),
    # The period that was asked for; null: without a bound.
    Column("since", DateTime(timezone=True)),
    Column("until", DateTime(timezone=True)),
    Column("books", ARRAY(Text), nullable=False),
    # As of when it read the store.
    Column("seen_at", DateTime(timezone=True), nullable=False),
    Column("stored_at", DateTime(timezone=True), nullable=False, server_default=_now),
    Column("version", Text, nullable=False),
    # [{"kind": ..., "severity": ..., "findings": ...}]: what the metrics show of it.
    Column("counts", JSONB, nullable=False),
    # Not null: what coordinator watch has found so far (table watch); its findings are only added.
    Column("watch_id", Uuid),
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
    # When coordinator watch saw it; null: as of when its run read the store.
    Column("seen_at", DateTime(timezone=True)),
    CheckConstraint("severity in ('note', 'warning', 'error')", name="severity"),
)

watch = Table(
    "watch",
    metadata,
    # How far coordinator watch has counted (R33): written with the counts, in one SQL transaction.
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    # Of its checkpoint: Spark has made it.
    Column("id", Uuid, nullable=False),
    Column("began_at", DateTime(timezone=True), nullable=False, server_default=_now),
    # The last of Spark's batches that is counted; -1: none.
    Column("batch", BigInteger, nullable=False, server_default="-1"),
    # Halves and ops of the SQL transactions below it are counted.
    Column("position", BigInteger, nullable=False, server_default="0"),
    # How many of what: half; an op, by its decision; a delivery that an op covers, by that.
    Column("counts", JSONB, nullable=False, server_default=text("'{}'")),
    # When all that was in the store was counted, the last time.
    Column("up_to_date_at", DateTime(timezone=True)),
    # Retention had dropped the days before it at the last look; null: none.
    Column("kept_from", Date),
    # Days before it were dropped before all of them was counted; null: none was.
    Column("missed_before", Date),
    CheckConstraint("singleton", name="one_row"),
)


user_role = Table(
    "user_role",
    metadata,
    # A name that users have, for the permissions that they have together (S3).
    Column("user_name", Text, ForeignKey(user_account.c.name, ondelete="CASCADE"), primary_key=True),
    Column("role", Text, primary_key=True),
    CheckConstraint(f"role <> '{ANONYMOUS}'", name="role"),
)

permission = Table(
    "permission",
    metadata,
    # What a user may do, or all with a role (S3). No index says that each is there once: a pattern may be too long.
    # Its id is there for replication, which takes back no row of a table without a key.
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
    # What a person has decided, and logins that failed (S10). Rows are only added: see the trigger.
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=_now),
    # store/audit.py has them all.
    Column("action", Text, nullable=False),
    # What it was done to: a txn-id, an address, a user.
    Column("subject", Text),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'")),
    Column("reason", Text),
    # As the server knows the session; the others are as the program says.
    Column("database_role", Text, nullable=False, server_default=text("session_user")),
    # Of a command: who runs it.
    Column("os_user", Text),
    # Of a client: the user that it wanted to be, if there is one.
    Column("client_user", Text),
    # The host of the command, or the remote address of the client.
    Column("place", Text),
    # Logins that failed alike within a minute are one row.
    Column("times", Integer, nullable=False, server_default="1"),
    CheckConstraint("length(reason) <= 1000", name="reason"),
)
Index("audit_at_idx", audit.c.at)


#: The reason of the op for what the selector of a subscription has passed over (P16).
PASSED_OVER = "selector"

_SQL = Path(__file__).parent / "sql"
#: What SQLAlchemy's metadata cannot express, in the order in which it is made: how bodies are stored, append-only
#: tables, functions, views.
_FILES = ("functions", "views", "messages", "application")


def _run_files(_: MetaData, connection: Connection, **__: object) -> None:
    for name in _FILES:
        # without parameters the driver sends the statements of a file together, and reads no % in them
        connection.exec_driver_sql((_SQL / f"{name}.sql").read_text("utf-8"), execution_options={"no_parameters": True})


event.listen(metadata, "after_create", _run_files)
