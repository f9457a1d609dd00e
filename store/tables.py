"""The tables of the store, schema ``coordinator``: what a row is, and which invariant each constraint holds.

Migrations (``alembic/versions``) build the same catalog step by step; a test compares the two. One file because it is
read, and compared, as a whole.
Times are ``timestamptz``; ids of halves and entries are those of :mod:`store.ids`.
"""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
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

from store import reasons
from store import set_aside as _set_aside
from store.application import enlistment as _enlistment
from store.application import message as _message
from store.application import outbox as _outbox
from store.channels import DECIDED, DUE, READY
from store.commit import terms
from store.ids import EPOCH_MS
from store.locks import ROW_OF
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


def _not_truncated(table: str) -> str:
    return (
        f"create trigger not_truncated before truncate on {SCHEMA}.{table} for each statement"
        f" when (current_setting('{DROPPING}', true) is distinct from 'on') execute function {SCHEMA}.append_only()"
    )


def _quoted(statement: str) -> str:
    return "'" + statement.replace("'", "''") + "'"


#: In PL/pgSQL: who may use the table ``parent`` may use its partition ``leaf``, and no one truncates that.
_AS_PARENT = f"""for privilege, role in
      select a.privilege_type, case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
        from pg_class c cross join aclexplode(c.relacl) a
       where c.oid = to_regclass('{SCHEMA}.' || parent) and a.grantee <> c.relowner loop
      execute format('grant %s on {SCHEMA}.%I to %s', privilege, leaf, role);
    end loop;
    execute format({_quoted(_not_truncated("%I"))}, leaf);"""


def as_parent(parent: str, leaf: str) -> str:
    """SQL: who may use the table ``parent`` may use ``leaf``, a partition that ``make_day`` has not made, and no one
    truncates it.
    """
    return f"""do $$
declare
  parent text := '{parent}';
  leaf text := '{leaf}';
  privilege text;
  role text;
begin
  {_AS_PARENT}
end $$"""


#: So long after its declare the op of a commit covers the deliveries that it has accepted.
COVERED_BY_COMMIT = "interval '1 day'"

#: The reason of the op for what the selector of a subscription has passed over (P16).
PASSED_OVER = "selector"

#: A UUIDv7 without a counter, as the ids of ops are: its time names its partition.
NEW_OP_ID = """encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid"""

#: The state of an entry ``e`` (H18), where ``r.through`` is how far the holder of its group has read. Whether it is
#: inflight: as store/recovery.py has it.
STATE = f"""case when e.failed is not null then 'failed'
              when e.lease <> 0 or e.priority = {terms.DEFAULT} and e.available_at is null and e.id <= r.through
              then 'inflight'
              when e.available_at > now() then 'scheduled'
              else 'ready' end"""
#: ``r``, for a group ``g``.
THROUGH = f"""left join lateral (select max(n.read_through) as through from {SCHEMA}.group_read n
                        where n.group_id = g.id and n.instance_id = g.holder) r on true"""

#: Messages that an undecided transaction ``t`` has posted; of a plain one, as its instance last wrote it.
POSTED = f"""case when t.producer_group is null then t.posted
              else coalesce(cardinality(t.half_ids), 0)
                   + (select count(*)::int4 from {SCHEMA}.pending p where p.txn_id = t.id) end"""

#: Deliveries that it has retired; of a plain one, as its instance last wrote it.
RETIRED = f"""case when t.producer_group is null then t.retired
              else (select count(*)::int4 from {SCHEMA}.pending_retirement r where r.txn_id = t.id) end"""

#: What SQLAlchemy's metadata cannot express: how bodies are stored, append-only tables, functions, views.
OBJECTS = (
    # Bodies are not compressed: they are written once and read once, on the hot path.
    f"alter table {SCHEMA}.half alter column message set storage external",
    f"""
create function {SCHEMA}.append_only() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only: % refused', tg_table_name, lower(tg_op) using errcode = 'restrict_violation';
end $$""",
    f"""
create trigger half_append_only before update or delete on {SCHEMA}.half
  for each row execute function {SCHEMA}.append_only()""",
    f"""
create trigger op_append_only before update or delete on {SCHEMA}.op
  for each row execute function {SCHEMA}.append_only()""",
    # PostgreSQL gives a partition no such trigger of its table: make_day does.
    _not_truncated("half"),
    _not_truncated("op"),
    # S10: a row that is old enough may be deleted, by retention.
    f"""
create function {SCHEMA}.audit_append_only() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    if old.at < now() - interval '{AUDIT_DAYS} days' then
      return old;
    end if;
  end if;
  raise exception '% is append-only: % refused', tg_table_name, lower(tg_op) using errcode = 'restrict_violation';
end $$""",
    f"""
create trigger audit_append_only before update or delete on {SCHEMA}.audit
  for each row execute function {SCHEMA}.audit_append_only()""",
    f"""
create trigger audit_not_truncated before truncate on {SCHEMA}.audit
  for each statement execute function {SCHEMA}.audit_append_only()""",
    # Makes the missing partitions of a day, unless retention has dropped it, and returns the names of the new ones.
    # They are attached afterwards: "create table ... partition of" would lock out all writers of the parent. As the
    # owner of the store, for a service that owns nothing (S9); who may use the parent may use them.
    f"""
create function {SCHEMA}.make_day(day date) returns text[] language plpgsql
security definer set lock_timeout = '2s' set search_path = pg_catalog, pg_temp as $$
declare
  first bigint := extract(epoch from day::timestamp) * 1000;
  last bigint := extract(epoch from (day + 1)::timestamp) * 1000;
  bounds text[];
  parent text;
  leaf text;
  made text[] := '{{}}';
  privilege text;
  role text;
begin
  perform {ROW_OF["days"]} for update;
  foreach parent in array array['half', 'op'] loop
    leaf := parent || '_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('{SCHEMA}.' || leaf) is not null
      or exists (select from {SCHEMA}.retention r where r.table_name = parent and day < r.kept_from);
    bounds := case parent
      when 'half' then array[(first - {EPOCH_MS} << 22)::text, (last - {EPOCH_MS} << 22)::text]
      else array[rpad(lpad(to_hex(first), 12, '0'), 32, '0'), rpad(lpad(to_hex(last), 12, '0'), 32, '0')] end;
    execute format('create table {SCHEMA}.%I (like {SCHEMA}.%I including all)', leaf, parent);
    execute format('alter table {SCHEMA}.%I attach partition {SCHEMA}.%I for values from (%L) to (%L)',
                   parent, leaf, bounds[1], bounds[2]);
    {_AS_PARENT}
    made := made || leaf;
  end loop;
  return made;
end $$""",
    f"revoke execute on function {SCHEMA}.make_day(date) from public",
    # A statement that looks in the partitions of some days met the half of another: it is sent again, with that day.
    f"""
create function {SCHEMA}.elsewhere(half_id bigint) returns bytea language plpgsql as $$
begin
  raise exception 'a half of another day' using errcode = 'CO003',
    constraint = to_char(to_timestamp(((half_id >> 22) + {EPOCH_MS}) / 1000) at time zone 'UTC', 'YYYYMMDD');
end $$""",
    # Undoes a whole batch statement, which calls it only if there is a reason.
    f"""
create function {SCHEMA}.refuse(code text, why text) returns int4 language plpgsql as $$
begin
  raise exception '%', why using errcode = code;
end $$""",
    # Whether this transaction may give entries that are due new ids from ``lowest`` on. 1: no other does now, and the
    # last one gave lower ids. Ids of more than a second before are let through: the clock was set back. 2: another does
    # now, and has given none for ``stalled``, by ids; null waits for it. 0: it may not.
    f"""
create function {SCHEMA}.may_promote(lowest int8, stalled int8) returns int8 language plpgsql as $$
declare
  last int8;
begin
  if not exists (select {ROW_OF["places"]} for update skip locked) then
    return case when lowest - (select p.last_value from {SCHEMA}.promoted p) > stalled then 2 else 0 end;
  end if;
  select p.last_value into last from {SCHEMA}.promoted p;
  return case when lowest > last or last - lowest > {1000 << 22} then 1 else 0 end;
end $$""",
    # Clients can use up ids of addresses and groups, by dynamic nodes and by subscriptions that end with their link. So
    # each id comes again, unless one has it still, or its name is remembered, as it is while a message may name it.
    f"""
create function {SCHEMA}.free_id() returns trigger language plpgsql set enable_seqscan = off as $$
begin
  while case tg_table_name
    when 'address' then exists (select from {SCHEMA}.address a where a.id = new.id)
      or exists (select from {SCHEMA}.removed_address r where r.id = new.id)
    else exists (select from {SCHEMA}.consumer_group g where g.id = new.id)
      or exists (select from {SCHEMA}.removed_group r where r.id = new.id) end
  loop
    new.id := nextval(pg_get_serial_sequence(tg_relid::regclass::text, 'id'));
  end loop;
  return new;
end $$""",
    *(
        f"""
create trigger {table}_free_id before insert on {SCHEMA}.{table}
  for each row execute function {SCHEMA}.free_id()"""
        for table in ("address", "consumer_group")
    ),
    # Names outlive their addresses and groups.
    f"""
create function {SCHEMA}.remember_removed() returns trigger language plpgsql as $$
begin
  if tg_table_name = 'address' then
    insert into {SCHEMA}.removed_address (id, name, origin) values (old.id, old.name, old.origin);
  else
    insert into {SCHEMA}.removed_group (id, address_id, name, lasting)
    values (old.id, old.address_id, old.name, old.instance_id is null and old.name <> '');
  end if;
  return null;
end $$""",
    f"""
create trigger address_removed after delete on {SCHEMA}.address
  for each row execute function {SCHEMA}.remember_removed()""",
    f"""
create trigger consumer_group_removed after delete on {SCHEMA}.consumer_group
  for each row execute function {SCHEMA}.remember_removed()""",
    # What a decision does to the deliveries that the transactions have retired (H20). ``committed``: of ``txns``, those
    # that commit; the others roll back. ``keeper``: the instance that decides and has all of them in memory: what comes
    # back is leased to it; null: another decides, and the instance that has them in memory is told. What was purged
    # meanwhile is left out. decide_all has locked the rows and their entries, in the order of their keys.
    # The op of a commit covers what was accepted, unless it is older than a day (COVERED_BY_COMMIT): it is looked for
    # by the day of its declare, and its halves are kept from now on.
    f"""
create function {SCHEMA}.retire(txns uuid[], committed uuid[], instance int4, keeper int4)
returns void language plpgsql as $$
declare
  held_here uuid[] := array(
    select distinct r.txn_id from {SCHEMA}.pending_retirement r
     where r.txn_id = any(txns) and r.holder is not null);
  notice text;
begin
  with gone as (
    delete from {SCHEMA}.pending_retirement r where r.txn_id = any(committed) returning r.*),
  accepted as (
    delete from {SCHEMA}.entry e using gone r
     where r.decision = 'accept' and e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = {HELD}
    returning r.txn_id, r.half_id, r.group_id, r.entry_id),
  back as (
    update {SCHEMA}.entry e
       set lease = case when r.decision = 'release' then coalesce(keeper, 0) else 0 end, attempts = r.attempts,
           failures = r.failures, acquired = true, failed = r.failed, annotations = r.annotations,
           available_at = case when r.wait_ms > 0 then clock_timestamp() + r.wait_ms * interval '1 ms' end
      from gone r
     where r.decision <> 'accept' and e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = {HELD}
    returning r.txn_id, r.decision, r.reason, r.half_id, r.group_id),
  told as (
    insert into {SCHEMA}.op (id, decision, txn_id, reason, half_ids, group_ids, instance_id, decided_at)
    select {NEW_OP_ID}, b.decision, b.txn_id, b.reason, array[b.half_id], array[b.group_id],
           instance, clock_timestamp()
      from back b where b.decision <> 'release'
    union all
    select {NEW_OP_ID}, 'accept', a.txn_id, null, array_agg(a.half_id order by a.group_id, a.entry_id),
           array_agg(a.group_id order by a.group_id, a.entry_id), instance, clock_timestamp()
      from accepted a join {SCHEMA}.txn t on t.id = any(array[a.txn_id])
     where t.declared_at <= now() - {COVERED_BY_COMMIT} group by a.txn_id)
  select string_agg(f.group_id || '>' || to_hex(f.lowest), ',') into notice from (
    select g.group_id, min(g.entry_id) as lowest from gone g
     where g.decision <> 'accept' or g.message_group is not null group by g.group_id) f;
  if keeper is not null then
    with gone as (
      delete from {SCHEMA}.pending_retirement r where r.txn_id = any(txns) returning r.*)
    update {SCHEMA}.entry e set lease = keeper from gone r
     where e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = {HELD};
    return;
  end if;
  update {SCHEMA}.pending_retirement r set rolled_back = true where r.txn_id = any(txns);
  perform {SCHEMA}.give_back(txns, instance);
  if notice is not null then
    perform pg_notify('{READY}', case when octet_length(notice) < 8000 then notice else '' end);
  end if;
  perform pg_notify('{DECIDED}', replace(t::text, '-', '')) from unnest(held_here) t;
  perform pg_notify('{DECIDED}', '');
end $$""",
    # Gives back what these transactions have retired and that came to nothing, where no instance has the delivery in
    # memory: it has failed once more (D5).
    f"""
create function {SCHEMA}.give_back(txns uuid[], instance int4) returns void language plpgsql as $$
declare
  notice text;
begin
  with gone as (
    delete from {SCHEMA}.pending_retirement r
     where r.txn_id = any(txns) and r.rolled_back and r.holder is null returning r.*),
  back as (
    update {SCHEMA}.entry e
       set lease = 0, attempts = least(e.attempts::int4 + 1, 32767),
           failures = least(e.failures::int4 + 1, 32767), acquired = true, failed = r.undo_failed
      from gone r where e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = {HELD}
    returning r.txn_id, r.half_id, r.group_id),
  told as (
    insert into {SCHEMA}.op (id, decision, txn_id, half_ids, group_ids, instance_id)
    select {NEW_OP_ID}, 'modify', b.txn_id, array[b.half_id], array[b.group_id], instance from back b)
  select string_agg(f.group_id || '>' || to_hex(f.lowest), ',') into notice from (
    select g.group_id, min(g.entry_id) as lowest from gone g group by g.group_id) f;
  if notice is not null then
    perform pg_notify('{READY}', case when octet_length(notice) < 8000 then notice else '' end);
    perform pg_notify('{DECIDED}', '');
  end if;
end $$""",
    # Instances have nothing in memory any more of what these transactions (null: any) have retired. Where that was
    # rolled back meanwhile, it comes back now. A plan for any ``txns`` would read all retirements, as null means all.
    f"""
create function {SCHEMA}.let_go(instances int4[], txns uuid[]) returns void language plpgsql
set enable_seqscan = off set plan_cache_mode = force_custom_plan as $$
declare
  undone uuid[];
begin
  perform from {SCHEMA}.pending_retirement r
    where r.holder = any(instances) and (txns is null or r.txn_id = any(txns))
    order by r.txn_id, r.group_id, r.entry_id for update;
  with freed as (
    update {SCHEMA}.pending_retirement r set holder = null
     where r.holder = any(instances) and (txns is null or r.txn_id = any(txns)) returning r.txn_id, r.rolled_back)
  select array_agg(distinct f.txn_id) into undone from freed f where f.rolled_back;
  if undone is not null then
    perform {SCHEMA}.give_back(undone, null);
  end if;
end $$""",
    # Decides checkable transactions (H5), for clients, checks, operators and instances. ``halves`` with their
    # transactions (``owners``) and new ids of their entries (``entries``): of each transaction all, or none.
    # In the order of the steps: a post under way is waited for, and none comes after; the first decision wins; an
    # address that is gone refuses the commit; the halves become entries of each group. Where an instance has not given
    # the ids, the ids of the halves stand for them, and the schedule gives new ones at once: an id below those that a
    # holder of the group has read would count as read by it. Then what was retired in them gets its outcome, or comes
    # back (``keeper``: see retire). All times are those of the decision: an application's SQL transaction may have been
    # open for hours. ``shared``: of those that commit at one time one gives the notice, and tells since when
    # (store/application/outbox.py). An application's session may keep a plan from when the tables were empty.
    f"""
create function {SCHEMA}.decide_all(
  txns uuid[], decisions text[], reasons text[], instance int4, owners uuid[], halves int8[], entries int8[],
  keeper int4, shared boolean default false)
returns table (txn_id uuid, won boolean) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  here uuid[];
  first uuid[];
  committed uuid[];
  others uuid[];
  retires boolean;
  since timestamptz;
  turn boolean;
  due timestamptz;
begin
  select coalesce(array_agg(found.id), '{{}}') into here from (
    select t.id from {SCHEMA}.txn t where t.id = any(txns) and t.producer_group is not null order by t.id for update
  ) found;
  retires := exists (select from {SCHEMA}.pending_retirement r where r.txn_id = any(here));
  if retires then
    perform from {SCHEMA}.pending_retirement r where r.txn_id = any(here)
      order by r.txn_id, r.group_id, r.entry_id for update;
    perform from (
        select r.group_id, r.entry_id from {SCHEMA}.pending_retirement r where r.txn_id = any(here) order by 1, 2) r
      cross join lateral (
        select from {SCHEMA}.entry e where e.group_id = r.group_id and e.id = r.entry_id for update) e;
  end if;
  since := clock_timestamp();
  turn := not shared or exists (select {ROW_OF["notice"]} for update skip locked);
  due := clock_timestamp();
  with added as (
    insert into {SCHEMA}.op (id, decision, txn_id, reason, posted, half_ids, group_ids, instance_id, decided_at)
    select a.t, a.d, a.t, nullif(a.r, ''),
           coalesce(cardinality(x.half_ids), 0) + (select count(*) from {SCHEMA}.pending p where p.txn_id = a.t),
           c.half_ids, c.group_ids, instance, due
      from unnest(txns, decisions, reasons) a(t, d, r)
      join {SCHEMA}.txn x on x.id = any(array[a.t])
      left join lateral (
        select array_agg(r.half_id order by r.group_id, r.entry_id) as half_ids,
               array_agg(r.group_id order by r.group_id, r.entry_id) as group_ids
          from {SCHEMA}.pending_retirement r
          join {SCHEMA}.entry e on e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = {HELD}
          join {SCHEMA}.txn t on t.id = any(array[r.txn_id]) and t.declared_at > now() - {COVERED_BY_COMMIT}
         where retires and a.d = 'commit' and r.txn_id = a.t and r.decision = 'accept') c on true
     where a.t = any(here) order by a.t
    on conflict do nothing returning id, decision)
  select coalesce(array_agg(id), '{{}}'), coalesce(array_agg(id) filter (where decision = 'commit'), '{{}}')
    into first, committed from added;
  if committed <> '{{}}' then
    if exists (
      select from (
          select distinct u.address_id from unnest(array(
            select p.address_id from {SCHEMA}.pending_half p where p.txn_id = any(committed))) u(address_id)
           order by 1) posted
        left join lateral (
          select a.id from {SCHEMA}.address a where a.id = posted.address_id for key share) a on true
       where a.id is null) then
      raise exception 'an address that is posted to is gone' using errcode = 'CO003';
    end if;
    others := array(select unnest(committed) except select unnest(owners));
    select array_agg(u.t), array_agg(u.h), array_agg(u.e) into owners, halves, entries
      from unnest(owners, halves, entries) u(t, h, e) where u.t = any(committed);
    with known as (
      delete from {SCHEMA}.pending p using unnest(owners, halves, entries) u(t, h, e)
       where p.txn_id = any(array[u.t]) and p.half_id = u.h returning p.*, u.e as entry_id),
    rest as (
      delete from {SCHEMA}.pending p where p.txn_id = any(others) returning p.*, null::int8 as entry_id),
    beside as (
      select t.id, u.h, t.address_id, null::timestamptz, null::timestamptz, {terms.DEFAULT}::int2, null::int8,
             null::int4[], u.e
        from unnest(owners, halves, entries) u(t, h, e)
        join {SCHEMA}.txn t on t.id = any(array[u.t]) and u.h = any(t.half_ids)
      union all
      select t.id, f.half_id, t.address_id, null, null, {terms.DEFAULT}::int2, null, null, null
        from {SCHEMA}.txn t cross join lateral unnest(t.half_ids) f(half_id)
       where t.id = any(others)),
    gone as (select * from known union all select * from rest union all select * from beside),
    delivered as (
      insert into {SCHEMA}.entry (group_id, id, half_id, expires_at, available_at, priority, message_group)
      select g.id, coalesce(m.entry_id, m.half_id), m.half_id, m.expires_at,
             case when m.entry_id is null then greatest(m.available_at, due) else m.available_at end,
             m.priority, case m.message_group when 1 then coalesce(m.entry_id, m.half_id) else m.message_group end
        from gone m join {SCHEMA}.consumer_group g on g.address_id = any(array[m.address_id])
       where g.id <> all(coalesce(m.left_out, '{{}}')) for key share of g)
    insert into {SCHEMA}.op (id, decision, reason, half_ids, group_ids, instance_id, decided_at)
    select {NEW_OP_ID},
           'accept', 'no-local', array_fill(m.half_id, array[cardinality(m.left_out)]), m.left_out, instance, due
      from gone m where m.left_out is not null;
    if exists (select from {SCHEMA}.pending p where p.txn_id = any(committed)) or exists (
      select f.half_id from {SCHEMA}.txn t cross join lateral unnest(t.half_ids) f(half_id)
       where t.id = any(committed) and t.id <> all(others) except select unnest(halves)) then
      raise exception 'halves were left out of a commit' using errcode = 'data_exception';
    end if;
    if others <> '{{}}' and turn then
      perform pg_notify('{DUE}', case when shared
        then {_outbox.micros("since")} else '' end);
    end if;
  end if;
  if cardinality(here) > cardinality(committed) then
    delete from {SCHEMA}.pending p where p.txn_id = any(here);
  end if;
  if retires then
    perform {SCHEMA}.retire(here, committed, instance, keeper);
  end if;
  delete from {SCHEMA}.txn t where t.id = any(here);
  return query select a, a = any(first) from unnest(txns) a;
end $$""",
    # One of them, by a process that knows none of its halves. False: it is decided, or there is no such transaction.
    f"""
create function {SCHEMA}.decide(txn uuid, decision text, reason text, instance int4 default null) returns boolean
language sql set enable_seqscan = off as $$
  select won from {SCHEMA}.decide_all(array[txn], array[decision], array[reason], instance, '{{}}', '{{}}', '{{}}',
                                        null)
$$""",
    # Rolls back a transaction that is not checkable, unless it is decided (T11): a question does. Its row in txn is
    # locked, or made and deleted again, and a batch that makes it checkable writes the same row: one waits for the
    # other, and sees what it has done.
    f"""
create function {SCHEMA}.ask(txn uuid, instance int4) returns void language plpgsql as $$
declare
  seen int4;
begin
  insert into {SCHEMA}.txn as t (id, instance_id, owner, declared_at, timeout_at, posted, retired)
  values (ask.txn, ask.instance, '', now(), now(), 0, 0)
  on conflict (id) do update set posted = t.posted where t.producer_group is null returning t.posted into seen;
  if not found then
    return;
  end if;
  insert into {SCHEMA}.op (id, decision, txn_id, reason, posted, instance_id)
  values (ask.txn, 'rollback', ask.txn, '{reasons.ASKED}', seen, ask.instance) on conflict do nothing;
  delete from {SCHEMA}.txn t where t.id = ask.txn;
end $$""",
    # Whether no transaction that committed, nor this one, has asked the same before (X4): for the transaction in which
    # an application does the work of a message. Waits for another that has just asked, until it has ended.
    f"""
create function {SCHEMA}.first_time(consumer text, message_id text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  asking constant text := coalesce(nullif(current_setting('role'), 'none'), session_user);
  belongs text;
begin
  if coalesce(octet_length($1), 0) not between 1 and 1000 then
    raise exception 'coordinator.first_time: expected a consumer of 1 to 1000 octets, not %',
      coalesce(octet_length($1) || ' octets', 'null') using errcode = 'invalid_parameter_value';
  end if;
  if coalesce(octet_length($2), 0) not between 1 and 1000 then
    raise exception 'coordinator.first_time: expected a message-id of 1 to 1000 octets, not %',
      coalesce(octet_length($2) || ' octets', 'null') using errcode = 'invalid_parameter_value';
  end if;
  select o.owner into belongs from {SCHEMA}.inbox_owner o where o.consumer = $1;
  -- of transactions that use a new name at one time one makes it its role's; the others do not wait for its end
  if not found and pg_try_advisory_xact_lock(hashtextextended('{SCHEMA}.inbox_owner ' || $1, 0)) then
    insert into {SCHEMA}.inbox_owner (consumer, owner) values ($1, asking) on conflict do nothing;
    select o.owner into belongs from {SCHEMA}.inbox_owner o where o.consumer = $1;
  end if;
  if belongs <> asking and not exists (
    select from pg_roles r where r.rolname = belongs and pg_has_role(asking, r.oid, 'member')) then
    raise exception 'coordinator.first_time: the consumer "%" belongs to the role "%", and "%" is no member of it',
      left($1, 100), belongs, asking using errcode = '{_outbox.OTHERS}',
      hint = 'Ask with another name, or have this one granted: coordinator role grant --application ROLE --inbox NAME';
  end if;
  insert into {SCHEMA}.inbox (consumer, message_id) values ($1, $2) on conflict do nothing;
  return found;
end $$""",
    f"revoke execute on function {SCHEMA}.first_time(text, text) from public",
    # Rolls back a transaction that was checked often enough, and copies its halves to the address ``target`` (H10). The
    # copies get these ids, the annotations of the address that the half was posted to, a map of the type 0xd1, and the
    # half's id. False: it is decided, checked again, or there is no such address any more. In the order of the steps:
    # no post comes after.
    f"""
create function {SCHEMA}.exhaust(
  txn uuid, ids int8[], target int4, addresses int4[], annotations bytea[], instance int4)
returns boolean language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  kind text;
  halves int8[];
  origins int4[];
begin
  perform from {SCHEMA}.txn t
    where t.id = exhaust.txn and t.checks >= t.most_checks and t.next_check_at <= now() for update skip locked;
  if not found then
    return false;
  end if;
  select a.kind into kind from {SCHEMA}.address a where a.id = target for key share;
  select array_agg(p.half_id order by p.half_id), array_agg(p.address_id order by p.half_id) into halves, origins
    from {SCHEMA}.pending_half p where p.txn_id = exhaust.txn;
  if kind is null or cardinality(halves) > cardinality(ids) or not origins <@ addresses then
    return false;
  end if;
  if not {SCHEMA}.decide(exhaust.txn, 'rollback', '{reasons.EXHAUSTED}', instance) then
    return false;
  end if;
  insert into {SCHEMA}.half (id, txn_id, address_id, message)
  select c.id, null, target, {SCHEMA}.told(
           h.message,
           substring(s.annotations from 10) || {SCHEMA}.amqp_sized(163, 'x-opt-original-id') || '\\x81'
             || int8send(c.half_id),
           ({SCHEMA}.amqp_number(s.annotations, 5) / 2)::int4 + 1)
    from unnest(ids, halves, origins) c(id, half_id, address_id)
    join unnest(addresses, annotations) s(address_id, annotations) on s.address_id = c.address_id
    join {SCHEMA}.half h on h.id = c.half_id;
  insert into {SCHEMA}.entry (group_id, id, half_id, available_at, message_group)
  select g.id, c.id, c.id, now(), case kind when 'fifo' then c.id end
    from unnest(ids, halves) c(id, half_id)
    cross join (select id from {SCHEMA}.consumer_group where address_id = target for key share) g
   where exists (select from {SCHEMA}.half h where h.id = c.half_id);
  perform pg_notify('{DUE}', '');
  return true;
end $$""",
    # Whether one of the transactions is decided: for a batch that has just entered them. The lowest and the highest of
    # their ids, as parameters, leave the partitions of other days out of the plan: these cost nothing, however many.
    f"""
create function {SCHEMA}.any_decided(txns uuid[], entered bigint) returns boolean language plpgsql as $$
declare
  lowest uuid := txns[1];
  highest uuid := txns[1];
  txn uuid;
begin
  foreach txn in array txns loop
    if txn < lowest then
      lowest := txn;
    elsif txn > highest then
      highest := txn;
    end if;
  end loop;
  return exists (
    select from {SCHEMA}.op o where o.id = any(txns) and o.id between lowest and highest);
end $$""",
    # All halves of undecided checkable transactions.
    f"""
create view {SCHEMA}.pending_half as
  select p.txn_id, p.half_id, p.address_id, p.expires_at, p.available_at, p.priority, p.message_group, p.left_out
    from {SCHEMA}.pending p
  union all
  select t.id, f.half_id, t.address_id, null, null, {terms.DEFAULT}::int2, null, null
    from {SCHEMA}.txn t cross join lateral unnest(t.half_ids) f(half_id)""",
    # H15: the outcome of a transaction.
    f"""
create view {SCHEMA}.outcome as
  select id as txn_id, decision as outcome, reason, posted, coalesce(cardinality(half_ids), 0) as retired,
         decided_at, instance_id
    from {SCHEMA}.op where decision in ('commit', 'rollback')
  union all
  select t.id, 'undecided', null,
         {POSTED},
         {RETIRED},
         null, t.instance_id
    from {SCHEMA}.txn t where not exists (select from {SCHEMA}.op o where o.id = t.id)""",
    # What a person reads (H18). Tables have singular names, these views plural ones; docs/how-to/watch-it-run.md says
    # what reading each costs.
    f"""
create view {SCHEMA}.entries as
  select a.name as address, g.name as consumer_group, e.id as entry_id, e.half_id,
         {STATE} as state,
         e.attempts, e.priority, e.available_at, e.expires_at, e.failed as failed_for, a.id as address_id,
         g.id as group_id, e.failures
    from {SCHEMA}.consumer_group g
    join {SCHEMA}.address a on a.id = g.address_id
    {THROUGH}
    join {SCHEMA}.entry e on e.group_id = g.id""",
    f"""
create view {SCHEMA}.groups as
  select a.name as address, g.name as consumer_group, g.instance_id is not null as volatile,
         c.ready, c.inflight, c.scheduled, c.failed, g.created_at, a.id as address_id, g.id as group_id,
         coalesce(g.on_expiry, a.on_expiry) as on_expiry, coalesce(g.max_attempts, a.max_attempts) as max_attempts,
         coalesce(g.retry, a.retry) as retry,
         array_remove(array[case when g.on_expiry is not null then 'on_expiry' end,
                            case when g.max_attempts is not null then 'max_attempts' end,
                            case when g.retry is not null then 'retry' end], null) as own_policies
    from {SCHEMA}.consumer_group g
    join {SCHEMA}.address a on a.id = g.address_id
    cross join lateral (
      select count(*) filter (where e.state = 'ready') as ready,
             count(*) filter (where e.state = 'inflight') as inflight,
             count(*) filter (where e.state = 'scheduled') as scheduled,
             count(*) filter (where e.state = 'failed') as failed
        from {SCHEMA}.entries e where e.group_id = g.id) c""",
    f"""
create view {SCHEMA}.addresses as
  select a.name as address, a.routing, a.kind, a.origin, c.groups, coalesce(u.halves, 0) as pending,
         c.ready, c.inflight, c.scheduled, c.failed, a.created_at, a.id as address_id
    from {SCHEMA}.address a
    left join (select p.address_id, count(*) as halves from {SCHEMA}.pending_half p group by p.address_id) u
      on u.address_id = a.id
    cross join lateral (
      select count(*) as groups, coalesce(sum(g.ready), 0)::int8 as ready,
             coalesce(sum(g.inflight), 0)::int8 as inflight, coalesce(sum(g.scheduled), 0)::int8 as scheduled,
             coalesce(sum(g.failed), 0)::int8 as failed
        from {SCHEMA}.groups g where g.address_id = a.id) c""",
    f"""
create view {SCHEMA}.undecided as
  select t.id as txn_id, now() - t.declared_at as age, t.owner, t.producer_group,
         {POSTED} as posted,
         {RETIRED} as retired,
         array(select distinct a.name from {SCHEMA}.pending_half p join {SCHEMA}.address a on a.id = p.address_id
                where p.txn_id = t.id order by a.name) as addresses,
         t.declared_at, t.timeout_at, t.checks, t.next_check_at, t.instance_id
    from {SCHEMA}.txn t where not exists (select from {SCHEMA}.op o where o.id = t.id)""",
    # One row a half and consumer group; a half that no group has, or can have yet, has one row without a group.
    f"""
create view {SCHEMA}.messages as
  with ended as (
    select distinct on (u.half_id, u.group_id) u.half_id, u.group_id,
           case when o.decision in ('commit', 'accept') then 'acked' when o.decision = 'expire' then 'expired'
                when o.decision = 'dead-letter' then 'dead-lettered' else 'purged' end as state
      from {SCHEMA}.op o cross join lateral unnest(o.half_ids, o.group_ids) u(half_id, group_id)
     where o.decision in ('commit', 'accept', 'expire', 'dead-letter', 'purge')
     order by u.half_id, u.group_id, o.decided_at desc)
  select h.id as half_id, coalesce(a.name, r.name) as address, g.name as consumer_group,
         case when p.half_id is not null or t.id is not null then 'pending'
              when d.decision = 'rollback' then 'rolled-back'
              when h.txn_id is not null and d.id is null then 'unknown'
              else coalesce(e.state, n.state, 'no-entry') end as state,
         h.txn_id, h.posted_at, d.decided_at, octet_length(h.message) as octets
    from {SCHEMA}.half h
    left join {SCHEMA}.address a on a.id = h.address_id
    left join {SCHEMA}.removed_address r on r.id = h.address_id
    left join {SCHEMA}.pending p on p.txn_id = h.txn_id and p.half_id = h.id
    left join {SCHEMA}.txn t on t.id = h.txn_id and h.id = any(t.half_ids)
    left join {SCHEMA}.op d on d.id = h.txn_id
    left join {SCHEMA}.consumer_group g
      on g.address_id = h.address_id and (h.txn_id is null or d.decision = 'commit')
    left join {SCHEMA}.entries e on e.group_id = g.id and e.half_id = h.id
    left join ended n on n.group_id = g.id and n.half_id = h.id""",
    # R32: the findings of the runs that are stored.
    f"""
create view {SCHEMA}.findings as
  select f.run_id as run, coalesce(f.seen_at, r.seen_at) as seen_at, f.kind, f.severity, f.txn_id, f.half_id, f.address,
         f.consumer_group, f.detail, f.suggested_repair, f.number
    from {SCHEMA}.finding f join {SCHEMA}.run r on r.id = f.run_id""",
    *_set_aside.objects(SCHEMA),
    *_message.objects(SCHEMA),
    *_outbox.objects(SCHEMA),
    *_enlistment.objects(SCHEMA),
)

for _sql in OBJECTS:
    event.listen(metadata, "after_create", DDL(_sql.replace("%", "%%")))  # type: ignore[no-untyped-call]
