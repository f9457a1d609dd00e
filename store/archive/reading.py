"""Read rows of dropped days from the archive, for queries about one transaction or message (H15)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import Connection

from store.archive import days
from store.archive.copies import FILES, check_files, check_root, file_errors, file_of, folder_of, read_manifest
from store.ids import begin_of, declared_at, moment_of
from store.partitions import op_id_at

if TYPE_CHECKING:
    import pyarrow.dataset as ds

#: The octets of a message that are read: they include its annotations and properties.
FRONT_OCTETS: Final = 1 << 16
_TABLE_OF: Final = {name: table for table, files in FILES.items() for name in files}
#: An id has its time in milliseconds: days are searched so far around it.
_MOMENT: Final = timedelta(seconds=1)
_MAKER: Final = ("id", "txn_id", "instance_id", "deliveries")
_STEP: Final = (
    "half_id",
    "group_id",
    "address",
    "consumer_group",
    "op_id",
    "place",
    "decision",
    "reason",
    "decided_at",
)


class Archived:
    """Reads the days that the store has dropped and archived, as of the connection's snapshot.

    A file is compared with its SHA-256 before it is read, and is not opened if it cannot have a requested row; of the
    files, which are sorted, only row groups are decoded that can have the ids.
    """

    def __init__(self, connection: Connection, root: Path | None) -> None:
        """``root``: the folder of the archive; None: it is not read, and :attr:`unread` collects the requested days."""
        self._root = root
        self._store = days.store_id(connection)
        self._copies = {key: copy for key, copy in days.copies(connection).items() if copy.dropped}
        self._whole: set[tuple[str, date]] = set()
        self.unread: set[date] = set()
        #: the addresses and names of the consumer groups that have deliveries in the rows read
        self.names: dict[int, tuple[str, str]] = {}

    @property
    def messages_read(self) -> list[date]:
        """Return the days whose messages were searched in the archive."""
        return sorted(day for table, day in self._whole if table == "half")

    def decision(self, txn_id: UUID) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """Return the op that decided the transaction, and the deliveries that it accepted."""
        if not self._copies:  # then PyArrow need not be installed
            return None
        import pyarrow.dataset as ds

        at = declared_at(txn_id.bytes)
        low, high = at - _MOMENT, at + _MOMENT
        where = (ds.field("id") == str(txn_id)) & ds.field("decision").isin(["commit", "rollback"])
        found = list(self._rows("op", low, high, tuple(FILES["op"]["op"]), where))
        return (found[0], self._of_ops(found, low, high)) if found else None

    def retired_in(self, txn_id: UUID, low: datetime, high: datetime) -> list[dict[str, Any]]:
        """Return the deliveries that the transaction has decided by other ops than its own, with ids of that time.

        Each has ``txn_id`` and ``instance_id`` of its op.
        """
        if not self._copies:
            return []
        import pyarrow.dataset as ds

        own = (ds.field("txn_id") == str(txn_id)) & ds.field("posted").is_null()
        ops = list(self._rows("op", low, high, _MAKER, _between("id", low, high) & own))
        return _with_makers(self._of_ops(ops, low, high), ops)

    def _of_ops(self, ops: Sequence[dict[str, Any]], low: datetime, high: datetime) -> list[dict[str, Any]]:
        import pyarrow.dataset as ds

        covering = [row["id"] for row in ops if row["deliveries"]]
        return self._deliveries(low, high, ds.field("op_id").isin(covering)) if covering else []

    def deliveries(self, half_ids: Sequence[int], low: datetime, high: datetime) -> list[dict[str, Any]]:
        """Return the deliveries of these messages that ops with ids of that time cover, with the ops' ``txn_id`` and
        ``instance_id``.
        """
        if not self._copies:
            return []
        import pyarrow.dataset as ds

        where = ds.field("half_id").isin(list(half_ids)) & _between("op_id", low, high)
        found = self._deliveries(low, high, where)
        op_ids = sorted({row["op_id"] for row in found})
        ops = list(self._rows("op", low, high, _MAKER, ds.field("id").isin(op_ids))) if op_ids else []
        return _with_makers(found, ops)

    def halves(
        self, low: int, high: int, txn_id: UUID | None = None, address: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield messages with ids from ``low`` to below ``high``, in order: of a transaction, or at an address.

        ``front``: the first octets, of ``octets`` in all.
        """
        if not self._copies:
            return
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        message = ds.field("message")
        columns = {name: ds.field(name) for name in ("id", "txn_id", "address_id", "address", "posted_at")}
        columns |= {"octets": pc.binary_length(message), "front": pc.binary_slice(message, 0, FRONT_OCTETS)}
        where = (ds.field("id") >= low) & (ds.field("id") <= high - 1)  # as high may be more than an int8
        if txn_id is not None:
            where &= ds.field("txn_id") == str(txn_id)
        if address is not None:
            where &= ds.field("address") == address
        yield from self._rows("half", moment_of(low), moment_of(high) + timedelta(milliseconds=1), columns, where)

    def _deliveries(self, low: datetime, high: datetime, where: ds.Expression) -> list[dict[str, Any]]:
        found = sorted(self._rows("delivery", low, high, _STEP, where), key=lambda row: (row["op_id"], row["place"]))
        for row in found:
            self.names[row["group_id"]] = (row["address"] or "", row["consumer_group"] or "")
        return found

    def _rows(
        self,
        name: str,
        low: datetime,
        high: datetime,
        columns: Sequence[str] | dict[str, ds.Expression],
        where: ds.Expression,
    ) -> Iterator[dict[str, Any]]:
        import pyarrow.dataset as ds

        table = _TABLE_OF[name]
        for of, day in sorted(self._copies):
            if of != table or begin_of(day) >= high or begin_of(day + timedelta(days=1)) <= low:
                continue
            if self._root is None:
                self.unread.add(day)
                continue
            self._check(self._root, table, day)
            path = file_of(folder_of(self._root, table, day), name)
            some = list(columns) if not isinstance(columns, dict) else columns
            with file_errors(path):
                (file,) = ds.dataset(path, format="parquet").get_fragments()
                # one row group is in memory at a time
                for group in file.split_by_row_group(where):
                    yield from group.to_table(columns=some, filter=where, use_threads=False).to_pylist()

    def _check(self, root: Path, table: str, day: date) -> None:
        """Check a copy before its first use.

        :raises ArchiveUnusable: the copy is not whole, or the folder is not the archive of this store.
        """
        if not self._whole:
            check_root(root, self._store)
        if (table, day) not in self._whole:
            manifest = read_manifest(root, table, day, self._copies[table, day].manifest)
            check_files(folder_of(root, table, day), manifest)
            self._whole.add((table, day))


def _with_makers(deliveries: Sequence[dict[str, Any]], ops: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    made = {row["id"]: {"txn_id": row["txn_id"], "instance_id": row["instance_id"]} for row in ops}
    return [{**row, **made[row["op_id"]]} for row in deliveries]


def _between(column: str, low: datetime, high: datetime) -> ds.Expression:
    """Return the condition that an op's id is of that time."""
    import pyarrow.dataset as ds

    return (ds.field(column) >= str(op_id_at(low))) & (ds.field(column) < str(op_id_at(high)))
