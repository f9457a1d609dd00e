"""Define the files of the archive, and check that the copy of a day is whole and unchanged.

::

    archive.json                      names the store of this archive
    half/2026-11-01/manifest.json     written last: counts and sums of the files beside it
    half/2026-11-01/half.parquet      by id
    op/2026-11-01/op.parquet          by id; without the deliveries that they cover
    op/2026-11-01/delivery.parquet    a row a delivery, by half

It imports nothing of the project, so that any reader of the archive can use it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 1
ROOT_FILE: Final = "archive.json"
MANIFEST: Final = "manifest.json"

#: The files of a copy, by table: their columns and the type of each. Rows are summed in this order of columns.
FILES: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "half": {
        "half": {
            "id": "int8",
            "txn_id": "text",
            "address_id": "int4",
            "address": "text",
            "message": "bytea",
            "posted_at": "timestamptz",
            "written_xid": "int8",
        }
    },
    "op": {
        # deliveries: how many it covers; null: it is not about deliveries
        "op": {
            "id": "text",
            "decision": "text",
            "txn_id": "text",
            "reason": "text",
            "posted": "int4",
            "deliveries": "int4",
            "instance_id": "int4",
            "decided_at": "timestamptz",
            "written_xid": "int8",
        },
        # place: the place of the delivery among those of its op
        "delivery": {
            "half_id": "int8",
            "group_id": "int4",
            "address": "text",
            "consumer_group": "text",
            "op_id": "text",
            "place": "int4",
            "decision": "text",
            "reason": "text",
            "decided_at": "timestamptz",
        },
    },
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class ArchiveUnusable(Exception):
    """The archive cannot be written, is incomplete or changed, or is another store's. The message names the file and
    what was expected."""


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The sum of rows: how many, and all of their values as one number (:func:`summed`)."""

    rows: int
    values: int


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a copy. ``sum`` is of the table's rows, ``sha256`` and ``octets`` are of the file."""

    rows: int
    values: int
    octets: int
    sha256: str

    @property
    def sum(self) -> Sum:
        return Sum(rows=self.rows, values=self.values)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a copy: its store, table and day, and its ``files`` by name.

    ``first`` and ``last`` are the lowest and highest id of its rows (text; null without rows); ``latest``: when the
    last of its ops was decided, or of its halves posted."""

    store: str
    schema: str
    table: str
    day: date
    first: str | None
    last: str | None
    latest: datetime | None
    files: Mapping[str, File]

    @property
    def rows(self) -> int:
        return self.files[self.table].rows

    def encoded(self) -> bytes:
        """Return the content of its file."""
        said = {"format": FORMAT, **asdict(self), "day": self.day.isoformat()}
        said["latest"] = None if self.latest is None else self.latest.isoformat()
        return (json.dumps(said, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def decoded(cls, path: Path, content: bytes) -> Manifest:
        """Read the content of a manifest's file.

        :raises ArchiveUnusable: it is not what :meth:`encoded` returns.
        """
        try:
            said = json.loads(content)
            if said.pop("format") != FORMAT:
                raise ArchiveUnusable(f"{path}: another format of the archive, expected {FORMAT}")
            files = {name: File(**file) for name, file in said.pop("files").items()}
            day, latest = date.fromisoformat(said.pop("day")), said.pop("latest")
            moment = None if latest is None else datetime.fromisoformat(latest)
            return cls(**said, day=day, latest=moment, files=files)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ArchiveUnusable(f"{path}: no manifest of an archive; the copy is not whole") from None


def folder_of(root: Path, table: str, day: date) -> Path:
    return root / table / day.isoformat()


def file_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


@contextmanager
def file_errors(root: Path) -> Iterator[None]:
    """Convert errors of files, and of their content, to :class:`ArchiveUnusable`."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error).splitlines()[0]
        where = getattr(error, "filename", None) or root
        raise ArchiveUnusable(f"archive {where}: {reason}") from None


def check_root(root: Path, store: str) -> None:
    """Check that ``root`` is the archive of this store.

    :raises ArchiveUnusable: it is not.
    """
    path = root / ROOT_FILE
    try:
        found = json.loads(path.read_bytes())
        format_, of = found["format"], found["store"]
    except FileNotFoundError:
        raise ArchiveUnusable(f"{path}: there is no such file; expected the archive of store {store}") from None
    except OSError as error:
        raise ArchiveUnusable(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ArchiveUnusable(f"{path}: not what coordinator archive writes") from None
    if format_ != FORMAT:
        raise ArchiveUnusable(f"{path}: its format is {format_!r}, expected {FORMAT}")
    if of != store:
        raise ArchiveUnusable(f"{path}: the archive of store {of}, and this is store {store}")


def make_root(root: Path, store: str) -> None:
    """Make ``root`` the archive of this store, unless it is. It will have messages: its owner alone may read it.

    :raises ArchiveUnusable: it is another's, or has other files in it, or cannot be written.
    """
    with file_errors(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(root.iterdir()):
            check_root(root, store)
            return
        partial = root / f"{ROOT_FILE}.partial"
        with partial.open("wb") as file:
            file.write(json.dumps({"format": FORMAT, "store": store}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(root / ROOT_FILE)
        sync(root)


def read_manifest(root: Path, table: str, day: date, sha256: str) -> Manifest:
    """Read the manifest of a copy that the store has noted with this SHA-256.

    :raises ArchiveUnusable: it is missing, or another.
    """
    path = folder_of(root, table, day) / MANIFEST
    with file_errors(path):
        content = path.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ArchiveUnusable(f"{path}: changed; its SHA-256 is {found}, expected {sha256}")
    return Manifest.decoded(path, content)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Check size and SHA-256 of the files of a copy.

    :raises ArchiveUnusable: a file is missing, or is not the one that was written.
    """
    with file_errors(folder):
        for name, expected in manifest.files.items():
            path = file_of(folder, name)
            octets = path.stat().st_size
            if octets != expected.octets:
                raise ArchiveUnusable(f"{path}: changed; it has {octets} octets, expected {expected.octets}")
            if (found := sha256_of(path)) != expected.sha256:
                raise ArchiveUnusable(f"{path}: changed; its SHA-256 is {found}, expected {expected.sha256}")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a directory to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    import pyarrow as pa

    types = {
        "int8": pa.int64(),
        "int4": pa.int32(),
        "text": pa.string(),
        "bytea": pa.binary(),
        "timestamptz": pa.timestamp("us", "UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def rows_in(path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a Parquet file; one row group is in memory at a time.

    :raises ArchiveUnusable: it cannot be read.
    """
    import pyarrow.parquet as pq

    with file_errors(path), path.open("rb") as opened, pq.ParquetFile(opened) as file:
        for number in range(file.num_row_groups):
            columns = file.read_row_group(number).columns
            yield from zip(*(column.to_pylist() for column in columns), strict=True)


def summed(path: Path, columns: Mapping[str, str]) -> Sum:
    """Return the sum of the rows of a file: the first 8 octets of each row's SHA-256, combined by exclusive or.

    The order of rows makes no difference. :func:`store.archive.days.row_sum` computes it in the database.
    """
    kinds = list(columns.values())
    rows = values = 0
    for row in rows_in(path):
        octets = b"".join(map(_octets, row, kinds))
        values ^= int.from_bytes(hashlib.sha256(octets).digest()[:8], "big", signed=True)
        rows += 1
    return Sum(rows=rows, values=values)


def _octets(value: Any, kind: str) -> bytes:
    if value is None:
        return b"\0"
    content: bytes
    if kind == "text":
        content = value.encode()
    elif kind == "bytea":
        content = value
    elif kind == "timestamptz":
        content = ((value - _EPOCH) // _MICROSECOND).to_bytes(8, "big", signed=True)
    else:
        content = value.to_bytes(8 if kind == "int8" else 4, "big", signed=True)
    return b"\1" + len(content).to_bytes(4, "big") + content
