"""A coordinator's state must be a function of its log: this builds another one from the log, and compares the two.

It compares transactions as they are kept (their ages are no part of the log), and of groups the offsets, the unstable
offsets, and the members of groups that are at rest.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.coordinators.decided_batches import Codec
from einmal.broker.coordinators.group_service import GroupRuntime
from einmal.broker.coordinators.transaction_service import TransactionRuntime
from einmal.broker.replicas.partition import Partition
from einmal.groups import records as group_records
from einmal.groups.config import GroupConfig
from einmal.groups.coordinator import GroupCoordinator
from einmal.groups.requests import OffsetFetchGroup
from einmal.shard.decision import RecordT, Shard
from einmal.transactions import records as transaction_records
from einmal.transactions.coordinator import TransactionConfig, TransactionCoordinator
from einmal.types import Instant, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from einmal.wire.control_batch import ABORT, COMMIT, control_type, decode_marker
from einmal.wire.record_batch import decode_records, iter_headers

_READ_BYTES: Final = 1024 * 1024
_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance")
_BEGINNING: Final = Instant(0, 0)


def coordinator_difference(runtime: TransactionRuntime | GroupRuntime) -> str:
    """In words; empty: there is none."""
    shard = runtime._shard
    if isinstance(shard, TransactionCoordinator):
        fresh = _transactions(runtime.partition)
        return _difference(dict(shard.transactions), dict(fresh.transactions))
    assert isinstance(shard, GroupCoordinator)
    known, logged = _group_view(shard), _group_view(_groups(runtime.partition))
    # A running rebalance is logged when it is over: until then the log has the generation before it.
    for group in shard.list_groups((), ()).response.groups:
        if group.group_state in _REBALANCING:
            logged.pop(_members_of(group.group_id), None)
    return _difference(known, logged)


def _difference(known: dict[str, Any], logged: dict[str, Any]) -> str:
    for name in sorted({**known, **logged}):
        if known.get(name) != logged.get(name):
            return f"{name} is {known.get(name)}, and in the log {logged.get(name)}"
    return ""


def _transactions(partition: Partition) -> TransactionCoordinator:
    shard = TransactionCoordinator(TransactionConfig(), lambda: None)
    _replay(shard, partition, transaction_records)
    return shard


def _groups(partition: Partition) -> GroupCoordinator:
    shard = GroupCoordinator(GroupConfig())
    _replay(shard, partition, group_records)
    # Groups are built at the end of the load.
    shard.loaded(_BEGINNING)
    return shard


def _group_view(shard: GroupCoordinator) -> dict[str, Any]:
    listed = shard.list_groups((), ()).response
    view: dict[str, Any] = {}
    for group in listed.groups:
        group_id = group.group_id
        stable = shard.offset_fetch(OffsetFetchGroup(group_id, None), require_stable=True).response
        offsets = shard.offset_fetch(OffsetFetchGroup(group_id, None), require_stable=False).response
        view[f"{group_id}, its offsets"] = (_sorted(stable), _sorted(offsets))
        if group.group_state == "Stable":
            described = shard.describe_groups([group_id]).response.groups[0]
            view[_members_of(group_id)] = _sorted(described)
    return view


def _members_of(group_id: str) -> str:
    return f"{group_id}, its members"


def _sorted(response: Any) -> str:
    """The same text for two answers that differ only in order."""
    if isinstance(response, dict):
        return str({key: _sorted(value) for key, value in sorted(response.items())})
    if isinstance(response, tuple | list):
        return str(sorted(_sorted(value) for value in response))
    return repr(response)


def _replay(shard: Shard[RecordT, object], partition: Partition, codec: Codec[RecordT]) -> None:
    offset, end = partition.log_start_offset, partition.log_end_offset
    while offset < end:
        batches = partition.read(offset, _READ_BYTES, below=end)
        if not batches:
            return
        for position, header in iter_headers(batches):
            offset = header.next_offset
            records = decode_records(batches, position, header)
            producer = ProducerIdAndEpoch(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))
            if header.is_control:
                for record in records:
                    if control_type(record) in (ABORT, COMMIT):
                        shard.replay_marker(producer, decode_marker(record).committed)
                continue
            for record in records:
                producer_id = producer.producer_id if header.is_transactional else None
                decoded = codec.decode(record.key, record.value, producer_id)
                if decoded is not None:
                    shard.replay(decoded)
