"""Encode a batch: the names of the parts that its statement needs, and their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from store import arrays
from store.commit import checkable
from store.commit.terms import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.commit.batch import Batch
    from store.commit.terms import DeliveryTerms


# The notice of a batch to other instances: the groups that have entries without a lease.

#: In :attr:`Batch.wake`: all groups. A notice names at most :data:`MOST_WOKEN` groups.
EVERY_GROUP = 0
MOST_WOKEN = 200
#: A notice names at most so many message groups, whose names are longer.
MOST_KEYS_WOKEN = 150
#: Octets that a notice may have.
_MOST_OCTETS = 7999


def notice(groups: Mapping[int, int], keys: Set[tuple[int, int]]) -> bytes:
    """Return the payload of the notice, a list separated by commas.

    Its items are ``group>lowest``, where ``lowest`` is an id from which on the group has entries; ``group/key`` for a
    message group; or ``group`` alone where the id is not known. Empty stands for all groups, if they are too many.
    """
    told = {group: f"{group}>{lowest:x}" for group, lowest in groups.items()}
    if len(keys) > MOST_KEYS_WOKEN:
        told = {**{group: str(group) for group, _ in keys}, **told}
    if EVERY_GROUP in told or len(told) > MOST_WOKEN:
        return b""
    named = [f"{group}/{key:x}" for group, key in sorted(keys) if group not in told]
    payload = ",".join([*(told[group] for group in sorted(told)), *named]).encode()
    return payload if len(payload) <= _MOST_OCTETS else b""


def parts_of(batch: Batch) -> tuple[tuple[str, ...], list[bytes]]:
    """Return the names of the parts this batch needs, and their parameters in order."""
    names: list[str] = []
    parameters: list[bytes] = []
    _add_posts(batch, names, parameters)
    _add_deliveries(batch, names, parameters)
    _add_transactions(batch, names, parameters)
    if batch.checkable is not None:
        checkable.add_parts(batch.checkable, names, parameters)
    if batch.wake or batch.wake_keys:
        names.append("wake")
        parameters.append(notice(batch.wake, batch.wake_keys))
    if batch.traceless:
        names.append("mark")
        parameters.append(_int8(batch.number))
    return tuple(names), parameters


def _int4(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _int8(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _add_posts(batch: Batch, names: list[str], parameters: list[bytes]) -> None:
    """Add the parts of halves, of their entries, and of the addresses that must still exist."""
    if batch.has_single_rows:
        _add_one_post(batch, names, parameters)
    else:
        _add_many_posts(batch, names, parameters)
    if batch.particular_ids:
        names.append("particular")
        parameters += (
            arrays.int4(batch.particular_groups),
            arrays.int8(batch.particular_ids),
            arrays.int4(batch.particular_leases),
            *_columns(batch.particular_ids, batch.particular_terms),
        )
    if batch.fan_ids:
        names.append("fan_others" if batch.left_out_ids else "fan")
        parameters += (
            arrays.int4(batch.fan_addresses),
            arrays.int8(batch.fan_ids),
            *_columns(batch.fan_ids, batch.fan_terms),
        )
        if batch.left_out_ids:
            parameters += (arrays.int8(batch.left_out_ids), arrays.int4(batch.left_out_groups))
    if batch.posted:
        names.append("posted")
        parameters += (*tags(batch), arrays.int8([each.half_id for each in batch.posted]))
    _add_places(batch, names, parameters)


def tags(batch: Batch) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the keys of the table ``posted`` that the batch writes, column by column."""
    addresses, owners, producers, each_tag, _, _ = zip(*batch.posted, strict=True)
    return arrays.int4(addresses), arrays.text(owners), arrays.text(producers), arrays.bytea(each_tag)


def _add_one_post(batch: Batch, names: list[str], parameters: list[bytes]) -> None:
    if batch.half_ids:
        names.append("one_half")
        parameters += (
            _int8(*batch.half_ids),
            *batch.half_txns,
            _int4(*batch.half_addresses),
            bytes(*batch.half_messages),
        )
    if batch.entry_ids:
        names.append("one_entry")
        parameters += (_int4(*batch.entry_groups), _int8(*batch.entry_ids), _int4(*batch.entry_leases))


def _add_many_posts(batch: Batch, names: list[str], parameters: list[bytes]) -> None:
    if batch.half_ids:
        names.append("half")
        parameters += (
            arrays.int8(batch.half_ids),
            arrays.uuid(batch.half_txns),
            arrays.int4(batch.half_addresses),
            arrays.bytea(batch.half_messages),
        )
    if batch.entry_ids:
        names.append("entry")
        parameters += (
            arrays.int4(batch.entry_groups),
            arrays.int8(batch.entry_ids),
            arrays.int4(batch.entry_leases),
        )


def _add_places(batch: Batch, names: list[str], parameters: list[bytes]) -> None:
    """Add the parts that check the addresses which are posted to."""
    queues = batch.queue_addresses
    posted = batch.fan_addresses if batch.checkable is None else [*batch.fan_addresses, *batch.checkable.addresses]
    if len(queues) == 1 and not posted:
        names.append("queue")
        parameters.append(_int4(*queues))
        return
    if queues or posted:
        names.append("there")
        parameters.append(arrays.int4([*queues.union(posted)]))
    if queues:
        names.append("split")
        parameters.append(arrays.int4([*queues]))


def _columns(ids: Sequence[int], terms: Sequence[DeliveryTerms]) -> tuple[bytes, bytes, bytes, bytes]:
    return (
        arrays.timestamptz([each.expires for each in terms]),
        arrays.timestamptz([each.available for each in terms]),
        arrays.int2([each.priority for each in terms]),
        arrays.int8([key_of(each, entry_id) for each, entry_id in zip(terms, ids, strict=True)]),
    )


def _add_deliveries(batch: Batch, names: list[str], parameters: list[bytes]) -> None:
    """Add the parts of held entries that are deleted, kept or returned, and of groups that are no longer held whole."""
    if batch.gone_ids and batch.has_single_rows:
        names.append("one_gone")
        parameters += (_int4(*batch.gone_groups), _int8(*batch.gone_ids))
    elif batch.gone_ids:
        names.append("gone")
        parameters += (arrays.int4(batch.gone_groups), arrays.int8(batch.gone_ids))
    if batch.backs:
        names.append("back")
        groups, ids, attempts, failures, leases, failed, annotations, available = zip(*batch.backs, strict=True)
        parameters += (
            arrays.int4(groups),
            arrays.int8(ids),
            arrays.int2(attempts),
            arrays.int2(failures),
            arrays.int4(leases),
            arrays.text(failed),
            arrays.bytea(annotations),
            arrays.timestamptz(available),
        )
    if batch.yielded_ids:
        names.append("yielded")
        parameters += (
            arrays.int4(batch.yielded_groups),
            arrays.int8(batch.yielded_ids),
            arrays.int2(batch.yielded_attempts),
        )
    if batch.shared_groups:
        names.append("shared")
        parameters.append(arrays.int4(batch.shared_groups))
    if batch.pinned_ids:
        names.append("pinned")
        parameters += (arrays.int4(batch.pinned_groups), arrays.int8(batch.pinned_ids))


def _add_transactions(batch: Batch, names: list[str], parameters: list[bytes]) -> None:
    """Add the parts of ops, and of changes to the list of undecided transactions."""
    if batch.has_single_rows:
        _add_one_op(batch, names, parameters)
    else:
        _add_many_ops(batch, names, parameters)
    if batch.registered:
        names.append("registered")
        listed = batch.registered.values()
        parameters += (
            arrays.uuid(list(batch.registered)),
            arrays.text([each.owner for each in listed]),
            arrays.timestamptz([each.declared for each in listed]),
            arrays.timestamptz([each.timeout for each in listed]),
            arrays.int4([each.posted for each in listed]),
            arrays.int4([each.retired for each in listed]),
        )
    if batch.forgotten:
        names.append("forgotten")
        parameters.append(arrays.uuid(batch.forgotten))


def _add_one_op(batch: Batch, names: list[str], parameters: list[bytes]) -> None:
    if batch.commit_ids:
        names.append("one_commit")
        parameters += (*batch.commit_ids, _int4(*batch.commit_posted))
    if batch.op_ids:
        names.append("one_op")
        parameters += (
            *batch.op_ids,
            *batch.op_decisions,
            *batch.op_txns,
            *batch.op_reasons,
            _int4(*batch.op_posted),
            arrays.int8(batch.covered_halves),
            arrays.int4(batch.covered_groups),
        )


def _add_many_ops(batch: Batch, names: list[str], parameters: list[bytes]) -> None:
    if batch.commit_ids:
        names.append("commit")
        parameters += (arrays.uuid(batch.commit_ids), arrays.int4(batch.commit_posted))
    if batch.op_ids:
        names.append("op")
        parameters += (
            arrays.uuid(batch.op_ids),
            arrays.text(batch.op_decisions),
            arrays.uuid(batch.op_txns),
            arrays.text(batch.op_reasons),
            arrays.int4(batch.op_posted),
            arrays.int4(batch.op_lo),
            arrays.int4(batch.op_hi),
            arrays.int8(batch.covered_halves),
            arrays.int4(batch.covered_groups),
        )
