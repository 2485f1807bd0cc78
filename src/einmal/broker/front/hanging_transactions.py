"""Markers that a client asks for: only the abort of a transaction that hangs, as operators' tools do it (KIP-664).

A transaction hangs in a partition when it is open there and no coordinator manages it any more. Any other marker from a
client would tear a transaction, or fence its producer: so it must name the transaction that is open, and the
coordinators are asked first. What the producer writes meanwhile makes it a transaction that does not hang.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.coordinators.marker_writer import Markers, MarkerWriter, PartitionErrors, TransactionEnd
from einmal.broker.front.context import RequestContext
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.rpc.peers import Peers
from einmal.metadata.image import TRANSACTION_STATE
from einmal.metadata.records import NO_LEADER
from einmal.rpc.connection import NoAnswer
from einmal.transactions.states import TransactionState
from einmal.types import ErrorCode, Offset, ProducerId, TopicPartition
from einmal.wire.api.list_transactions import API as LIST_TRANSACTIONS
from einmal.wire.api.list_transactions import ListTransactionsRequest
from einmal.wire.errors import WireError

_VERSION: Final = 1
_TIMEOUT_MS: Final = 5_000
_MANAGED: Final = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_Open = tuple[Offset, int]
"""A transaction's first offset in a partition, and its producer's last sequence there."""


@dataclass(frozen=True, slots=True)
class HangingTransactions:
    metadata: ClusterMetadata
    partitions: Partitions
    markers: MarkerWriter
    peers: Peers

    async def abort(self, asked: Sequence[Markers], context: RequestContext) -> list[PartitionErrors]:
        """As ``MarkerWriter.write_markers``, for a client."""
        # One line of the log for each reason, however many markers and partitions the request names.
        refuse = cache(context.refuse_client)
        open_before: dict[tuple[TransactionEnd, TopicPartition], _Open | None] = {}
        async for end, partitions in context.paced(asked):
            if not end.committed:
                open_before |= {(end, partition): self._open_transaction(end, partition) for partition in partitions}
        wanted = [
            end.producer.producer_id
            for (end, _partition), open_transaction in open_before.items()
            if open_transaction is not None
        ]
        managed = await self._managed_producers(list(dict.fromkeys(wanted))) if wanted else ()
        results: list[PartitionErrors] = []
        async for end, partitions in context.paced(asked):
            if end.committed:
                results.append(dict.fromkeys(partitions, refuse("WriteTxnMarkers of a commit")))
                continue
            is_managed = not isinstance(managed, ErrorCode) and end.producer.producer_id in managed
            if is_managed:
                refuse("WriteTxnMarkers for a transaction that its coordinator manages")
            open_now = {
                partition: open_transaction
                for partition in partitions
                if (open_transaction := open_before[end, partition]) is not None
            }
            errors = dict.fromkeys(partitions, ErrorCode.invalid_txn_state)
            if isinstance(managed, ErrorCode):
                errors |= dict.fromkeys(open_now, managed)
            elif open_now and not is_managed:
                check = partial(self._check_open, end, open_now)
                errors |= (await self.markers.write_markers([Markers(end, tuple(open_now))], check))[0]
            results.append(errors)
        return results

    def _check_open(
        self, end: TransactionEnd, open_before: Mapping[TopicPartition, _Open], partition: TopicPartition
    ) -> ErrorCode:
        """Whether nothing was written since it was asked who manages the transaction."""
        is_unchanged = self._open_transaction(end, partition) == open_before[partition]
        return ErrorCode.none if is_unchanged else ErrorCode.invalid_txn_state

    def _open_transaction(self, end: TransactionEnd, topic_partition: TopicPartition) -> _Open | None:
        """Return what the producer has open under exactly this epoch; None: nothing, or not here."""
        partition = self.partitions.get(topic_partition)
        if partition is None or not partition.is_leader:
            return None
        entry = partition.producers.entry(end.producer.producer_id)
        if entry is None or entry.producer_epoch != end.producer.producer_epoch or entry.current_txn_first_offset < 0:
            return None
        return entry.current_txn_first_offset, entry.last_sequence

    async def _managed_producers(self, producer_ids: Sequence[ProducerId]) -> Collection[ProducerId] | ErrorCode:
        """Those whose transactions some coordinator manages. An ErrorCode: not every coordinator could be asked."""
        topic = self.metadata.image.topics.get(TRANSACTION_STATE)
        leaders = dict.fromkeys(partition.leader for partition in topic.partitions) if topic is not None else {}
        request = ListTransactionsRequest(tuple(state.kafka_name for state in _MANAGED), tuple(producer_ids))
        managed: dict[ProducerId, None] = {}
        for leader in leaders:
            if leader == NO_LEADER:
                return ErrorCode.coordinator_not_available
            try:
                answer = await self.peers.ask(leader, LIST_TRANSACTIONS, _VERSION, request, timeout_ms=_TIMEOUT_MS)
            except (NoAnswer, WireError):
                return ErrorCode.coordinator_not_available
            if answer.error_code is not ErrorCode.none:
                return answer.error_code
            managed |= dict.fromkeys(
                ProducerId(transaction_state.producer_id) for transaction_state in answer.transaction_states
            )
        return managed
