"""Markers that a client asks for: only the abort of a transaction that hangs, as operators' tools do it (KIP-664).

A transaction hangs in a partition when it is open there and no coordinator manages it any more. Any other marker from a
client would tear a transaction, or fence its producer: so it must name the transaction that is open, and the
coordinators are asked first. What the producer writes meanwhile makes it a transaction that does not hang.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from einmal.broker.marker_writer import Markers, PartitionErrors, TransactionEnd
from einmal.client.aio.connection import Disconnected
from einmal.metadata.image import TRANSACTION_STATE
from einmal.metadata.records import NO_LEADER
from einmal.transactions.states import TransactionState
from einmal.types import ErrorCode, Offset, ProducerId, TopicPartition
from einmal.wire.errors import WireError

if TYPE_CHECKING:
    from einmal.broker.context import RequestContext
    from einmal.broker.node import Node

_LIST_TRANSACTIONS: Final = 66
_VERSION: Final = 1
_TIMEOUT_MS: Final = 5_000
_MANAGED: Final = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_Open = tuple[Offset, int]
"""A transaction's first offset in a partition, and its producer's last sequence there."""


async def abort_hanging(context: RequestContext, asked: Sequence[Markers]) -> list[PartitionErrors]:
    """As ``MarkerWriter.write_markers``, for a client."""
    node = context.node
    open_before = {
        (end, each): _open_transaction(node, end, each)
        for end, partitions in asked
        if not end.committed
        for each in partitions
    }
    wanted = [end.producer.producer_id for (end, _partition), found in open_before.items() if found is not None]
    managed = await _managed_producers(node, list(dict.fromkeys(wanted))) if wanted else ()
    results: list[PartitionErrors] = []
    for end, partitions in asked:
        errors: PartitionErrors = {}
        for each in partitions:
            before = open_before.get((end, each))
            if end.committed:
                errors[each] = context.refuse_client("WriteTxnMarkers of a commit")
            elif before is None or before != _open_transaction(node, end, each):
                errors[each] = ErrorCode.invalid_txn_state
            elif isinstance(managed, ErrorCode):
                errors[each] = managed
            elif end.producer.producer_id in managed:
                context.refuse_client("WriteTxnMarkers for a transaction that its coordinator manages")
                errors[each] = ErrorCode.invalid_txn_state
        hanging = tuple(each for each in partitions if each not in errors)
        if hanging:
            errors |= (await node.transactions.markers.write_markers([Markers(end, hanging)]))[0]
        results.append({each: errors[each] for each in partitions})
    return results


def _open_transaction(node: Node, end: TransactionEnd, topic_partition: TopicPartition) -> _Open | None:
    """What the producer has open under exactly this epoch; None: nothing, or not here."""
    partition = node.partitions.get(topic_partition)
    if partition is None or not partition.is_leader:
        return None
    entry = partition.log.producers.entry(end.producer.producer_id)
    if entry is None or entry.producer_epoch != end.producer.producer_epoch or entry.current_txn_first_offset < 0:
        return None
    return entry.current_txn_first_offset, entry.last_sequence


async def _managed_producers(node: Node, producer_ids: Sequence[ProducerId]) -> Collection[ProducerId] | ErrorCode:
    """Those whose transactions some coordinator manages. An ErrorCode: not every coordinator could be asked."""
    topic = node.metadata.image.topics.get(TRANSACTION_STATE)
    leaders = dict.fromkeys(partition.leader for partition in topic.partitions) if topic is not None else {}
    fields = {
        "state_filters": [state.kafka_name for state in _MANAGED],
        "producer_id_filters": producer_ids,
        "duration_filter": -1,
    }
    managed: dict[ProducerId, None] = {}
    for leader in leaders:
        if leader == NO_LEADER:
            return ErrorCode.coordinator_not_available
        try:
            answer = await node.peers.ask(leader, _LIST_TRANSACTIONS, _VERSION, fields, timeout_ms=_TIMEOUT_MS)
        except (Disconnected, WireError):
            return ErrorCode.coordinator_not_available
        if answer.error_code is not ErrorCode.none:
            return ErrorCode(answer.error_code)
        managed |= dict.fromkeys(ProducerId(each.producer_id) for each in answer.transaction_states)
    return managed
